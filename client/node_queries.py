"""Refusals of unreadable data, and a machine's own settings and schema."""

from collections.abc import Mapping
from logging import getLogger
from typing import Any

from engram.data.schema.columns import File, Schema
from engram.data.schema.written import read_schema, to_toml
from engram.data.tables.table_summary import site_schema
from engram.link.node_config import NodeConfig
from engram.settings.errors import DataError, Refused, few_names
from engram.settings.experiment import Experiment

_log = getLogger("flwr.engram")


def kept_here(error: DataError) -> Refused:
    """Logs a fault of data, and returns a refusal that quotes no cell."""
    _log.error("%s", error)
    names = [name for fault in error.faults for name in fault.columns]
    lacks = f"names a value of {few_names(names)} that the schema lacks: correct one of them"
    why = lacks if names else "says why"
    return Refused(f"this node's data cannot be used: its log {why}")


def own_settings(own: Mapping[str, Any], config: NodeConfig) -> Mapping[str, Any]:
    """Returns the machine's own settings: the coordinator must not choose its files.

    By default, data sets are in a folder of the state that has nothing else of it.
    """
    return {"data-dir": str(config.state / "data"), **own} if config.state is not None else own


def by_own_schema(e: Experiment, config: NodeConfig) -> Experiment:
    """Returns settings with the site's own schema, for its own table.

    Raises:
        Refused: The site's schema cannot be read.
    """
    own = site_schema(config.identity)
    if not config.data or not (own.columns or own.file != File()):
        return e
    run = read_schema(e.schema) if e.schema else Schema()
    return e.model_copy(update={"schema": to_toml(run.at_site(own))})
