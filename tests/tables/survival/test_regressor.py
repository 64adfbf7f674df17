"""CoxRegressor: its targets, tasks and curves, and what it refuses."""

import numpy as np
import pytest
from sklearn.base import clone

from engram.tables import CoxRegressor, survival_target
from tests.tables.survival.figures import figures, rows_of

X, ROWS, _, SITE = rows_of(figures()[0])  # lung
Y = survival_target(ROWS.event, ROWS.time)


def test_a_frame_with_a_column_of_tasks_gives_curves_by_task():
    table = X.assign(hospital=SITE)
    model = clone(CoxRegressor(ties="breslow")).fit(table, Y, task="hospital")
    plain = CoxRegressor(ties="breslow").fit(X.to_numpy(), Y, SITE)
    np.testing.assert_allclose(model.coef_, plain.coef_, rtol=1e-12)
    np.testing.assert_allclose(model.predict(table, "hospital"), X @ model.coef_, rtol=1e-12)
    assert model.column_names == ["age", "sex", "ecog"]
    curves = model.predict_survival_function(table, "hospital", return_array=True)
    assert curves.shape == (len(X), len(model.unique_times_))
    known = np.where(np.isnan(curves), -1, curves)
    assert (np.diff(known, axis=1) <= 0).all()
    last = ROWS.groupby("site").time.max()[SITE].to_numpy()
    np.testing.assert_array_equal(np.isnan(curves), model.unique_times_ > last[:, None])
    other = Y.astype([("d", "?"), ("t", float)])
    alone = CoxRegressor().fit(X, other)
    assert len(alone.unique_times_) == ROWS.time[ROWS.event == 1].nunique()
    assert alone.predict_survival_function(X[:2], return_array=True).shape[0] == 2


def test_a_summary_has_the_fits_hazard_ratios():
    model = CoxRegressor().fit(X, Y, SITE)
    for k, row in enumerate(model.summary(ratios=True).rows()):
        half = 1.959964 * model.standard_error_[k]
        limits = np.exp(model.coef_[k] + half * np.array([0, -1, 1]))
        found = [row[name] for name in ("hazard-ratio", "low", "high")]
        np.testing.assert_allclose(found, limits, rtol=1e-6)
        assert row["error"] == model.standard_error_[k]


def test_refusals_name_what_is_wrong():
    model = CoxRegressor().fit(X, Y, SITE)
    late = survival_target(ROWS.event, ROWS.time, ROWS.time)
    faults = {
        "structured array with fields event .* got ndarray": lambda: model.fit(X, ROWS.time.values),
        "time must be after the time of entry, got 306 in row 0": lambda: model.fit(X, late),
        "finite and at least 0, got -306 in row 0": lambda: model.fit(
            X, survival_target(ROWS.event, -ROWS.time)
        ),
        "column age has NaN in row 1": lambda: model.fit(
            X.assign(age=X.age.where(X.index != 1)), Y
        ),
        "ties must be efron or breslow": lambda: CoxRegressor(ties="exact").fit(X, Y),
        "task 99 was not seen in fit": lambda: model.predict_survival_function(X[:1], [99]),
        "task must be given": lambda: model.predict_survival_function(X),
    }
    for words, call in faults.items():
        with pytest.raises(ValueError, match=words):
            call()
