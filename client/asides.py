"""Answers of a node to what is part of no run: its table's columns, and a given model's scores."""

from collections.abc import Mapping
from logging import getLogger
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict

from client.admission import check, of_servers_choice, of_sources
from client.policy import Policy
from federation.data.describing import describe_table
from federation.data.values import Columns
from federation.errors import DataError, Refused
from federation.experiment import Experiment
from federation.hosting import NodeConfig, hosted_clients
from federation.roster import describe_node
from federation.schema import Kind

__all__ = ["described", "own_settings", "visited"]

_log = getLogger("flwr.engram")


def described(message: Message, context: Context, config: NodeConfig, policy: Policy) -> RecordDict:
    """Describes the columns of the node's own table, so far as it is readable.

    Raises:
        Refused: It has none, or does not describe it.
    """
    del message
    if not config.data:
        raise Refused("this node has no table of its own: it is started with --data csv:PATH")
    if not config.describes:
        raise Refused("this node does not describe its columns: it was started by --no-describe")
    experiment = Experiment.from_run_config(context.run_config)
    experiment = experiment.on_machine(own_settings(context.node_config, config))
    (client,) = hosted_clients(experiment.num_clients, config)
    columns, cache = Columns.of(experiment, alone=True), Path(experiment.data_dir)
    try:
        table = describe_table(config.data, columns, cache, policy.least_count)
    except DataError as error:
        _log.error("%s", error)
        raise Refused("this node's data cannot be read: its log says why") from error
    return describe_node({client: max(1, table.rows)}, Kind(), table=table)


def visited(message: Message, context: Context, config: NodeConfig, policy: Policy) -> RecordDict:
    """Scores a given model on the test rows of the node's clients.

    Raises:
        Refused: The site does not score it, or its rows cannot be read.
    """
    from client.visiting import (  # noqa: PLC0415 - loads what rounds do not need
        check_visit,
        read_visit,
        score_visit,
    )

    visit = read_visit(message.content, config, own_settings(context.node_config, config))
    check_visit(visit)
    check(of_sources(policy, visit.experiment, own=bool(config.data)))
    try:
        with of_servers_choice(visit.experiment, config, policy):
            return score_visit(visit, message.content)
    except DataError as error:
        _log.error("%s", error)
        raise Refused("this node's data cannot be used: its log says why") from error


def own_settings(own: Mapping[str, Any], config: NodeConfig) -> Mapping[str, Any]:
    """Returns the machine's own settings; the coordinator must not choose which files it reads.

    By default, data sets are in a folder of the state that has nothing else of it.
    """
    return {"data-dir": str(config.state / "data"), **own} if config.state is not None else own
