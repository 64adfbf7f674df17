"""Every name of Flower that is not public API. Written for flwr 1.39.0.

For a later release: check that each import still exists, that ``Message`` still asks
``TaskIdentity`` who it is from, and that ``Metadata`` still keeps its id in ``_message_id``.
"""

from flwr.app import Message
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["Run", "local_run", "name_message"]


def local_run(run_id: int = 1) -> Run:
    """Gives this process the identity that Flower gives to those it starts; returns its run.

    Without it ``Message(...)`` raises. A process that Flower started keeps what it has.
    """
    if TaskIdentity._run_id is None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, 1
    return Run.create_empty(TaskIdentity.run_id)


def name_message(message: Message, message_id: str) -> None:
    """Gives a message its id, as a SuperLink does on arrival."""
    message.metadata.__dict__["_message_id"] = message_id
