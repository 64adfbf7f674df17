"""Answers the server's messages: several at once, where one process hosts all their nodes.

The three functions are generic in the host of the clients: what stands here is for a ``Trainer`` of
networks; ``client.tables`` has what they do for tables.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from client.scoring import Scores
from client.trainer import Trained
from engram.types import Params
from federation.errors import EngramError, few
from federation.fingerprint import fingerprint, source_root
from federation.roster import describe_node
from federation.wire import (
    ARRAYS,
    CLIENTS,
    DIVERGED,
    METRICS,
    REFUSED,
    config_of,
    read_list,
    to_params,
    to_record,
)

__all__ = [
    "Request",
    "answer_evaluate",
    "answer_roster",
    "answer_train",
    "asked_clients",
    "check_source",
    "durable_of",
    "round_of",
]


class Request(NamedTuple):
    """A message, and the clients that the node it is addressed to hosts.

    Attributes:
        message: Its content has an array record ``arrays`` (the model) and a config record
            ``config``, of which all keys are optional, so that Flower's own strategies are
            understood: ``server-round``; ``clients`` (whom to train; all hosted);
            ``most-examples`` (how many rows of a client count at most in the node's mean; 1:
            clients count alike); ``combine`` (false: every client's model, stacked, instead of
            their mean); ``durable`` (the coordinator's last checkpoint); ``fingerprint`` (of the
            source the server runs).
        hosted: The node's clients.
    """

    message: Message
    hosted: Sequence[int]


@singledispatch
def answer_roster(host: Any, request: Request) -> Message:
    """Says which source this is, and which clients and data it has."""
    data = host.data
    clients = {client: len(data.train.rows[client]) for client in request.hosted}
    return Message(
        describe_node(clients, data.input_shape, data.num_classes), reply_to=request.message
    )


@singledispatch
def answer_train(host: Any, requests: Sequence[Request]) -> list[Message]:
    """Trains the clients of all requests that start from one model in one call.

    A reply carries the mean of its clients' models and how many clients and examples stand
    behind it, so that Flower's strategies, which weigh replies by ``num-examples``, are right
    whether a node hosts one client or many. A request that cannot be met is answered with an
    error, and so is one all of whose clients diverged; neither touches the others.
    """

    def train(group: dict[int, list[int]]) -> Iterable[Message]:
        first = requests[next(iter(group))].message.content
        config = config_of(first)
        trained: list[Trained] = host.train(
            _model(first),
            list(group.values()),
            server_round=round_of(first),
            durable=durable_of(first),
            combine=_most_examples(config),
        )
        for (i, clients), result in zip(group.items(), trained, strict=True):
            yield _train_reply(requests[i].message, clients, result, _most_examples(config))

    return _in_groups(requests, train)


@singledispatch
def answer_evaluate(host: Any, requests: Sequence[Request]) -> list[Message]:
    """Scores the clients of all requests that carry one model in one call."""

    def evaluate(group: dict[int, list[int]]) -> Iterable[Message]:
        first = requests[next(iter(group))].message.content
        everyone = [client for clients in group.values() for client in clients]
        scores: Scores = host.evaluate(_model(first), everyone, server_round=round_of(first))
        start = 0
        for i, clients in group.items():
            part = Scores(*(column[start : start + len(clients)] for column in scores))
            yield _evaluate_reply(requests[i].message, clients, part)
            start += len(clients)

    return _in_groups(requests, evaluate)


def _in_groups(
    requests: Sequence[Request], answer: Callable[[dict[int, list[int]]], Iterable[Message]]
) -> list[Message]:
    """Answers requests together that have the round, and the very record of the model, in common.

    ``answer`` takes the clients of each request of a group, by its number.
    """
    replies: dict[int, Message] = {}
    groups: dict[tuple[int, int, int | None], dict[int, list[int]]] = {}
    for i, request in enumerate(requests):
        try:
            content = request.message.content
            _check(content)
            key = (
                id(content.array_records[ARRAYS]),
                round_of(content),
                _most_examples(config_of(content)),
            )
            groups.setdefault(key, {})[i] = asked_clients(request)
        except EngramError as error:
            replies[i] = Message(Error(REFUSED, str(error)), reply_to=request.message)
    for group in groups.values():
        replies |= zip(group, answer(group), strict=True)
    return [replies[i] for i in range(len(requests))]


def _check(content: RecordDict) -> None:
    if ARRAYS not in content.array_records:
        raise EngramError(f"a message must hold the model, as an array record {ARRAYS!r}")
    check_source(content)


def check_source(content: RecordDict) -> None:
    """Refuses a message of a server that runs another source.

    Raises:
        EngramError: It names both.
    """
    server = str(config_of(content).get("fingerprint", fingerprint()))
    if server != fingerprint():
        raise EngramError(
            f"this node runs source {fingerprint()} from {source_root()}, "
            f"but the server runs {server}"
        )


def _model(content: RecordDict) -> Params:
    return to_params(content.array_records[ARRAYS])


def round_of(content: RecordDict) -> int:
    """Returns the round that a message is of; 1 if it does not say."""
    return _int(config_of(content), "server-round", 1)


def durable_of(content: RecordDict) -> int:
    """Returns the coordinator's last checkpoint; 0 if the message does not say."""
    return _int(config_of(content), "durable", 0)


