"""Refusals of unreadable data, and a machine's own settings."""

from collections.abc import Mapping
from logging import getLogger
from typing import Any

from federation.errors import DataError, Refused, few_names
from federation.hosting import NodeConfig

_log = getLogger("flwr.engram")


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
