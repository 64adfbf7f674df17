"""Nodes of sites in this process, and messages of a server to them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from engram.client.app import app
from engram.client.requests import Request
from engram.core.slots import flat
from engram.link.flower import name_message, node_context
from engram.settings.errors import REFUSED
from engram.settings.experiment import Experiment
from engram.simulations.grid import InProcessGrid
from engram.wire.wire import ARRAYS, CLIENTS, CONFIG, OWN, ROSTER_QUERY, to_record
from tests.support import initial_model, own_of, small, trainer

TRAINING = "0123456789abcdef"
ROSTER = RecordDict({CONFIG: ConfigRecord({"training": TRAINING})})


def answer_of(e: Experiment, kind: str, content: RecordDict, run: int = 1, **node: Any) -> Message:
    """The answer of a node that hosts client 0; each time to another message."""
    message = Message(content, dst_node_id=7, message_type=kind)
    name_message(message, message.object_id)
    config = {"partition-id": 0, "num-partitions": 1, **node}
    return app(message, node_context(run, 7, config, e.to_config()))


def at(folder: Path) -> dict[str, Any]:
    """A node's settings with its state and its policy in a folder."""
    return {"state": str(folder), "policy": str(folder)}


def ask(
    folder: Path,
    kind: str = ROSTER_QUERY,
    content: RecordDict | None = None,
    *,
    run: int = 1,
    **settings: Any,
) -> Message:
    """The answer of a node with its state, and its policy, in a folder."""
    return answer_of(small(**settings), kind, content or RecordDict(), run, **at(folder))


def model_for(
    e: Experiment,
    server_round: int = 1,
    clients: Sequence[int] = (0,),
    *,
    model: Any = None,
    **config: Any,
) -> RecordDict:
    """A message about a model to clients, by default about that of the run's first round."""
    config = {"server-round": server_round, "training": TRAINING, CLIENTS: [*clients]} | config
    records: dict[str, Any] = {CONFIG: ConfigRecord(config)}
    if model is None:
        t = trainer(e)
        model = initial_model(t)
        if own := flat(own_of(t, list(clients))):
            records[OWN] = to_record(own)
    return RecordDict({ARRAYS: to_record(flat(model)), **records})


def train(folder: Path, server_round: int = 1, **settings: Any) -> Message:
    """As ``ask``, to train client 0."""
    return ask(folder, MessageType.TRAIN, model_for(small(**settings), server_round), **settings)


def refusal(reply: Message) -> str:
    """The line of a refusal."""
    assert reply.has_error(), reply.content
    assert reply.error.code == REFUSED
    assert "\n" not in reply.error.reason
    return reply.error.reason


class Sites(InProcessGrid):
    """A grid of nodes: node i + 1 hosts client i, with its state in ``client-i`` of a folder."""

    def __init__(self, experiment: Experiment, folder: Path, nodes: int) -> None:
        super().__init__(None, [[client] for client in range(nodes)])
        self._config, self._folder, self._nodes = experiment.to_config(), folder, nodes

    def _answer(self, kind: str, requests: Sequence[Request]) -> list[Message]:
        return [self._of(request.message) for request in requests]

    def _of(self, message: Message) -> Message:
        client = message.metadata.dst_node_id - 1
        node = {"partition-id": client, "num-partitions": self._nodes}
        node |= at(self._folder / f"client-{client}")
        return app(message, node_context(1, client + 1, node, self._config))
