"""The comparison of MOLAR runs; its figures are tested in tests/tables."""

import pytest
from typer.testing import CliRunner

from tests.evidence import molar


def test_algorithm_3_is_compared_with_the_best_lassos():
    found = molar.compare_high_dim(trials=1, dim=30, size=15)
    assert found.keys() == {
        "Algorithm 3",
        "a LASSO for each task",
        "one LASSO for all",
    }
    assert all(0 < row["error"] < 10 and row["seconds"] > 0 for row in found.values())


def test_coverage_is_a_share_and_wide_gaps_are_covered():
    found = molar.coverage(20.0, trials=1, dim=40, tasks=40, size=200)
    assert all(0.9 < share <= 1 for share in found[:2])
    assert 0 < found.length < 1


@pytest.fixture
def app(monkeypatch):
    import typer

    small = molar.Simulation("linear", dim=8, tasks=3, size=30, differing=1)
    monkeypatch.setattr(molar, "PAPER", small)
    monkeypatch.setattr(molar, "ALIKE", small._replace(differing=0))
    monkeypatch.setattr(molar, "LOGISTIC", molar.Simulation("logistic", 2, 3, 200, 1))
    command = typer.Typer()
    command.command()(molar.main)
    return command


def test_it_prints_tables(app):
    result = CliRunner().invoke(app, ["--part", "regression", "--trials", "2"])
    assert result.exit_code == 0, result.output
    for text in ("d = 8, M = 3, n = 30, s = 1, 2 trials", "MOLAR, soft", "MLE"):
        assert text in result.output


def test_an_unknown_part_is_refused(app):
    result = CliRunner().invoke(app, ["--part", "bandits"])
    assert result.exit_code == 2
    assert "must be one of regression, intervals, high-dim" in result.output
