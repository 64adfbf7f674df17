"""Secure aggregation between processes, over gRPC."""

import numpy as np
import pytest

from engram.guards.secure.registry import REGISTRY, signed_registry
from engram.link.keys import read_server_key
from engram.link.server.certificates import node_key_files
from engram.runs.run import Run
from engram.settings.errors import RunStopped
from engram.settings.experiment import Experiment
from engram.simulations.deployed import run_deployed
from engram.simulations.engine import simulate
from engram.simulations.loopback import LoopbackFederation
from engram.sites.policy import keep_policy

pytestmark = pytest.mark.processes

CLIENTS = 4


def settings(**special):
    given = {"method": "ditto", "partition": "dirichlet", "hidden": "16", "clip": 0.3}
    given |= {"num-clients": CLIENTS, "clients-per-round": CLIENTS, "min-clients": 3}
    given |= {"num-rounds": 2, "eval-every": 2, "timeout": 600.0}
    return Experiment.from_config(given | special)


def members(federation):
    """The public keys of its clients, by number."""
    folder = federation.server / "clients"
    return {n: (folder / f"client-{n}.pub").read_bytes() for n in range(CLIENTS)}


def test_a_node_that_drops_out_after_it_has_shared_its_keys_is_not_in_the_mean(tmp_path):
    fed, experiment = tmp_path / "fed", settings(aggregation="secure")
    with LoopbackFederation(fed, clients=CLIENTS) as federation:

        def run(folder):
            run_deployed(experiment, folder, federation.server)

        # A registry that the authority has not signed, as of a server that makes up a member.
        registry = federation.server / REGISTRY
        signed = registry.read_bytes()
        _, made_up = node_key_files("fed/client-4")
        forged = b"client-4 " + b" ".join(made_up.split()[:2]) + b"\n" + signed
        registry.write_bytes(forged)
        with pytest.raises(RunStopped, match="signed by this federation's authority must come"):
            run(tmp_path / "forged")
        assert not (fed / "client-0" / REGISTRY).exists()
        registry.write_bytes(signed)
        for client in (2, 3):  # sums may be of three
            (fed / f"client-{client}" / "policy.toml").write_text("secure = 4\n")
        with pytest.raises(RunStopped, match="this site's policy is against it: sums must be of 4"):
            run(tmp_path / "few")
        assert {(fed / f"client-{c}" / REGISTRY).read_bytes() for c in range(4)} == {signed}
        # From then on it is the sites' own: another member is noticed, also where it is signed.
        authority = read_server_key(fed / "ca.key")
        registry.write_bytes(signed_registry(members(federation) | {4: made_up}, authority))
        with pytest.raises(RunStopped, match=r"other keys than this site's, SHA256:.*client-4:"):
            run(tmp_path / "more")
        registry.write_bytes(signed)
        (fed / "client-2" / "policy.toml").write_text("secure = 3\n")
        # It answers the first round's message to train, and no other.
        (fed / "client-3" / "policy.toml").write_text("rounds-a-day = 1\n")
        for place in (fed / "client-2", fed / "client-3"):
            keep_policy(place, place / "state", accept=True)
        run(tmp_path / "run")
    rows = Run.open(tmp_path / "run").rows()
    assert [row["left-out"] for row in rows if "left-out" in row] == [0, 1]
    assert [[*row["absent"]] for row in rows if row["round"] > 1] == [["3"]]
    plain = settings(participation=str(tmp_path / "run"))
    simulate(plain, tmp_path / "plain")
    one, other = (Run.open(tmp_path / name).load_checkpoint() for name in ("run", "plain"))
    assert one.server_round == other.server_round == 2
    for path, leaf in other.model.items():
        np.testing.assert_allclose(one.model[path], leaf, atol=1e-5)
