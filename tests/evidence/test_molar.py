"""The comparison of MOLAR runs; its figures are tested in tests/tables."""

import pytest
import typer
from typer.testing import CliRunner

from tests.evidence import molar


@pytest.fixture
def app(monkeypatch):
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
