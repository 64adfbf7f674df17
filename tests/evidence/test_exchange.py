"""The coverage of what adaptive sites share, in small; its figures are in docs/results.md."""

import numpy as np
import typer
from typer.testing import CliRunner

from tests.evidence import exchange
from tests.evidence.exchange import Cell, covered


def test_intervals_hold():
    """Fewer than 9 of 12 intervals of level 0.95 hold with a probability of 0.002."""
    held = np.sum([covered(Cell("linear", 3, True, rows=60), draw)[0] for draw in range(12)], 0)
    assert (held >= 9).all()


def test_it_prints_every_cell(monkeypatch):
    monkeypatch.setattr(exchange, "exchanged", lambda sites, family: FIT)
    command = typer.Typer()
    command.command()(exchange.main)
    found = CliRunner().invoke(command, ["--draws", "1", "--family", "linear"])
    assert found.exit_code == 0, found.output
    lines = found.output.splitlines()
    assert len(lines) == 1 + 3 * 2 * 2
    assert all(line.startswith("linear") for line in lines[1:])


FIT = exchange.exchanged(Cell("linear", 3, True).draw(np.random.default_rng(0))[0], "linear")
