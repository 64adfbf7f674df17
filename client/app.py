"""The ClientApp: the same for Ray's workers and for real nodes."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from client.handlers import Request, answer_evaluate, answer_roster, answer_train
from client.memory import DiskStore
from client.trainer import Trainer
from federation.data.federated import federated_data
from federation.errors import EngramError, Refused
from federation.experiment import Experiment
from federation.hosting import hosted_clients, memory_folder
from federation.wire import REFUSED

__all__ = ["app"]

app = ClientApp()


@app.query("roster")
def roster(message: Message, context: Context) -> Message:
    """Answers which clients this node hosts, and from which source."""
    return _answer(message, context, answer_roster)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains the node's clients that the message names."""
    return _answer(message, context, lambda trainer, request: answer_train(trainer, [request])[0])


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Scores the node's clients."""
    return _answer(
        message, context, lambda trainer, request: answer_evaluate(trainer, [request])[0]
    )


def _answer(
    message: Message, context: Context, answer: Callable[[Trainer, Request], Message]
) -> Message:
    try:
        return answer(*_open(message, context))
    except EngramError as error:  # one line for the server, instead of Flower's traceback
        return Message(Error(REFUSED, str(error)), reply_to=message)


def _open(message: Message, context: Context) -> tuple[Trainer, Request]:
    experiment = Experiment.from_config(context.run_config)
    trainer = _trainer(experiment, memory_folder(experiment, context.run_id))
    keys = context.node_config.get("partition-id"), context.node_config.get("num-partitions")
    if not (isinstance(keys[0], int) and isinstance(keys[1], int)):
        raise Refused(
            "a node needs --node-config 'partition-id=I num-partitions=N' to know which clients "
            f"it hosts, got {dict(context.node_config)}"
        )
    return trainer, Request(message, hosted_clients(experiment.num_clients, keys[0], keys[1]))


@lru_cache(maxsize=1)  # a worker answers many messages of one run
def _trainer(experiment: Experiment, memories: Path) -> Trainer:
    return Trainer(experiment, federated_data(experiment), DiskStore(memories))
