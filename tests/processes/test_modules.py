"""Networks and rows of users on nodes, over gRPC with TLS: the numbers of one process."""

import pytest

from engram.runs.run import Run
from engram.settings.fingerprint import source_root
from engram.settings.plugins import add_plugins, load_plugins
from engram.simulations.engine import simulate
from engram.simulations.loopback import LoopbackFederation
from tests.networks import mixed
from tests.networks.networks import CASES, clients
from tests.networks.test_modules import experiment
from tests.processes.test_federation import run
from tests.support import assert_same, write_npz

pytestmark = pytest.mark.processes


def test_networks_of_users_give_the_numbers_of_one_process(tmp_path, plug_ins):
    for plug_in in ("networks", "mixed"):
        add_plugins(str(source_root() / "tests" / "networks" / plug_in))
    load_plugins()
    cases = {
        "batch norm and dropout": "local-moml",
        "two inputs": "pfedme",
        "weights of classes": "fedavg",
    }
    options = ["--set", f"data-dir={tmp_path}"]
    with LoopbackFederation(tmp_path / "fed", clients=2, options=options) as federation:
        for number, (case, method) in enumerate(cases.items()):
            own = write_npz(tmp_path / f"{number}.npz", **CASES[case][1], task=clients())
            e = experiment(case, method=method, min_clients=3, memory="carry", timeout=600.0)
            e = e.model_copy(update={"dataset": own})
            expected = simulate(e, tmp_path / "here" / case)
            there = run(federation, e, tmp_path / "there" / case)
            here = Run.open(tmp_path / "here" / case)
            assert_same(there.load_checkpoint().model, here.load_checkpoint().model, atol=1e-5)
            assert there.results.get("classes") == expected.get("classes")
            for column in {"loss", "loss-common", "loss-tuned"} & expected["clients"].keys():
                found, wanted = (r["clients"][column] for r in (there.results, expected))
                assert found == pytest.approx(wanted, abs=1e-5), case
            assert all(row["left-out"] == 0 for row in there.rows()[1:])
        # Each node sees its own rows alone: grey levels, or shares of 255.
        e = mixed.experiment(mixed.some_grey)
        expected = simulate(e, tmp_path / "here" / "grey")
        there = run(federation, e, tmp_path / "there" / "grey")
        here = Run.open(tmp_path / "here" / "grey")
        assert_same(there.load_checkpoint().model, here.load_checkpoint().model, atol=1e-5)
        assert there.results["accuracy"] == expected["accuracy"]
