"""Privacy on real nodes: secret cohorts of any size, single rows and single turns."""

import pytest

from engram.runs.record import RunRecord
from engram.simulations.deployed import run_deployed
from engram.simulations.loopback import LoopbackFederation
from tests.epsilons import epsilon, poisson_epsilon
from tests.processes.test_federation import CLIENTS, settings

pytestmark = pytest.mark.processes


def test_nodes_train_in_secret_cohorts_towards_a_target(tmp_path):
    private = {"privacy": "central", "clip": 0.3, "epsilon": 4.0, "clip-quantile": 0.5}
    sampled = {"sampling": "poisson", "clients-per-round": 1, "num-rounds": 6, "min-clients": 0}
    experiment, folder = settings(**private, **sampled), tmp_path / "run"
    with LoopbackFederation(tmp_path / "fed", clients=CLIENTS) as there:
        run_deployed(experiment, folder, there.server, control=there.control, on_trouble=print)
    record = RunRecord.open(folder)
    rows, found = record.rows()[1:], record.results
    assert len(rows) == 6
    asked = (folder / "clients-asked.txt").read_text().splitlines()
    assert asked == [" ".join(map(str, row["cohort"])) for row in rows]
    assert all(row["clients"] == len(row["cohort"]) for row in rows)
    assert all(row["clip"] > 0 for row in rows)
    rate, noise = 1 / experiment.num_clients, found["noise-multiplier"]
    assert found["epsilon"] == poisson_epsilon(noise, rate, 6, 1e-5) <= 4


def test_nodes_hide_single_rows_and_single_turns_and_say_what_that_costs(tmp_path):
    hidden = {"privacy": "example", "clip": 6.0, "noise-multiplier": 2.0}
    steps = {"method": "fedavg", "batch-size": 1000, "local-steps": 3, "num-rounds": 2}
    bandit = {"method": "molar-bandit", "dataset": "sparse-linear", "num-rounds": 8}
    with LoopbackFederation(tmp_path / "fed", clients=CLIENTS) as there:
        for name, special in (("rows", steps), ("turns", bandit)):
            place = {"control": there.control, "on_trouble": print}
            run_deployed(settings(**hidden, **special), tmp_path / name, there.server, **place)
    rows, turns = (RunRecord.open(tmp_path / name).results for name in ("rows", "turns"))
    # Every step sums all rows, of which one moves it by clip; a turn is in one release alone.
    assert rows["epsilon"] == pytest.approx(epsilon(2.0, 2 * 3, 1e-5))
    assert turns["epsilon"] == pytest.approx(epsilon(2.0, 2, 1e-5))
    assert rows["clients"]["accuracy"] == [None] * CLIENTS
    assert turns["clients"]["turns"] == [0] * CLIENTS
    assert turns["shared"]["coef"] != [None]
