"""The contract of a memory store, over both; and what only a disk has to survive."""

import errno
import os
from pathlib import Path

import pytest

from engram.client.disk_memory import DiskStore, MemoryFull
from engram.client.memory import MemoryMismatch, RamStore
from engram.client.training_folders import kept, prune
from tests.samples import entry
from tests.support import assert_same, draw


def params(seed):
    return {"a": draw(seed, 2, 3).float(), "b": draw(seed + 1, 4)}


@pytest.fixture(params=["ram", "disk"])
def store(request, tmp_path):
    return RamStore() if request.param == "ram" else DiskStore(tmp_path / "memories")


def test_returns_what_was_saved_and_to_nobody_else(store):
    assert store.load(3, before=2) is None
    store.save(3, params(1), server_round=1, durable=0)
    assert_same(store.load(3, before=2), params(1))
    assert store.load(4, before=2) is None


def test_a_round_that_is_run_again_starts_from_the_memory_it_started_from(store):
    store.save(3, params(1), server_round=1, durable=0)
    store.save(3, params(2), server_round=5, durable=4)
    assert_same(store.load(3, before=5), params(1))
    assert_same(store.load(3, before=6), params(2))
    store.save(3, params(3), server_round=5, durable=4)
    assert_same(store.load(3, before=5), params(1))
    assert_same(store.load(3, before=9), params(3))


def test_ram_comes_back_from_bytes():
    store, again = RamStore(), RamStore()
    for client in (3, 11):
        store.save(client, params(client), server_round=1, durable=0)
        store.save(client, params(client + 1), server_round=client, durable=0)
    again.save(5, params(0), server_round=1, durable=0)
    again.restore(store.dump())
    assert_same(again.load(11, before=12), params(12))
    assert again.load(11, before=11) is None  # only the newest is kept
    assert again.load(5, before=9) is None


def test_an_empty_store_comes_back_empty():
    store = RamStore()
    store.restore(RamStore().dump())
    assert store.load(0, before=9) is None


def test_disk_keeps_what_a_resumed_run_can_ask_for_and_no_more(tmp_path):
    store = DiskStore(tmp_path)
    for server_round in range(1, 9):
        store.save(
            3, params(server_round), server_round=server_round, durable=5 * (server_round > 5)
        )
    # Checkpoint 5 is the last: a run resumed at round 6 asks for the memory of round 5.
    assert_same(store.load(3, before=6), params(5))
    assert_same(store.load(3, before=9), params(8))
    rounds = sorted(int(path.stem[6:]) for path in (tmp_path / "client-3").iterdir())
    assert rounds == [5, 6, 7, 8]


def test_disk_forgets_what_an_attempt_before_made_of_later_rounds(tmp_path):
    # A run was killed in round 7 and is resumed after round 5: 6 and 7 will be made anew.
    store = DiskStore(tmp_path)
    for server_round in (5, 6, 7):
        store.save(3, params(server_round), server_round=server_round, durable=5)
    store.save(3, params(1), server_round=6, durable=5)
    assert_same(store.load(3, before=9), params(1))


@pytest.mark.parametrize("instant", ["fsync", "replace"])
def test_a_crash_while_saving_leaves_the_old_memory(tmp_path, monkeypatch, instant):
    store = DiskStore(tmp_path)
    store.save(3, params(1), server_round=1, durable=0)

    def crash(*args):
        raise KeyboardInterrupt

    owner = os if instant == "fsync" else Path
    with monkeypatch.context() as patch:
        patch.setattr(owner, instant, crash)
        with pytest.raises(KeyboardInterrupt):
            store.save(3, params(2), server_round=2, durable=1)
    assert_same(store.load(3, before=9), params(1))


def test_a_damaged_file_and_anothers_in_its_place_are_named(tmp_path):
    for key in (None, b"k" * 32):
        store = DiskStore(tmp_path / str(key), key=key)
        for client in (3, 4):
            store.save(client, params(client), server_round=1, durable=0)
        path, theirs = (store.folder / f"client-{n}" / "round-1.memory" for n in (3, 4))
        whole = path.read_bytes()
        flipped = whole[:-1] + bytes([whole[-1] ^ 1])
        for data in (whole[:60], flipped, b"", b"x" * 99, theirs.read_bytes()):
            path.write_bytes(data)
            says = r"round-1\.memory cannot be used: .*; remove it"
            with entry(key, data), pytest.raises(MemoryMismatch, match=says):
                store.load(3, before=2)


def test_an_encrypted_memory_needs_its_key(tmp_path):
    key, other = b"k" * 32, b"o" * 32
    DiskStore(tmp_path, key=key).save(3, params(1), server_round=1, durable=0)
    assert_same(DiskStore(tmp_path, key=key).load(3, before=2), params(1))
    for wrong, reason in ((None, "no key is given"), (other, "another key")):
        with pytest.raises(MemoryMismatch, match=reason):
            DiskStore(tmp_path, key=wrong).load(3, before=2)
    written = (tmp_path / "client-3" / "round-1.memory").read_bytes()
    assert params(1)["a"].numpy().tobytes() not in written


def test_a_full_disk_costs_a_line_and_the_old_memory_stays(tmp_path, monkeypatch):
    store = DiskStore(tmp_path)
    store.save(3, params(1), server_round=1, durable=0)

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(MemoryFull, match=r"client 3's .*No space left.* the old one stays"):
            store.save(3, params(2), server_round=2, durable=1)
    assert_same(store.load(3, before=9), params(1))
    assert [path.name for path in (tmp_path / "client-3").iterdir()] == ["round-1.memory"]


def test_the_bound_counts_what_is_there_and_what_goes(tmp_path):
    probe = DiskStore(tmp_path / "probe")
    probe.save(1, params(1), server_round=1, durable=0)
    size = (tmp_path / "probe" / "client-1" / "round-1.memory").stat().st_size
    store = DiskStore(tmp_path / "bound", limit=3 * size)
    for server_round in range(1, 20):  # two versions of one client, and never more
        store.save(1, params(1), server_round=server_round, durable=server_round - 1)
    store.save(2, params(2), server_round=1, durable=0)
    again = DiskStore(tmp_path / "bound", limit=3 * size)
    with pytest.raises(MemoryFull, match="does not fit the bound"):
        again.save(3, params(3), server_round=1, durable=0)
    assert again.clients() == [1, 2]


def test_a_training_that_has_ended_is_forgotten_in_time(tmp_path):
    for name in ("old", "young", "own"):
        DiskStore(tmp_path / name).save(1, params(1), server_round=1, durable=0)
    for name in ("old", "own"):
        for path in (tmp_path / name).rglob("*"):
            os.utime(path, (0, 0))
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / "stray").touch()
    prune(tmp_path / "own", days=None)
    assert {entry.training for entry in kept(tmp_path)} == {"old", "young", "own"}
    prune(tmp_path / "own", days=1)
    assert {entry.training for entry in kept(tmp_path)} == {"young", "own"}
