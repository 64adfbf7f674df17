"""Every engine gives the run of one that sends no messages."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn

import engram
from engram.client.hosts.local import LocalHost
from engram.client.memory import RamStore
from engram.guards.noise import simulated_noise
from engram.runs.run import Run
from engram.server.run import run
from engram.settings.errors import RunStopped
from engram.simulations.engine import simulate
from engram.simulations.grid import InProcessGrid
from engram.simulations.in_process import Direct
from tests.server.pushed import patient
from tests.support import small, trainer

_COSTS = ("ms", "checksum", "bytes-", "seconds-")  # beginnings of entries that differ


def on_a_node(e, folder):
    """Runs an experiment on a node with all clients, by messages as they travel."""
    store, noise = RamStore(), simulated_noise(e.seed)
    nodes = InProcessGrid(LocalHost(trainer(e, store, noise=noise)), [range(e.num_clients)])
    grid = patient(nodes)
    grid.joins = False  # as of Ray's nodes, so that clocks may be simulated
    run(grid, e, folder, engine="flower", memories=store, noise=noise)


messages = partial(simulate, through=lambda host: host)


def outcome(e, folder, runs=simulate):
    """A run's error, its rows without times, and its last model and memories."""
    try:
        runs(e, folder)
        stopped = ""
    except RunStopped as error:
        stopped = str(error).replace(str(folder), "")
    record = Run.open(folder)
    rows = [{k: v for k, v in row.items() if not k.startswith(_COSTS)} for row in record.rows()]
    last = record.load_checkpoint()
    model, state = ({n: x.tolist() for n, x in part.items()} for part in (last.model, last.state))
    return stopped, rows, model, last.memories, record.scores(), str(sorted(state.items()))


@pytest.mark.parametrize(
    "settings",
    [
        *({"method": method} for method in ("ditto", "fedpac", "pfedhn")),
        {"method": "scaffold", "clock": "drawn,stragglers=0.25,speed-spread=0.5", "buffer_size": 2},
        {"method": "fedavg", "merge": "median"},
        {"method": "fedavg", "clients_per_round": 1, "num_rounds": 6, "clip": 0.1}
        | {"privacy": "central", "noise_multiplier": 2.0, "sampling": "poisson"},
        {"method": "fedavg", "unseen_clients": 3, "max_weight": 1.0},
        {"method": "fedper", "validation_fraction": 0.2, "patience": 1, "scored_clients": 7},
        {"method": "ditto", "clip": 0.5, "privacy": "local", "noise_multiplier": 1.0},
        {"method": "fedavg", "eta": 1e30},
        {"method": "fedavg", "eta": 1e30, "merge": "median"},
    ],
)
def test_every_engine_gives_the_same_run(tmp_path, settings, warnings_of_engram):
    e = small(**settings)
    direct = outcome(e, tmp_path / "direct")
    warned = warnings_of_engram.messages
    # Of means alone, which one node sends in this process, too.
    for runs in (messages, *([on_a_node] if e.combines else [])):
        warnings_of_engram.clear()
        found = outcome(e, tmp_path / str(runs), runs)
        assert found[:-1] == direct[:-1]
        assert found[-1] == direct[-1] or runs == on_a_node  # losses of arrays that lie elsewhere
        told = warnings_of_engram.messages
        assert [line for line in told if not line.startswith("roster: 20 clients")] == warned
    assert ("diverged" in direct[0]) == (settings.get("eta", 0) > 1)


@pytest.mark.parametrize(
    ("place", "found", "told"),
    [
        ("engram.cohort.trainer.trainer.Trainer.train", None, "no usable reply"),
        ("engram.scoring.score_clients.measure", None, "no client could be scored"),
        ("engram.scoring.score_clients.measure", 2.0, "must lie between 0 and 1, got 2"),
    ],
)
def test_errors_and_impossible_scores_are_told_as_in_a_reply(
    tmp_path, monkeypatch, warnings_of_engram, place, found, told
):
    def fails(*_, **__):
        if found is None:
            raise ValueError("no more\nmemory")
        return torch.full((20,), found)

    monkeypatch.setattr(place, fails)
    e = small(method="ditto")
    stopped, *_ = direct = outcome(e, tmp_path / "direct")
    assert told in stopped
    assert ("memory" in stopped) == (found is None)
    warned = warnings_of_engram.messages
    warnings_of_engram.clear()
    assert outcome(e, tmp_path / "messages", messages) == direct
    assert warnings_of_engram.messages == warned


def test_a_run_that_is_resumed_goes_on_in_the_way_in_which_it_was_trained(tmp_path, monkeypatch):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 10))
    engram.model(lambda: deepcopy(net), "net-of-several-ways")
    e = small(method="fedavg", model="net-of-several-ways", num_rounds=2)
    asked, train = [], Direct.train

    def spy(self, grid, strategy, server_round, model, config, before, *, timeout):
        asked.append(config["way"])
        return train(self, grid, strategy, server_round, model, config, before, timeout=timeout)

    monkeypatch.setattr(Direct, "train", spy)
    for way, settings in (("in-turn", {}), ("vmap", {"resume": str(tmp_path), "num_rounds": 4})):
        monkeypatch.setattr("engram.cohort.trainer.trainer.quickest", lambda *_, way=way: way)
        simulate(e.model_copy(update=settings), tmp_path)
    rows = Run.open(tmp_path).rows()
    assert [row["ways"] for row in rows if "ways" in row] == [{"in-turn": 1}] * 4
    assert asked == ["", *["in-turn"] * 3]  # alike before and after, for nodes that keep replies
