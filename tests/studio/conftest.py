"""A folder of runs for the board: a comparison, a search, and runs of two families."""

import numpy as np
import pytest

from engram.api import simulate
from engram.compare.comparison_api import compare
from engram.tune.folder import Tuning

QUICK = {"num_rounds": 4, "eval_every": 2, "clients_per_round": 2, "local_steps": 2, "hidden": "4"}


def rows(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(60, 3)).astype(np.float32), rng.integers(0, 2, 60)


DATA = {"park": rows(0), "<b>hill</b>": rows(1), "lake [x](y)": rows(2)}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A comparison of two seeds, a run by itself, a run of tables, and a search."""
    found = tmp_path_factory.mktemp("board")
    compare(DATA, methods=["ditto"], seeds=2, out=found / "both", progress=False, **QUICK)
    simulate(method="ditto", out=found / "alone", eta=0.3, progress=False, num_clients=6, **QUICK)
    simulate(
        method="molar", dataset="sparse-linear", out=found / "tables", num_clients=3, progress=False
    )
    fixed = {"fedavg": {"num-rounds": 4, "num-clients": 6, "clients-per-round": 2, "hidden": "4"}}
    plan = Tuning(fixed, (), 3, [0, 1])
    plan.save(found / "search")
    plan.run(found / "search", lambda name, total: lambda *told: None)
    return found
