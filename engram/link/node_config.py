"""A node's configuration, the clients it hosts, and where its files are."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engram.data.source import Source
from engram.settings.errors import Refused, brief
from engram.settings.experiment import Experiment

_MOST = 2**40  # exclusive bound on the numbers in a node's configuration


class NodeConfig(NamedTuple):
    """A node's configuration, from ``--node-config`` or `engram node`.

    Attributes:
        partition_id, num_partitions: The node hosts every ``num_partitions``-th client, from
            ``partition_id``.
        data: The node's own data set, written like the setting ``dataset``; all of it belongs to
            its one client, number ``partition_id``. Empty: its clients' shares of the experiment's.
        state: Folder for what outlives the node's process. None: the run's folder, which nodes on
            the server's machine share with it.
        memory_key: File of the key that memories are encrypted with; None for no encryption.
        memory_limit: Most MiB that the memories of a training may take; 0 for no bound.
        memory_days: Days after which the memories of a training that has ended are removed;
            0 for never.
        describes: Whether it describes the columns of ``data`` to a coordinator that asks.
        policy: The file of the site's policy, or a folder that may have one; None for defaults.
        asked_by: Who asks it, as far as it can tell, in words.
        identity: The client's folder, with its key and the registry of others'.
        rows_changed: Whether trainings go on with other rows than those that they have learned
            from, as the site's operator says.
    """

    partition_id: int
    num_partitions: int
    data: Source = Source("")
    state: Path | None = None
    memory_key: Path | None = None
    memory_limit: float = 0.0
    memory_days: float = 0.0
    describes: bool = True
    policy: Path | None = None
    asked_by: str = ""
    identity: Path | None = None
    rows_changed: bool = False


def read_node_config(config: Mapping[str, Any]) -> NodeConfig:
    """Reads a node's configuration; unknown keys, which may be other apps', are ignored.

    Raises:
        Refused: If a value is missing or impossible.
    """
    own, among = config.get("partition-id"), config.get("num-partitions")
    if not (isinstance(own, int) and isinstance(among, int) and max(abs(own), abs(among)) < _MOST):
        raise Refused(
            "a node needs --node-config 'partition-id=I num-partitions=N' to know which clients "
            f"it hosts, got {brief(own)} and {brief(among)}"
        )
    return NodeConfig(
        own,
        among,
        data=Source(_text(config, "data")),
        state=_path(config, "state"),
        memory_key=_path(config, "memory-key"),
        memory_limit=_bound(config, "memory-limit"),
        memory_days=_bound(config, "memory-days"),
        describes=config.get("describes", True) is True,
        policy=_path(config, "policy"),
        asked_by=_text(config, "asked-by"),
        identity=_path(config, "identity"),
        rows_changed=config.get("rows-changed", False) is True,
    )


def _text(config: Mapping[str, Any], key: str) -> str:
    value = config.get(key, "")
    if not isinstance(value, str):
        raise Refused(f"{key} must be text, got {brief(value)}")
    return value


def _path(config: Mapping[str, Any], key: str) -> Path | None:
    return Path(_text(config, key)) if _text(config, key) else None


def _bound(config: Mapping[str, Any], key: str) -> float:
    value = config.get(key, 0.0)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and 0 <= value < _MOST):
        raise Refused(f"{key} must be a number, 0 or more, got {brief(value)}")
    return float(value)


def hosted_clients(num_clients: int, node: NodeConfig) -> Sequence[int]:
    """Returns the clients that a node hosts: one with as many nodes as clients, none if spare.

    Raises:
        Refused: ``partition_id`` does not lie in 0..num_partitions-1.
    """
    if not 0 <= node.partition_id < node.num_partitions:
        raise Refused(
            f"partition-id must be in 0..{node.num_partitions - 1} (num-partitions is "
            f"{node.num_partitions}), got {node.partition_id}"
        )
    if node.data:  # which may come while a run goes on, with a number beyond its first clients
        return [node.partition_id]
    return range(node.partition_id, num_clients, node.num_partitions)


def memory_folder(node: NodeConfig, experiment: Experiment, run_id: int, training: str) -> Path:
    """Returns the folder of the memories that a node's clients keep in a training.

    A training is one run and every resumption of it. Each training has its own memories.

    Args:
        node: The node's configuration.
        experiment: The settings.
        run_id: Flower's number of the run.
        training: The training's name, as the coordinator sends it; empty if it sends none.

    Raises:
        Refused: If the training name is malformed.
    """
    name = training or f"run-{run_id}"
    if not re.fullmatch(r"[0-9a-f]{16}|run-\d+", name):
        raise Refused(f"training must be 16 hexadecimal digits, got {training[:40]!r}")
    root = node.state if node.state is not None else run_folder(experiment, run_id)
    return root / "memory" / name


def run_folder(experiment: Experiment, run_id: int) -> Path:
    """Returns the folder of a Flower run, the same for the server and for nodes beside it."""
    return Path(experiment.resume or experiment.out or f"runs/flower-{run_id}").absolute()
