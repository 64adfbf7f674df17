"""One hostile client of a federation ends no method's run, whatever it sends."""

from itertools import product

import pytest
import torch

from engram.attack.attacks import attackers_of
from engram.core.slots import flat
from engram.runs.run import Run
from engram.settings.experiment import Experiment
from engram.simulations.engine import simulate
from tests.support import SEVEN

CLAIMANTS = ("fedas", "fedpac", "fedproto", "ifca")  # the others send no claims
TINY = {"num_clients": 10, "clients_per_round": 10, "num_rounds": 3, "eval_every": 3, "hidden": "6"}
TINY |= {"local_steps": 2, "rows_per_class": 10, "test_rows_per_class": 3}


@pytest.mark.parametrize(
    ("method", "attack"),
    [*product(SEVEN, ["sign-flip"]), *product(CLAIMANTS, ["false-statistics"])],
)
def test_no_run_ends_because_of_one_client(tmp_path, method, attack):
    e = Experiment(method=method, attack=f"{attack}:60", attackers=0.1, **TINY)
    assert len(attackers_of(e)) == 1
    found = simulate(e, tmp_path / "run")
    assert found["rounds"] == TINY["num_rounds"]
    assert all(0 <= score <= 1 for score in found["clients"]["accuracy"])
    slots = flat(Run.open(tmp_path / "run").load_checkpoint().model)
    assert all(bool(torch.isfinite(leaf).all()) for leaf in slots.values())
