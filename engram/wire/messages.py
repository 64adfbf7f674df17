"""Flower's messages in processes that Flower did not start.

This is the one module that uses what Flower does not document: who a process is, without which
``Message(...)`` raises, and a message's id, which has no setter. tests/wire/test_messages.py lists
all modules of Flower that are imported.
"""

from typing import Any, Final, NamedTuple

from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

SUPERLINK: Final = 1  # the sender of replies that no node has sent
RAISED: Final = 2  # Flower's error code for an exception in a ClientApp
GONE: Final = (3, 5)  # likewise: a message is no longer there, or its node
_INTERVAL: Final = "pull_interval"  # an attribute of the grid of Flower's simulation alone


class LocalRun(NamedTuple):
    """The part of Flower's run that its grids are asked for."""

    run_id: int


def local_run(run_id: int | None = None) -> LocalRun:
    """Lets this process create messages of a run; without a number, of the one that it has."""
    if run_id is not None or TaskIdentity._run_id is None:
        _begin(run_id or 1, SUPERLINK)
    return LocalRun(TaskIdentity.run_id)


def node_context(run_id: int, node_id: int, node_config: Any, run_config: Any) -> Context:
    """Builds a ClientApp's context, and lets this process create messages as the node."""
    _begin(run_id, node_id)
    return Context(run_id, node_id, node_config, RecordDict(), run_config)


def _begin(run_id: int, node_id: int) -> None:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, node_id


def name_message(message: Message, message_id: str) -> None:
    """Sets a message's id, as each grid of Flower does when it sends one."""
    message.metadata.__dict__["_message_id"] = message_id


def is_simulated(grid: object) -> bool:
    """Whether a grid's nodes are Ray's: all there from the beginning, with none joining later."""
    return hasattr(grid, _INTERVAL)
