"""A part of the contract table of networks on Ray, and rows of several types, in one run."""

import numpy as np
import pytest
import torch

from engram.core.tree import is_finite
from engram.runs.run import Run
from engram.settings.families import METHODS
from engram.settings.plugins import add_plugins, load_plugins
from engram.simulations.engine import simulate
from tests.networks import mixed
from tests.networks import networks as table
from tests.networks.test_modules import experiment
from tests.simulations.test_ray import SuperLink, run_several
from tests.support import ANY_NETWORK

pytestmark = pytest.mark.processes


def suits(method, case):
    """Whether a method is for the task of a case."""
    tasks = METHODS[method].tasks
    if case == "masks" and tasks:  # which are methods for a vector, and a class, of each row
        return False
    return not tasks or table.CASES[case][2].get("task", "classification") in tasks


CHOSEN = [
    (case, method)
    for i, case in enumerate(table.CASES)
    for j, method in enumerate(ANY_NETWORK)
    if (i - j) % 17 == 0 and suits(method, case)  # each method, and each network
]


def test_a_part_of_the_table_gives_the_same_on_ray(plug_ins, monkeypatch, tmp_path):
    monkeypatch.setenv("ENGRAM_PLUGINS", "")
    for plug_in in (table, mixed):
        add_plugins(plug_in.__file__.removesuffix(".py"))
    load_plugins()
    experiments = {}
    for case, method in CHOSEN:
        rows = tmp_path / f"{case}.npz"
        np.savez(rows, **table.CASES[case][1], task=table.clients())
        settings = {"method": method, "memory": "carry", "dataset": f"npz:{rows}"}
        experiments[f"{case}, {method}"] = experiment(case, **settings)
    for images in (mixed.all_grey, mixed.some_grey, mixed.none_grey):
        experiments[images.__name__] = mixed.experiment(images)
    configs = [e.to_config() | {"out": f"{tmp_path}/ray/{n}"} for n, e in experiments.items()]
    with SuperLink(tmp_path) as superlink:
        printed = run_several(superlink, tmp_path, configs)
    for name, e in experiments.items():
        simulate(e, tmp_path / "here" / name)
        assert (tmp_path / "ray" / name / "results.json").is_file(), printed
        records = [Run.open(tmp_path / engine / name) for engine in ("here", "ray")]
        one, other = (record.load_checkpoint().model for record in records)
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)
        assert is_finite(one)
