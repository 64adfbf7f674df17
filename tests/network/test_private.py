"""Secret cohorts on real nodes: rounds of any size, empty ones included, and what they cost."""

import pytest

from federation.amplification import poisson_epsilon
from server.record import RunRecord
from simulations.deployed import run_deployed
from simulations.loopback import LoopbackFederation
from tests.network.test_federation import CLIENTS, settings

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
