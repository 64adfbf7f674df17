"""What was sealed comes back whole, or is said to be damaged, whatever became of the file."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.client.disk_memory import DiskStore
from engram.client.encrypted_file import Damaged, Unencrypted, read_key, seal, unseal
from engram.client.memory import MemoryMismatch
from engram.settings.errors import Refused
from tests.client.test_memory import params

KEY = b"k" * 32
KINDS = pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])


@KINDS
def test_every_cut_and_every_changed_byte_is_damage(key):
    whole = seal(b"what is kept", "client 1", key)
    assert unseal(whole, "client 1", key) == b"what is kept"
    for length in range(len(whole)):
        with pytest.raises(Damaged):
            unseal(whole[:length], "client 1", key)
    for place in range(len(whole)):
        for bits in (1, 0x80, 0xFF, whole[place] ^ ord("p"), whole[place] ^ ord("e")):
            data = bytearray(whole)
            data[place] ^= bits
            if bytes(data) != whole:
                with pytest.raises(Damaged):
                    unseal(bytes(data), "client 1", key)


@KINDS
@given(data=st.binary(max_size=80), start=st.booleans())
def test_anything_else_is_damage(key, data, start):
    with pytest.raises(Damaged):
        unseal((b"engram sealed 1\n" if start else b"") + data, "client 1", key)


def test_with_a_key_what_was_made_without_it_is_refused():
    with pytest.raises(Unencrypted, match="is not encrypted, although there is a key"):
        unseal(seal(b"x", "client 1", None), "client 1", KEY)
    with pytest.raises(Damaged, match="no key is given"):
        unseal(seal(b"x", "client 1", KEY), "client 1", None)


def test_nothing_is_encrypted_where_a_memory_is_damaged(tmp_path):
    for client in (2, 3):
        DiskStore(tmp_path).save(client, params(1), server_round=1, durable=0)
    path = tmp_path / "client-3" / "round-1.memory"
    path.write_bytes(path.read_bytes()[:-1])
    before = {each: each.read_bytes() for each in tmp_path.glob("*/*.memory")}
    with pytest.raises(MemoryMismatch, match="its checksum is wrong"):
        DiskStore(tmp_path, key=KEY).encrypt()
    assert {each: each.read_bytes() for each in before} == before


def test_a_file_that_is_no_file_does_not_block(tmp_path):
    (tmp_path / "client-3").mkdir()
    os.mkfifo(tmp_path / "client-3" / "round-1.memory")
    with pytest.raises(MemoryMismatch, match="Not a regular file"):
        DiskStore(tmp_path).load(3, before=2)
    os.mkfifo(tmp_path / "key")
    with pytest.raises(Refused, match="cannot be read: Not a regular file"):
        read_key(tmp_path / "key")


def test_files_of_other_names_are_not_memories(tmp_path):
    DiskStore(tmp_path).save(3, params(1), server_round=1, durable=0)
    for name in ("client-x", "client-", "client-٣", "client-3/round-x.memory"):
        (tmp_path / name).mkdir()
    store = DiskStore(tmp_path)
    assert (store.clients(), list(store.versions(3))) == ([3], [1])
