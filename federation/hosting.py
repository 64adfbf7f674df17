"""Which clients a node hosts, and where its run's files are."""

import hashlib
import json
from pathlib import Path

from federation.errors import Refused
from federation.experiment import Experiment

__all__ = ["hosted_clients", "memory_folder", "run_folder"]


def hosted_clients(num_clients: int, partition_id: int, num_partitions: int) -> range:
    """Returns the clients of one node: every ``num_partitions``-th, from ``partition_id``.

    With as many nodes as clients each hosts one; with more, some host none.

    Raises:
        Refused: ``partition_id`` does not lie in 0..num_partitions-1.
    """
    if not 0 <= partition_id < num_partitions:
        raise Refused(
            f"partition-id must be in 0..{num_partitions - 1} (num-partitions is "
            f"{num_partitions}), got {partition_id}"
        )
    return range(partition_id, num_clients, num_partitions)


def memory_folder(experiment: Experiment, run_id: int) -> Path:
    """Returns the folder of the memories that clients of a Flower run keep.

    Memories of runs of other settings are in other folders, whatever was run here before.
    """
    settings = json.dumps(experiment.identity(), sort_keys=True)
    digest = hashlib.sha256(settings.encode()).hexdigest()[:16]
    return run_folder(experiment, run_id) / "memory" / digest


def run_folder(experiment: Experiment, run_id: int) -> Path:
    """Returns the folder of a Flower run, the same for the server and for its nodes."""
    return Path(experiment.resume or experiment.out or f"runs/flower-{run_id}").absolute()
