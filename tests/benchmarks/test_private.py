"""Accuracy against epsilon: what is run, what is gone on with, and what is averaged."""

import json

import pytest

from benchmarks import private
from engram.guards.calibration import sampling_rate


@pytest.fixture
def ran(monkeypatch):
    """The cells that were run; each has an accuracy of its own."""
    cells = []

    def simulate(e, folder):
        cells.append((e.method, e.epsilon, e.seed))
        return {"accuracy": (10 * e.epsilon + e.seed) / 100}

    monkeypatch.setattr(private, "simulate", simulate)
    return cells


def test_a_benchmark_goes_on_where_it_was_stopped(ran, tmp_path, capsys):
    few = {"methods": "fedavg,ditto", "epsilons": "0,2", "clients": 20, "rounds": 3}
    private.main(**few, seeds=1, out=tmp_path)
    assert ran == [(m, eps, 0) for m in ("fedavg", "ditto") for eps in (0, 2)]
    private.main(**few, seeds=2, out=tmp_path)
    assert ran[4:] == [(m, eps, 1) for m in ("fedavg", "ditto") for eps in (0, 2)]
    private.main(**few | {"rounds": 4}, seeds=1, out=tmp_path)  # other runs
    assert len(ran) == 12
    lines = (tmp_path / "cells.jsonl").read_text().splitlines()
    assert [json.loads(line)["rounds"] for line in lines] == [3] * 8 + [4] * 4
    assert (tmp_path / "private.png").read_bytes().startswith(b"\x89PNG")
    assert "without privacy" in capsys.readouterr().out


def test_a_method_has_the_accuracies_of_all_seeds():
    cells = [private.Cell("digits", 20, 3, "fedavg", 2.0, seed, 0.2 + seed) for seed in (0, 1)]
    assert list(private.by_seed(cells)) == [("fedavg", 2.0, [0.2, 1.2])]


def test_a_private_cell_has_secret_cohorts_of_half_of_the_clients():
    e = private.experiment(private.Cell("digits", 100, 60, "fedper", 4.0, 1))
    assert (e.privacy, e.sampling, e.epsilon, e.clip_quantile) == ("central", "poisson", 4.0, 0.5)
    assert sampling_rate(e) == 0.5
    assert private.experiment(private.Cell("digits", 100, 60, "fedper", 0.0, 1)).privacy == "none"
