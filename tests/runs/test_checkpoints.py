"""Checkpoints: damage is found, the one before is used, and a crash leaves one at any instant."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch

from engram.client.disk_memory import DiskStore
from engram.client.memory import RamStore
from engram.runs.checkpoints import (
    DamagedCheckpoint,
    Written,
    checkpoints_in,
    drop_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from engram.runs.run import Run
from engram.runs.writer import RunWriter
from engram.settings.errors import Refused
from engram.wire.checksums import summed
from tests.server.test_run import Counter, Killed, numbers, run
from tests.support import assert_same, small

FILES = {"model.safetensors": b"m" * 9, "state.safetensors": b"s" * 5}
CARRY = {"memory": "carry", "num_clients": 6, "clients_per_round": 3, "checkpoint_every": 1}


def flip(path, count, seed=0):
    data, rng = bytearray(path.read_bytes()), random.Random(seed)
    for place in rng.sample(range(8 * len(data)), count):
        data[place // 8] ^= 1 << place % 8
    path.write_bytes(bytes(data))


# --- The files -------------------------------------------------------------------------------


def test_every_changed_byte_and_every_cut_is_found(tmp_path):
    write_checkpoint(tmp_path, 3, FILES)
    folder = tmp_path / "round-3"
    assert read_checkpoint(folder, 3) == FILES
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for place in range(len(whole)):
            data = bytearray(whole)
            data[place] ^= 1 << place % 8
            path.write_bytes(bytes(data))
            with pytest.raises(DamagedCheckpoint):
                read_checkpoint(folder, 3)
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(DamagedCheckpoint):
                read_checkpoint(folder, 3)
        path.write_bytes(whole)


def test_what_is_missing_too_much_or_of_another_round_is_found(tmp_path):
    written = Written()
    write_checkpoint(tmp_path / "picked", 3, FILES, written)
    write_checkpoint(tmp_path, 3, FILES, written)
    folder = tmp_path / "round-3"
    for name in FILES:  # once on the disk, until both are dropped
        assert (folder / name).samefile(tmp_path / "picked" / "round-3" / name)
    drop_checkpoint(tmp_path / "picked" / "round-3")
    assert read_checkpoint(folder, 3) == FILES
    with pytest.raises(DamagedCheckpoint, match="does not describe it"):
        read_checkpoint(folder, 4)
    (folder / "memory.safetensors").touch()
    with pytest.raises(DamagedCheckpoint, match="instead of"):
        read_checkpoint(folder, 3)
    (folder / "memory.safetensors").unlink()
    (folder / "state.safetensors").unlink()
    with pytest.raises(DamagedCheckpoint, match="instead of"):
        read_checkpoint(folder, 3)
    os.mkfifo(folder / "state.safetensors")
    with pytest.raises(DamagedCheckpoint, match="Not a regular file"):
        read_checkpoint(folder, 3)
    (folder / "manifest.json").unlink()
    with pytest.raises(DamagedCheckpoint, match=r"its manifest\.json cannot be read"):
        read_checkpoint(folder, 3)


def test_the_last_two_are_kept(tmp_path):
    for number in (0, 2, 4, 10):
        write_checkpoint(tmp_path, number, FILES)
    (tmp_path / "round-x").mkdir()
    assert list(checkpoints_in(tmp_path)) == [4, 10]


def test_a_crash_at_any_instant_leaves_what_there_was_or_the_new_one(tmp_path, monkeypatch):
    def crash_before(fatal, root):
        counter = Counter(fatal)
        with monkeypatch.context() as patch:
            for owner, name in (
                *((os, name) for name in ("fsync", "unlink", "rmdir")),
                *((Path, name) for name in ("rename", "mkdir", "open")),
                (shutil, "rmtree"),
            ):
                patch.setattr(owner, name, counter.wrap(getattr(owner, name)))
            try:
                write_checkpoint(root, 4, FILES)
            except Killed:
                return True
        return False

    fatal = 0
    while True:
        fatal += 1
        root = tmp_path / str(fatal)
        for number in (1, 2):
            write_checkpoint(root, number, FILES)
        crashed = crash_before(fatal, root)
        whole = []
        for number, folder in checkpoints_in(root).items():
            assert read_checkpoint(folder, number) == FILES
            whole.append(number)
        assert whole in ([1, 2], [1, 2, 4], [2, 4])
        write_checkpoint(root, 5, FILES)
        assert len(checkpoints_in(root)) == 2
        if not crashed:
            break
    assert fatal > 12


# --- A run -----------------------------------------------------------------------------------


def test_a_damaged_newest_checkpoint_costs_rounds_and_no_numbers(tmp_path, warnings_of_engram):
    run(tmp_path / "whole", num_rounds=5, **CARRY)
    run(tmp_path / "part", num_rounds=3, **CARRY)
    names = ("model.safetensors", "state.safetensors", "memory.safetensors", "manifest.json")
    for name in names:
        folder = tmp_path / name
        shutil.copytree(tmp_path / "part", folder)
        flip(folder / "checkpoints" / "round-3" / name, 4)
        run(folder, resume=str(folder), num_rounds=5, **CARRY)
        assert numbers(folder) == numbers(tmp_path / "whole")
        (noted,) = Run.open(folder).config["damaged"]
        assert (noted["resumed-from"], list(noted["checkpoints"])) == (2, ["round-3"])
        assert "that of round 2 is used instead" in warnings_of_engram.text
        assert list(Run.open(folder).checkpoints()) == [4, 5]
        warnings_of_engram.clear()


def test_memories_on_the_clients_are_there_for_the_checkpoint_before(tmp_path):
    settings = CARRY | {"checkpoint_every": 2}
    run(tmp_path / "whole", DiskStore(tmp_path / "a"), num_rounds=8, **settings)
    store, folder = DiskStore(tmp_path / "b"), tmp_path / "part"
    run(folder, store, num_rounds=6, **settings)
    flip(folder / "checkpoints" / "round-6" / "model.safetensors", 1000)
    run(folder, store, resume=str(folder), num_rounds=8, **settings)
    assert numbers(folder) == numbers(tmp_path / "whole")


def test_when_all_are_damaged_they_are_named_and_nothing_is_changed(tmp_path):
    folder = tmp_path / "run"
    run(folder, num_rounds=3, **CARRY)
    for number in (2, 3):
        flip(folder / "checkpoints" / f"round-{number}" / "model.safetensors", 1)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(Refused, match=r"round-3: .*; round-2: .*or remove .*checkpoints") as caught:
        run(folder, resume=str(folder), num_rounds=5, **CARRY)
    assert "\n" not in str(caught.value)
    before[folder / "config.json"] = (folder / "config.json").read_bytes()  # rewritten
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    shutil.rmtree(folder / "checkpoints")
    run(folder, resume=str(folder), num_rounds=5, **CARRY)
    run(tmp_path / "whole", num_rounds=5, **CARRY)
    assert numbers(folder) == numbers(tmp_path / "whole")


def test_tensors_of_another_model_are_refused(tmp_path):
    run(tmp_path / "run", num_rounds=2)
    run(tmp_path / "other", num_rounds=2, hidden="9")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", tmp_path / "run" / "checkpoints")
    told = (
        r"begun with another model .*model.safetensors: .* of shape \(9.*: resume it with the netw"
    )
    with pytest.raises(Refused, match=told) as caught:
        run(tmp_path / "run", resume=str(tmp_path / "run"), num_rounds=3)
    assert "damaged" not in str(caught.value)
    flip(tmp_path / "run" / "checkpoints" / "round-2" / "model.safetensors", 4)
    with pytest.raises(Refused, match=r"begun with another model .*round-2: the checksum of model"):
        run(tmp_path / "run", resume=str(tmp_path / "run"), num_rounds=3)


def test_durable_is_the_older_of_the_two(tmp_path):
    told = []

    class Store(RamStore):
        def save(self, client, memory, *, server_round, durable):
            told.append((server_round, durable))
            super().save(client, memory, server_round=server_round, durable=durable)

    run(tmp_path / "run", Store(), num_rounds=6, **CARRY | {"checkpoint_every": 2})
    assert sorted(set(told)) == [(1, 0), (2, 0), (3, 0), (4, 0), (5, 2), (6, 2)]


# --- What else a run is recorded in ----------------------------------------------------------


@pytest.fixture
def record(tmp_path):
    made = RunWriter.create(tmp_path / "run", small(), engine="vectorized", training="0" * 16)
    for number in range(4):
        made.append({"round": number, "accuracy": 0.1 * number, "absent": {3: "no reply"}})
    return made


def test_a_cut_line_is_left_out_and_a_damaged_one_is_said(record, warnings_of_engram):
    path = record.folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines)[:-9])
    assert [row["round"] for row in record.rows()] == [0, 1, 2]
    assert not warnings_of_engram.text
    for damage in (
        *(b"\xff\n", b"[1]\n", b'{"round": "1"}\n', b'{"round": 1, "accuracy": 0.1}\n', b"\n"),
        lines[1].replace(b"0.1", b"0.7"),
    ):
        path.write_bytes(b"".join([lines[0], damage, *lines[2:]]))
        assert [row["round"] for row in Run.open(record.folder).rows()] == [0, 2, 3]
        assert "metrics.jsonl: lines [2] are damaged, and left out" in warnings_of_engram.text
        warnings_of_engram.clear()


def test_a_changed_setting_in_the_record_is_found(record):
    path = record.folder / "config.json"
    assert record.config["settings"] == small().to_config()
    path.write_text(path.read_text().replace('"local-moml.eta": 0.05', '"local-moml.eta": 0.3'))
    for text in (path.read_text(), path.read_text().replace("crc32", "crc")):
        path.write_text(text)
        with pytest.raises(Refused, match=r"damaged: its checksum is missing or wrong; .*--set"):
            _ = record.config
    path.write_text(json.dumps(summed({"format": 2, "settings": 3, "engine": "x", "training": ""})))
    with pytest.raises(Refused, match="settings must be an object, got 3"):
        _ = record.config
    path.write_text("[" * 100_000)
    with pytest.raises(Refused, match=r"config\.json is damaged"):
        _ = record.config


def test_a_checkpoint_whose_metrics_are_lost_is_not_gone_on_from(tmp_path):
    run(tmp_path / "run", num_rounds=3, **CARRY)
    record = Run.open(tmp_path / "run")
    path = record.folder / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert record.load_checkpoint().server_round == 2
    model, state = record.load_checkpoint().model, record.load_checkpoint().state
    assert_same(record.load_checkpoint(lambda clients: (model, state)).model, model)
    with pytest.raises(Refused, match="begun with another model"):
        record.load_checkpoint(
            lambda clients: ({k: v.to(torch.float64) for k, v in model.items()}, None)
        )


def test_a_run_that_cannot_be_gone_on_with_stays_as_it_is(tmp_path):
    folder = tmp_path / "run"
    run(folder, num_rounds=2, **CARRY)

    def refused(words):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        with pytest.raises(Refused, match=words):
            run(folder, resume=str(folder), num_rounds=3, **CARRY)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before

    scores = folder / "scores.jsonl"
    scores.rename(tmp_path / "elsewhere")
    scores.symlink_to(tmp_path / "elsewhere")
    refused(r"scores\.jsonl cannot be read")
    for path in folder.glob("checkpoints/*/model.safetensors"):
        flip(path, 4)
    refused(r"each checkpoint in .* is damaged")


def test_rows_that_are_lost_are_said_and_trained_again(tmp_path, warnings_of_engram):
    settings = CARRY | {"checkpoint_every": 9}
    run(tmp_path / "whole", num_rounds=2, **settings)
    folder = shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    os.truncate(folder / "metrics.jsonl", 40)
    warnings_of_engram.clear()
    record = Run.open(folder)
    assert (record.rows(), record.rows()) == ([], [])
    (line,) = warnings_of_engram.messages
    assert "metrics.jsonl is damaged: it lacks the last 2 of 2 rounds; --resume" in line
    run(folder, resume=str(folder), num_rounds=2, **settings)
    assert numbers(folder) == numbers(tmp_path / "whole")
    assert [row["round"] for row in record.scores()] == [0, 2]
    assert record.config["damaged"][0]["resumed-from"] == 0
