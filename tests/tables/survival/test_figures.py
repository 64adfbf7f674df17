"""Figures of R's survival package: ties both ways, late entry, weights, 3 to 20 sites."""

import numpy as np
import pytest

from engram.tables import CoxRegressor, survival_target
from tests.tables.survival.figures import figures, rows_of, variance


def test_a_fit_is_that_of_r():
    for figure in figures():
        x, rows, weights, site = rows_of(figure)
        y = survival_target(rows.event, rows.time, rows.entry if "entry" in rows else None)
        model = CoxRegressor(ties=figure["ties"]).fit(x, y, site, weights)
        np.testing.assert_allclose(model.coef_, figure["coef"], rtol=0, atol=1e-6)
        np.testing.assert_allclose(model.covariance_, variance(figure), rtol=1e-6)
        logliks = [model.null_loglik_, model.loglik_]
        np.testing.assert_allclose(logliks, figure["loglik"], rtol=0, atol=1e-6)
        assert model.events_ == figure["events"]
        score = model.score(x, y, site, weights)
        assert score == pytest.approx(figure["concordance"], rel=0, abs=1e-12)
        (curve,) = model.predict_survival_function(x[:1], site[:1])
        np.testing.assert_allclose(curve(figure["times"]), figure["survival"], atol=1e-6)
        (hazard,) = model.predict_cumulative_hazard_function(x[:1], site[:1])
        np.testing.assert_allclose(np.exp(-hazard(figure["times"])), curve(figure["times"]))
    assert {each["rows"] for each in figures()} >= {"lung", "cgd", "veteran", "sites20"}
