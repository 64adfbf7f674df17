"""Flower by its public interface: the names that are imported, and numbers of its own."""

import ast
import importlib

from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.superlink.grid import HttpGrid, InMemoryGrid

from engram.settings.fingerprint import source_root
from engram.simulations.grid import InProcessGrid
from engram.wire.messages import (
    GONE,
    RAISED,
    SUPERLINK,
    is_simulated,
    local_run,
    name_message,
    node_context,
)
from tests.source import source_files

PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
PUBLIC |= {"flwr.simulation"}  # of a benchmark
PRIVATE = {
    # Without it, Message(...) raises in each process that Flower did not start.
    ("flwr.supercore.task_identity", "TaskIdentity"): "engram/wire/messages.py",
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
    assert SUPERLINK == SUPERLINK_NODE_ID
    assert {*GONE} == {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}
    assert RAISED == ErrorCode.CLIENT_APP_RAISED_EXCEPTION


def test_the_grid_of_a_simulation_is_known_by_its_polls():
    class State:
        state = staticmethod(lambda: None)

    assert is_simulated(InMemoryGrid(State))
    assert not is_simulated(HttpGrid(token="any"))
    assert not is_simulated(InProcessGrid(None, []))


def test_a_process_creates_messages_of_a_run_and_they_have_the_names_they_are_given():
    assert local_run(7).run_id == local_run().run_id == 7  # without a number, the one that it has
    message = Message(RecordDict(), 3, MessageType.TRAIN)
    assert (message.metadata.run_id, message.metadata.src_node_id) == (7, SUPERLINK)
    name_message(message, "question")
    reply = Message(RecordDict(), reply_to=message)
    assert reply.metadata.reply_to_message_id == "question"
    assert reply.metadata.src_node_id == 3
    assert node_context(8, 3, {"partition-id": 2}, {}).node_config == {"partition-id": 2}
    assert Message(RecordDict(), 3, MessageType.TRAIN).metadata.run_id == 8
