"""The ClientApp, the same on Ray's workers, Flower's nodes and resident nodes."""

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from client.hosts import Host, Opening, host_of
from client.memory import DiskStore
from client.remembered import note_training
from client.replies import Replies
from client.requests import Request, check_settings, check_source
from client.sealed import read_key
from client.training.process import training_from_now_on
from client.trainings import prune
from engram.units import Units
from federation.bundle import bundle, is_bundled, unbundle
from federation.data.source import HUB
from federation.errors import DataError, EngramError, Refused
from federation.experiment import Experiment
from federation.hosting import NodeConfig, hosted_clients, memory_folder, read_node_config
from federation.plugins import load_plugins
from federation.roster import Kind, read_entry
from federation.wire import CLIENTS, REFUSED, SECONDS, TRAINING, config_of, units_of

__all__ = ["app"]

_log = getLogger("flwr.engram")

app = ClientApp()


@app.query("roster")
def roster(message: Message, context: Context) -> Message:
    """Answers which clients this node hosts, and which source it runs."""
    return _answer(
        message,
        context,
        lambda node, request: Message(node.host.describe(request.hosted), reply_to=message),
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains the clients that the message names."""

    def answer(node: _Node, request: Request) -> Message:
        before = node.replies.find(message) if node.replies else None
        if before is not None:
            return before
        start = time.perf_counter()
        (reply,) = node.host.train([request])
        if reply.has_content():
            reply.content.config_records[CLIENTS][SECONDS] = time.perf_counter() - start
        if node.replies:
            with contextlib.suppress(OSError):  # a repeated message is then trained again
                node.replies.keep(message, reply)
        return reply

    return _answer(message, context, answer)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Scores the node's clients."""
    return _answer(message, context, lambda node, request: node.host.evaluate([request])[0])


class _Node(NamedTuple):
    """Answers a training's messages; the last two are kept where the node outlives its process.

    Attributes:
        host: The host of its clients.
        experiment: The settings that the host was opened with.
        replies: The last replies.
        kind: The kind of its rows.
    """

    host: Host
    experiment: Experiment
    replies: Replies | None = None
    kind: Kind | None = None


def _answer(
    message: Message, context: Context, answer: Callable[[_Node, Request], Message]
) -> Message:
    bundled = is_bundled(message.content)
    try:
        load_plugins()
        message.content = unbundle(message.content)
        check_source(message.content)  # before reading settings, which may differ between sources
        config = read_node_config(context.node_config)
        experiment = Experiment.from_run_config(context.run_config)
        check_settings(message.content, experiment)
        experiment = experiment.on_machine(_own(context.node_config, config))
        clients = hosted_clients(experiment.num_clients, config)
        training = str(config_of(message.content).get(TRAINING, ""))
        folder = memory_folder(config, experiment, context.run_id, training)
        # Ray's nodes take turns in a process: only the hosted clients depend on which node it is.
        if config.state is None and not config.data:
            config = config._replace(partition_id=0, num_partitions=1)
        node = _node(experiment, config, folder)
        units = units_of(message.content)
        if node.kind is not None and units != Units():  # else noted when the node opened
            _note(folder, node.experiment, node.kind._replace(units=units), config.data)
        reply = answer(node, Request(message, clients))
    except EngramError as error:  # one line for the server, instead of Flower's traceback
        return Message(Error(REFUSED, str(error)), reply_to=message)
    if bundled and reply.has_content():
        reply.content = bundle(reply.content)
    return reply


def _own(own: Mapping[str, Any], config: NodeConfig) -> Mapping[str, Any]:
    """Returns the machine's own settings; the coordinator must not choose which files it reads."""
    return {"data-dir": str(config.state), **own} if config.state is not None else own


@lru_cache(maxsize=1)  # a worker answers many messages of one training, maybe of several nodes
def _node(experiment: Experiment, config: NodeConfig, folder: Path) -> _Node:
    key = read_key(config.memory_key) if config.memory_key is not None else None
    limit = int(config.memory_limit * 2**20) or None
    if config.state is not None:
        prune(folder, days=config.memory_days or None)
        own = experiment.own.on_a_node()
        experiment = experiment.model_copy(update={"own": own})
    if config.state is not None and not config.data:
        _check_place(experiment)
    store = DiskStore(folder, key=key, limit=limit)
    training_from_now_on(experiment.cpu_threads)
    host = _host(experiment, config, store)
    if config.state is None:
        return _Node(host, experiment)
    hosted = hosted_clients(experiment.num_clients, config)
    kind = read_entry(host.describe(hosted)).kind
    _note(folder, experiment, kind, config.data)
    return _Node(host, experiment, Replies(folder, key=key), kind)


@lru_cache(maxsize=1)  # written once, and again when the run's units are known
def _note(folder: Path, experiment: Experiment, kind: Kind, data: str) -> None:
    with contextlib.suppress(OSError):  # without it, models cannot be exported from here
        note_training(folder, experiment, kind, data)


def _host(experiment: Experiment, config: NodeConfig, store: DiskStore) -> Host:
    opening = Opening(
        experiment,
        store,
        own=config.data,
        client=config.partition_id,
        hosted=hosted_clients(experiment.num_clients, config),
        # Names stay on a node's own machine: they could be any column that the coordinator chooses.
        named=config.state is None,
    )
    try:
        return host_of(opening)
    except DataError as error:
        source = opening.own or experiment.source
        by_function = config.state is not None and source.function is not None
        if not (experiment.own.tables or opening.own.has_columns or by_function):
            raise
        # The message may quote values of a row, which must not reach the coordinator.
        _log.error("%s", error)
        raise Refused("this node's data cannot be used: its log says why") from error


def _check_place(experiment: Experiment) -> None:
    """Refuses data sets that a coordinator must not make a node's machine read, or download."""
    allowed = Path(experiment.data_dir).resolve()
    for source in experiment.own.sources(experiment):
        plain = source.unpermuted
        if plain.kind == HUB:
            raise Refused(f"{source} is not this node's: start it with --data {source}")
        if plain.is_file and not plain.path.resolve().is_relative_to(allowed):
            raise Refused(
                f"{source} is not in this node's data-dir, {allowed}: other files are opened only "
                "if the node is started with them by --data"
            )
