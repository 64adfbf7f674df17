"""Streams, messages, hosting and fingerprints."""

import shutil
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram.core.streams import Stream, generator, torch_generator
from engram.data.schema.columns import Column, Kind, Schema
from engram.link.node_config import NodeConfig, hosted_clients
from engram.settings.errors import Refused
from engram.settings.fingerprint import fingerprint, source_root
from engram.wire.roster import describe_node, read_entry


def test_a_stream_is_a_function_of_its_keys():
    def first(*keys):
        return generator(*keys).integers(2**60)

    assert first(1, Stream.COHORT, 2) == first(1, Stream.COHORT, 2)
    keys = [(1, Stream.COHORT, 2), (2, Stream.COHORT, 2), (1, Stream.SUPPORT, 2)]
    keys += [(1, Stream.COHORT, 3), (1, Stream.LOCAL_STEPS, 3, 0), (1, Stream.LOCAL_STEPS, 3, 1)]
    assert len({first(*key) for key in keys}) == len(keys)
    ours = [torch.rand(3, generator=torch_generator(5, Stream.MODEL)) for _ in range(2)]
    assert torch.equal(*ours)


@given(st.integers(0, 60), st.integers(1, 20))
def test_every_client_is_hosted_once(clients, nodes):
    hosted = [hosted_clients(clients, NodeConfig(node, nodes)) for node in range(nodes)]
    assert sorted(client for part in hosted for client in part) == list(range(clients))
    assert max(map(len, hosted)) - min(map(len, hosted)) <= 1


def test_refuses_a_partition_that_is_none():
    with pytest.raises(Refused, match=r"partition-id must be in 0\.\.2 .*, got 3"):
        hosted_clients(10, NodeConfig(3, 3))


def test_roster_entries_survive_the_wire():
    names = {0: "elm", 7: "park"}
    entry = read_entry(describe_node({4: 20, 7: 40}, Kind("float32[1,8,8]", 10), names))
    assert entry.names == {7: "park"}
    assert entry.clients == {4: 20, 7: 40}
    assert entry.kind == Kind("float32[1,8,8]", 10)
    assert (entry.fingerprint, entry.source) == (fingerprint(), str(source_root()))
    assert read_entry(describe_node({}, Kind("float32[3]", 2))).clients == {}
    assert not entry.own_data
    named = Kind("float32[3]", 2, classes=("cat", "dog"))
    assert read_entry(describe_node({}, named)).kind == Kind.from_row(named.to_json()) == named
    table = named._replace(
        schema=Schema((Column("age"), Column("sex", "category", ("f", "m"))), "median")
    )
    assert read_entry(describe_node({}, table)).kind == Kind.from_row(table.to_json()) == table
    with pytest.raises(ValueError, match="a schema must have 4 inputs, got 3"):
        read_entry(describe_node({}, table._replace(inputs="float32[4]")))
    other = Kind("float32[3]", 2, classes=("dog", "cat"))
    assert other.unlike(named) == (
        "it has inputs float32[3] and 2 outputs (dog, cat), and most nodes have inputs float32[3] "
        "and 2 outputs (cat, dog)"
    )


def test_the_fingerprint_changes_with_any_module(tmp_path):
    def digest(root):
        code = "from engram.settings.fingerprint import fingerprint; print(fingerprint())"
        return subprocess.run(
            [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()

    # As in a wheel: the rooms of the checkout's root are folders, not links.
    shutil.copytree(source_root() / "engram", tmp_path / "engram")
    assert digest(tmp_path) == fingerprint()
    (tmp_path / "engram" / "cli" / "more.py").touch()  # no node runs it
    assert digest(tmp_path) == fingerprint()
    with (tmp_path / "engram" / "client" / "app.py").open("a") as file:
        file.write("\n")
    assert digest(tmp_path) != fingerprint()
