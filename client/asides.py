"""A given model's scores, which are part of no run, and what every answer of a node needs."""

from collections.abc import Mapping
from logging import getLogger
from typing import Any

from flwr.app import Context, Message, RecordDict

from client.admission import check, of_names
from client.approvals import APPROVALS, require
from client.policy import Policy
from federation.clock import now
from federation.errors import DataError, Refused, few_names
from federation.hosting import NodeConfig
from federation.plugins import plugins

__all__ = ["kept_here", "own_settings", "visited"]

_log = getLogger("flwr.engram")


def visited(message: Message, context: Context, config: NodeConfig, policy: Policy) -> RecordDict:
    """Scores a given model on the test rows of the node's clients.

    Raises:
        Awaited: The site has yet to approve it.
        Refused: The site does not score it, or its rows cannot be read.
    """
    from client.visiting import read_visit, score_visit  # noqa: PLC0415 - rounds do not need it

    visit = read_visit(message.content, config, own_settings(context.node_config, config))
    check(of_names(policy, visit.experiment, plugins()))
    if policy.approval:
        require(visit.state / APPROVALS, visit.request(context.run_id), now())
    try:
        return score_visit(visit, policy)
    except DataError as error:
        raise kept_here(error) from error


def kept_here(error: DataError) -> Refused:
    """Logs what is wrong with data, and returns a refusal that quotes no cell."""
    _log.error("%s", error)
    names = [name for fault in error.faults for name in fault.columns]
    lacks = f"names a value of {few_names(names)} that the schema lacks: correct one of them"
    why = lacks if names else "says why"
    return Refused(f"this node's data cannot be used: its log {why}")


def own_settings(own: Mapping[str, Any], config: NodeConfig) -> Mapping[str, Any]:
    """Returns the machine's own settings; the coordinator must not choose which files it reads.

    By default, data sets are in a folder of the state that has nothing else of it.
    """
    return {"data-dir": str(config.state / "data"), **own} if config.state is not None else own
