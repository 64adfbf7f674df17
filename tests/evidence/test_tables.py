"""The benchmark of tables, in small: simulated tables, verdicts, and coverage."""

import numpy as np
import pytest

from engram.tables.studies.comparison import SplitScore
from tests.evidence.tables import Design, verdict


def test_a_simulated_table_is_as_designed():
    design = Design(6, 4, 10, differing=1, gap=2.0, correlation=0.5)
    table = design.draw(np.random.default_rng(0))
    assert table.x.shape == (120, 4)
    assert np.bincount(table.task).tolist() == [20] * 6
    wide = Design(2, 3, 20_000, correlation=0.5).draw(np.random.default_rng(0))
    np.testing.assert_allclose(np.cov(wide.x.T), 0.5 + 0.5 * np.eye(3), atol=0.02)
    rare = Design(29, 6, 400, strength=0.4, family="logistic", base=-3.1)
    y = rare.draw(np.random.default_rng(0)).y
    assert set(y) == {0, 1}
    assert y.mean() == pytest.approx(0.06, abs=0.02)


def test_a_verdict_by_hand():
    def score(*losses):
        return SplitScore(0.0, float(np.mean(losses)), 0.0, tasks=losses)

    trial = {"ridge": score(1.0, 2.0), "RM": SplitScore(0.0, np.nan, 0.0, reason="no task")}
    found = verdict([{**trial, "MOLAR, adaptive": score(1.0, 1.0)}] * 2, 0.0)
    assert found.ratios == {"ridge": 1, "MOLAR, adaptive": pytest.approx(1 / 1.5)}
    assert found.reasons == {"RM": "no task"}
    # Differences 0 and -1 of two tasks: mean -1/2, error 1/2.
    assert found.high - found.ratios["MOLAR, adaptive"] == pytest.approx(
        12.7062 * 0.5 / 1.5, rel=1e-5
    )
