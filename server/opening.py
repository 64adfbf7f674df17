"""Opens a run between sites with tables: anew, or where it was left."""

import secrets
from pathlib import Path
from typing import NamedTuple

from flwr.serverapp import Grid

from federation.experiment import Experiment
from federation.roster import Sites
from server.record import RunRecord
from server.roster import query_sites

__all__ = ["Opened", "open_run"]


class Opened(NamedTuple):
    """A run that may begin, or go on.

    Attributes:
        record: Its folder.
        training: The name that sites keep memories under.
        sites: Those that are there.
        absent: Those that are not, and why.
    """

    record: RunRecord
    training: str
    sites: Sites
    absent: dict[int, str]


def open_run(grid: Grid, experiment: Experiment, folder: Path, *, engine: str) -> Opened:
    """Finds the sites, and makes the run's folder, or opens it.

    A run that goes on has the columns that it began with.

    Args:
        grid: The nodes.
        experiment: What to run. If it says ``resume``, ``folder`` holds the run to go on with.
        folder: Where the run is recorded.
        engine: Name of the engine, for the record.

    Raises:
        Refused: The folder is not free, or not of a run that could go on so.
        RunStopped: Too few sites can take part.
    """
    e, training, columns = experiment, secrets.token_hex(8), None
    if e.resume:
        record = RunRecord.open(folder)
        record.check_resumable(e, engine=engine)
        training = record.config["training"]
        columns = next((row["columns"] for row in record.rows() if "columns" in row), None)
    sites, absent = query_sites(
        grid,
        e.num_clients,
        least=e.min_clients,
        columns=columns,
        training=training,
        patience=min(60.0, e.timeout),
    )
    if not e.resume:
        record = RunRecord.create(folder, e, engine=engine, training=training)
    return Opened(record, training, sites, absent)
