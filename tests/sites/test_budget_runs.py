"""Runs with sites that have a total: what the server learns, and what it is told at the end."""

import numpy as np
import pytest

from engram.runs.run import Run
from engram.server import run as coordinator
from engram.settings.errors import RunStopped
from tests.epsilons import epsilon
from tests.sites.budgets import books, epsilon_of
from tests.sites.sites import Sites
from tests.support import small

pytestmark = pytest.mark.usefixtures("afresh")

SETTINGS = {"method": "fedavg", "privacy": "local", "clip": 0.5, "noise_multiplier": 8.0}
SETTINGS |= dict.fromkeys(("num_clients", "clients_per_round", "num_rounds", "eval_every"), 3)


def sites(folder, *budgets):
    for client, budget in enumerate(budgets):
        (folder / f"client-{client}").mkdir(parents=True)
        if budget:
            (folder / f"client-{client}" / "policy.toml").write_text(f"epsilon = {budget}\n")


def run(folder, **settings):
    e = small(**SETTINGS | settings)
    return coordinator.run(Sites(e, folder, e.num_clients), e, folder / "run", engine="flower")


def test_a_server_learns_no_rows_losses_or_exact_scores(tmp_path):
    sites(tmp_path, 10.0, 0, 0)
    results = run(tmp_path)
    rows = Run.open(tmp_path / "run").rows()
    assert not any("train-loss" in row for row in rows)
    clients = results["clients"]
    assert clients["queries"] == [1, 1, 1]
    assert clients["loss"] == [None] * 3
    for value in clients["accuracy"]:  # an exact one of n rows is a multiple of 1 / n
        assert all(abs(value * n - round(value * n)) > 1e-6 for n in range(1, 51))
    assert results["accuracy"] == pytest.approx(np.mean(clients["accuracy"]))
    cost = (2 / 8.0) ** 2
    found = books(tmp_path / "client-0", 10.0)
    assert [line["kind"] for line in found.lines] == [*["train"] * 3, "evaluate"]
    assert found.lines[-1]["epsilon"] == pytest.approx(epsilon_of([cost] * 4), rel=1e-6)
    assert books(tmp_path / "client-1").lines == []
    assert results["epsilon"] == pytest.approx(epsilon(8.0 / 2, 5, 1e-5))


def test_a_site_whose_budget_is_spent_is_left_out_and_the_run_goes_on(tmp_path, warnings_of_engram):
    few = epsilon_of([(2 / 8.0) ** 2] * 2) * 1.01
    sites(tmp_path, few, 0, 0)
    run(tmp_path)
    rows = Run.open(tmp_path / "run").rows()
    assert [row.get("absent") for row in rows[1:]] == [{}, {}, {"0": "error"}]
    assert any("privacy budget is spent" in line for line in warnings_of_engram.messages)


def test_a_run_that_no_site_can_pay_does_not_begin(tmp_path):
    sites(tmp_path, 0.1, 0.1, 0.1)
    with pytest.raises((RunStopped, ValueError), match="privacy budget is spent"):
        run(tmp_path)
