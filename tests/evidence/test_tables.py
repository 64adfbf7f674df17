"""The benchmark of tables, in small: simulated tables, verdicts, and coverage."""

import numpy as np
import pytest

from engram.tables.studies.comparison import SplitScore
from tests.evidence import tables
from tests.evidence.tables import Design, coverage, simulated, verdict


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


def test_methods_are_compared_with_the_best_reference():
    design = Design(6, 3, 12, differing=1, gap=2.0)
    found = verdict(list(simulated(design, 1)), 0.0)
    assert found.ratios[found.reference] == 1
    assert found.reference not in tables.OURS
    assert min(found.ratios[name] for name in found.ratios if name not in tables.OURS) == 1
    assert found.low < found.ratios["MOLAR, adaptive"] < found.high


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


def test_coverage_has_a_row_for_each_distance(monkeypatch):
    monkeypatch.setattr(tables, "GAPS", (0, 3))
    for family in ("linear", "logistic"):
        rows = coverage(family, trials=3, tasks=5, dim=2)
        assert [row["gap"] for row in rows] == [0, 3]
        assert all(0 <= row[kind][0] <= 1 for row in rows for kind in ("own", "honest", "shared"))
        assert all(row["own"][1] == pytest.approx(1) for row in rows)
