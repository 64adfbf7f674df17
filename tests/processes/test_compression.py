"""Nodes over gRPC whose messages have fewer bytes: residuals and received models on their disks."""

import pytest
import torch

from engram.runs.run import Run
from engram.simulations.deployed import run_deployed
from engram.simulations.engine import simulate
from engram.simulations.loopback import LoopbackFederation
from tests.processes.test_federation import settings

pytestmark = pytest.mark.processes

_GIVEN = {"num-clients": 2, "clients-per-round": 2, "min-clients": 2, "hidden": "256,64"}


def parts(e, folder, there):
    """Runs an experiment in two halves, between which a node dies."""
    half = e.model_copy(update={"num_rounds": e.num_rounds // 2})
    run_deployed(half, folder, there.server)
    there.kill("client-0")
    there.start("client-0")
    again = e.model_copy(update={"resume": str(folder)})
    run_deployed(again, folder, there.server)


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    with LoopbackFederation(tmp_path_factory.mktemp("two") / "fed", clients=2) as shared:
        yield shared


@pytest.mark.parametrize(
    ("compress", "most", "first"), [("8-bit", 0.27, 0.27), ("top-k", 0.05, 1.1)]
)
def test_nodes_that_die_keep_what_they_left_out(tmp_path, there, compress, most, first):
    e = settings(**_GIVEN, **{"compress": compress, "num-rounds": 4, "checkpoint-every": 1})
    parts(e, tmp_path / "run", there)
    record, alone = Run.open(tmp_path / "run"), tmp_path / "alone"
    simulate(e, alone)
    found, expected = (Run.open(f).load_checkpoint() for f in (tmp_path / "run", alone))
    torch.testing.assert_close(found.model, expected.model, rtol=0, atol=1e-6)
    size = 2 * sum(leaf.nbytes for leaf in expected.model.values())  # to or from two nodes
    rows = record.rows()[1:]
    assert [row["clients"] for row in rows] == [2] * 4
    for row in rows[1:]:  # whole messages, beside what names their clients
        assert row["bytes-sent"] <= most * size + 2 * 4096
        assert row["bytes-received"] <= most * size + 2 * 4096
    assert rows[0]["bytes-sent"] <= first * size + 2 * 4096
