"""`engram node` and `engram memory`: what they say, and what they refuse before anything starts."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engram.client.disk_memory import DiskStore
from engram.client.encrypted_file import read_key
from engram.client.training_description import note_training
from engram.data.schema.columns import Kind
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from tests.client.test_memory import params
from tests.samples import entry
from tests.support import assert_same

TRAINING = "0123456789abcdef"


@pytest.fixture
def started(monkeypatch):
    """What a node would have been started with."""
    calls = []
    monkeypatch.setattr(
        "engram.cli.node_cli.run_node", lambda *args, **options: calls.append((args, options))
    )
    return calls


def test_a_node_is_told_who_it_is_and_where_its_things_are(engram, folder, started, monkeypatch):
    Path("own.npz").touch()
    Path("data").mkdir()
    engram("memory", "new-key", "key")
    words = ("--data", "npz:own.npz", "--set", "device=cuda", "--set", "data-dir=data")
    bounds = ("--memory-key", "key", "--memory-limit", 5, "--memory-days", 9)
    bounds += ("--max-message", 1.5)
    status, _, err = engram("node", folder, *words, *bounds)
    assert status == 0
    assert err.endswith("Z INFO [engram] connecting to the server at 127.0.0.1:9092\n")
    ((credentials, state, config), options) = started[0]
    here = Path.cwd()
    assert (credentials.partition_id, state) == (1, here / folder / "state")
    told = {"partition-id": 1, "num-partitions": 2}
    told |= {"asked-by": "127.0.0.1:9092, by its certificate"}
    told |= {key: str(here / folder) for key in ("policy", "identity")}
    told |= {"state": str(here / folder / "state"), "data-dir": str(here / "data")}
    told |= {"data": f"npz:{here / 'own.npz'}", "device": "cuda"}
    told |= {"memory-key": str(here / "key"), "memory-limit": 5, "memory-days": 9}
    assert config == told
    assert options["max_message"] == 3 * 2**19


def test_bad_input_is_one_line_and_starts_nothing(engram, folder, started):
    for words, says in [
        (["--data", "npz:none.npz"], "the data none.npz are not there"),
        (["--data", "images:none"], "the data none are not there: name a file or folder"),
        (["--set", "data-dir=none"], "is not there: name the folder of the data"),
        (["--set", "alpha=1"], "--set must be KEY=VALUE with one of data-dir, device"),
        (["--set", "cpu-threads=many"], "cpu-threads must be a valid integer, got 'many'"),
        (["--memory-key", "none"], "the key none cannot be read"),
        (["--memory-limit", "-1"], "-1"),
    ]:
        with entry(says):
            status, out, err = engram("node", folder, *words)
            assert (status, out) == (2, "")
            assert err.startswith("engram: ")
            assert says in err
            assert err.count("\n") == 1
            assert not started
            assert not (folder / "state").exists()


def remember(folder, key=None):
    store = DiskStore(folder / "state" / "memory" / TRAINING, key=key)
    for server_round in (3, 7):
        store.save(1, params(server_round), server_round=server_round, durable=3)


def test_memories_are_listed_by_time_and_coefficients_have_heads(engram, folder):
    for name, method, written in (("0" * 16, "fedavg", 1e9), ("f" * 16, "molar", 2e9)):
        training = folder / "state" / "memory" / name
        DiskStore(training).save(1, {"age": torch.arange(5.0)}, server_round=3, durable=0)
        note_training(training, Experiment.from_config({"method": method}), Kind(), "", 17)
        for path in training.rglob("*"):
            os.utime(path, (written, written))
    listed = json.loads(engram("memory", "list", folder, "--json")[1])
    assert [entry["method"] for entry in listed] == ["molar", "fedavg"]
    out = engram("memory", "show", folder, "f" * 16, 1)[1]
    assert re.findall(r"coef|low|high|own|shared", out) == ["coef", "low", "high", "own", "shared"]
    assert re.search(r"age .*\(5,\) .*0 .*1 .*2 .*3 .*4", out)
    assert "norm or numbers" in engram("memory", "show", folder, "0" * 16, 1)[1]


def test_memories_are_listed_shown_exported_and_forgotten(engram, folder):
    remember(folder)
    status, out, _ = engram("memory", "list", folder, "--json")
    (entry,) = json.loads(out)
    assert (entry["training"], entry["client"], entry["server_round"]) == (TRAINING, 1, 7)
    assert TRAINING in engram("memory", "list", folder)[1]
    out = engram("memory", "show", folder, TRAINING, 1)[1]
    assert "(2, 3)" in out
    assert engram("memory", "export", folder, TRAINING, 1, "mine.safetensors")[0] == 0
    assert_same(load_file("mine.safetensors"), params(7))
    status, _, err = engram("memory", "export", folder, TRAINING, 1, "mine.safetensors")
    assert (status, "is there already" in err) == (2, True)
    where = Path("mine.safetensors").absolute()
    _, out, _ = engram("log", folder)
    exported = f"what client 1 of training {TRAINING} remembers was exported to {where}"
    assert f"this node: {exported}" in out
    for kept in ("contents/17", "replies.encrypted/17"):  # as the link keeps what comes and goes
        (folder / "state" / kept).mkdir(parents=True)
    _, out, _ = engram("memory", "forget", folder, TRAINING)
    assert not [*folder.glob("state/contents*"), *folder.glob("state/replies*")]
    exported = f"exported from {TRAINING}, delete it, too: {where}"
    assert out.splitlines() == [f"forgotten: {TRAINING}", exported]
    assert json.loads(engram("memory", "list", folder, "--json")[1]) == []
    assert "nothing" in engram("memory", "forget", folder)[1]


def test_encrypted_memories_need_their_key(engram, folder):
    engram("memory", "new-key", "key")
    assert Path("key").stat().st_mode & 0o777 == 0o600
    remember(folder, read_key(Path("key")))
    where = (folder, TRAINING, 1)
    status, _, err = engram("memory", "show", *where)
    assert (status, "no key is given" in err) == (1, True)
    assert engram("memory", "show", *where, "--memory-key", "key")[0] == 0
    status, _, err = engram("memory", "new-key", "key")
    assert (status, "is there already" in err) == (2, True)
    status, _, err = engram("memory", "new-key", "key/x")
    assert (status, err) == (2, "engram: the key key/x cannot be written: Not a directory\n")
    status, _, err = engram("memory", "export", *where, "key/x.safetensors", "--memory-key", "key")
    assert (status, err) == (2, "engram: key/x.safetensors cannot be written: Not a directory\n")
    Path("key").chmod(0o644)
    with pytest.raises(Refused, match="others may read the key key: chmod 600 key"):
        read_key(Path("key"))


def test_memories_from_before_the_key_are_encrypted(engram, folder):
    remember(folder)
    engram("memory", "new-key", "key")
    where = (folder, TRAINING, 1, "--memory-key", "key")
    status, _, err = engram("memory", "show", *where)
    assert (status, "`engram memory encrypt`" in err) == (1, True)
    damaged = folder / "state" / "memory" / "ffff" / "client-1" / "round-1.memory"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"x")
    status, _, err = engram("memory", "encrypt", folder, "--memory-key", "key")
    assert (status, str(damaged) in err) == (1, True)
    assert "`engram memory encrypt`" in engram("memory", "show", *where)[2]
    shutil.rmtree(damaged.parents[1])
    assert "2 memories" in engram("memory", "encrypt", folder, "--memory-key", "key")[1]
    assert engram("memory", "show", *where)[0] == 0


def test_memories_that_are_not_there(engram, folder):
    remember(folder)
    for words, says in [
        (["list", "nowhere"], "nowhere/state is not there"),
        (["show", "fed/client-1", "0" * 16, "1"], "has no memory of client 1"),
        (["show", "fed/client-1", TRAINING, "5"], "has no memory of client 5"),
        (["forget", "fed/client-1", "0" * 16], "has no training"),
        (["forget", "fed/client-1", ""], "has no training ''"),
        (["forget", "fed/client-1", ".."], "has no training '..'"),
    ]:
        with entry(says):
            status, out, err = engram("memory", *words)
            assert (status, out) == (2, "")
            assert says in err


def test_nothing_is_forgotten_under_a_running_node(engram, folder):
    from engram.link.node.node import only_one

    remember(folder)
    with only_one(folder / "state"):
        status, _, err = engram("memory", "forget", folder)
    assert (status, "another node runs" in err) == (2, True)
    assert len(json.loads(engram("memory", "list", folder, "--json")[1])) == 1