def _int(config: ConfigRecord, key: str, default: int) -> int:
    value = config.get(key, default)
    if not isinstance(value, int):
        raise EngramError(f"{key} must be a whole number, got {value!r}")
    return value


def asked_clients(request: Request) -> list[int]:
    """Returns whom a message asks: all clients of its node, or those that it names.

    Raises:
        EngramError: If there are none, or some are others'.
    """
    config = config_of(request.message.content)
    if not request.hosted:
        raise EngramError("this node hosts no client: there are more nodes than clients")
    if "clients" not in config:
        return list(request.hosted)
    try:
        clients = read_list(config, "clients", int)
    except TypeError as error:
        raise EngramError(str(error)) from error
    hosted = request.hosted  # often a range, which knows its members without looking through them
    if not clients or not all(client in hosted for client in clients):
        raise EngramError(
            f"clients must be some of those that this node hosts, {few(hosted)}, got {few(clients)}"
        )
    return clients


def _most_examples(config: ConfigRecord) -> int | None:
    """Returns a client's largest weight in a reply's mean; None if every model is asked for."""
    if not config.get("combine", True):
        return None
    most = _int(config, "most-examples", 2**63 - 1)
    if most < 1:
        raise EngramError(f"most-examples must be at least 1, got {most}")
    return most


def _train_reply(
    message: Message, clients: Sequence[int], trained: Trained, most: int | None
) -> Message:
    failed = [client for client in clients if client in trained.failures]
    if not trained.clients:
        reasons = "; ".join(trained.failures[client] for client in failed)
        return Message(Error(DIVERGED, reasons), reply_to=message)
    weights = None if most is None else [min(n, most) for n in trained.examples]
    content = RecordDict(
        {
            ARRAYS: to_record(trained.params),
            METRICS: MetricRecord(
                {
                    "num-examples": sum(trained.examples),
                    "train-loss": float(np.average(trained.losses, weights=weights)),
                }
            ),
            CLIENTS: ConfigRecord(
                {
                    "server-round": round_of(message.content),
                    "ids": trained.clients,
                    "examples": trained.examples,
                    "losses": trained.losses,
                    "failed": failed,
                    "reasons": [trained.failures[client] for client in failed],
                }
            ),
        }
    )
    return Message(content, reply_to=message)


def _evaluate_reply(message: Message, clients: Sequence[int], scores: Scores) -> Message:
    columns = {name: column.tolist() for name, column in scores._asdict().items()}
    details = {"server-round": round_of(message.content), "ids": list(clients), **columns}
    content = RecordDict(
        {
            METRICS: MetricRecord(
                {
                    "num-examples": int(scores.queries.sum()),
                    "accuracy": float(scores.personalized.mean()),
                    "accuracy-before": float(scores.before.mean()),
                    "loss": float(scores.loss_personalized.mean()),
                }
            ),
            CLIENTS: ConfigRecord(details),
        }
    )
    return Message(content, reply_to=message)
