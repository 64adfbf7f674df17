"""Runs whose clients are trained without messages are those of clients that get messages."""

from copy import deepcopy

import pytest
from torch import nn

import engram
from engram.cohort.trainer.trainer import Trainer
from engram.runs.record import RunRecord
from engram.settings.errors import RunStopped
from engram.simulations.engine import simulate
from tests.support import small

_TIMES = {"ms", "checksum"}


def outcome(e, folder, **how):
    """A run's error, its rows without times, and its last model and memories."""
    try:
        simulate(e, folder, **how)
        stopped = ""
    except RunStopped as error:
        stopped = str(error).replace(str(folder), "")
    record = RunRecord.open(folder)
    rows = [{k: v for k, v in row.items() if k not in _TIMES} for row in record.rows()]
    last = record.load_checkpoint()
    model = {name: leaf.tolist() for name, leaf in last.model.items()}
    return stopped, rows, model, last.memories


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "ditto"},
        {"method": "fedpac"},
        {"method": "pfedhn"},
        {"method": "fedavg", "merge": "median"},
        {"method": "fedavg", "unseen_clients": 3, "max_weight": 1.0},
        {"method": "ditto", "clip": 0.5, "privacy": "local", "noise_multiplier": 1.0},
        {"method": "fedavg", "eta": 1e30},
        {"method": "fedavg", "eta": 1e30, "merge": "median"},
    ],
)
def test_a_run_without_messages_is_that_with_messages(tmp_path, settings, warnings_of_engram):
    e = small(**settings)
    direct = outcome(e, tmp_path / "direct")
    warned = warnings_of_engram.text
    warnings_of_engram.clear()
    assert outcome(e, tmp_path / "messages", through=lambda host: host) == direct
    assert warnings_of_engram.text == warned
    assert ("diverged" in direct[0]) == (settings.get("eta", 0) > 1)


def test_an_error_of_training_is_told_as_one_in_a_reply(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise ValueError("no more\nmemory")

    monkeypatch.setattr(Trainer, "train", fails)
    e = small(method="ditto")
    stopped, *_ = direct = outcome(e, tmp_path / "direct")
    assert "no usable reply" in stopped
    assert "memory" in stopped
    assert outcome(e, tmp_path / "messages", through=lambda host: host) == direct


def test_a_run_that_is_resumed_goes_on_in_the_way_in_which_it_was_trained(tmp_path, monkeypatch):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 10))
    engram.model(lambda: deepcopy(net), "net-of-several-ways")
    e = small(method="fedavg", model="net-of-several-ways", num_rounds=2)
    for way, settings in (("in-turn", {}), ("vmap", {"resume": str(tmp_path), "num_rounds": 4})):
        monkeypatch.setattr("engram.cohort.trainer.trainer.quickest", lambda *_, way=way: way)
        simulate(e.model_copy(update=settings), tmp_path)
    rows = RunRecord.open(tmp_path).rows()
    assert [row["ways"] for row in rows if "ways" in row] == [{"in-turn": 1}] * 4
