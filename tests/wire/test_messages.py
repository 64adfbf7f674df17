"""Flower by its public interface: the names that are imported, and numbers of its own."""

import ast
import importlib

import numpy as np
import pytest
import torch
from flwr.app import Array, ConfigRecord, MessageType, MetricRecord
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.superlink.grid import HttpGrid, InMemoryGrid

from engram.settings.errors import Refused
from engram.settings.fingerprint import source_root
from engram.wire import flower
from engram.wire.messages import EVALUATE, RAISED, TRAIN
from tests.samples import entry
from tests.source import source_files

PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
PUBLIC |= {"flwr.simulation"}  # of a benchmark
PRIVATE = {
    # Without it, Message(...) raises in each process that Flower did not start.
    ("flwr.supercore.task_identity", "TaskIdentity"): "engram/wire/flower.py",
}


def taken(path):
    """Yields the modules of Flower that a file imports, and the names that it takes from them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (
                (each.name, "") for each in node.names if f"{each.name}.".startswith("flwr.")
            )
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("flwr."):
            yield from ((node.module, each.name) for each in node.names)


def test_each_name_of_flower_is_one_that_it_documents():
    rooms = "engram", "client", "server", "simulations", "strategies", "benchmarks"
    found = {(*name, path) for path in source_files(*rooms) for name in taken(path)}
    public = {each for each in found if each[0] in PUBLIC}
    ours = {each: source_root() / path for each, path in PRIVATE.items()}
    assert {(module, name): path for module, name, path in found - public} == ours
    for module, name, path in public:
        assert name in importlib.import_module(module).__all__, path


def test_numbers_are_flowers_own():
    assert flower._SUPERLINK == SUPERLINK_NODE_ID
    assert {*flower._GONE} == {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}
    assert RAISED == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert (TRAIN, EVALUATE) == (MessageType.TRAIN, MessageType.EVALUATE)


def test_the_grid_of_a_simulation_is_known_by_its_polls():
    class State:
        state = staticmethod(lambda: None)

    assert flower.is_simulated(InMemoryGrid(State))
    assert not flower.is_simulated(HttpGrid(token="any"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
def test_arrays_are_written_as_flower_writes_them_and_read_back(dtype):
    for shape in [(), (0,), (3,), (2, 3), (4, 1, 2)]:
        with entry(shape):
            array = np.array(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5, dtype=dtype)
            theirs = Array(array)
            assert flower.to_flower({"r": {"a": torch.from_numpy(array)}})["r"]["a"] == theirs
            read = flower.from_flower({"r": {"a": theirs}})["r"]["a"]
            assert read.numpy().dtype == array.dtype
            assert np.array_equal(read, array)
            read.fill_(1)  # what is read is the reader's own, and can be written to


def test_arrays_that_others_write_column_by_column_are_read_as_they_are():
    array = np.asfortranarray(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    assert np.array_equal(flower.from_flower({"r": {"a": Array(array)}})["r"]["a"], array)


def test_content_is_in_records_of_flowers_types_and_messages_share_tensors():
    model, shared = {"w": torch.ones(2)}, {}
    content = {"arrays": model, "metrics": {"loss": 0.5}, "config": {"n": [1, 2]}, "own": {}}
    first, second = (flower.to_flower(content, shared) for _ in range(2))
    assert isinstance(first["metrics"], MetricRecord)
    assert isinstance(first["config"], ConfigRecord)
    assert first["arrays"] is second["arrays"]
    found = flower.from_flower(first)
    assert torch.equal(found["arrays"].pop("w"), torch.ones(2))
    assert found == {"arrays": {}, "metrics": {"loss": 0.5}, "config": {"n": [1, 2]}, "own": {}}


def test_an_array_that_is_not_what_it_is_declared_to_be_is_refused():
    array = Array(np.ones((2, 3), np.float32))
    for change in ({"shape": (10**12,)}, {"dtype": "object"}, {"stype": "pickle"}, {"data": b""}):
        said = {key: getattr(array, key) for key in ("dtype", "shape", "stype", "data")}
        with pytest.raises(Refused, match="array 'w' cannot be read"):
            flower.from_flower({"arrays": {"w": Array(**said | change)}})
