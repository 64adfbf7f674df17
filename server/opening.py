"""Opens a run between sites with tables: anew, or where it was left."""

import secrets
from pathlib import Path
from typing import NamedTuple

from flwr.serverapp import Grid

from federation.experiment import Experiment
from federation.roster import Kind
from server.record import RunRecord
from server.roster import Attendance, attendance_of

__all__ = ["Opened", "open_run"]


class Opened(NamedTuple):
    """A run that may begin, or go on.

    Attributes:
        record: Its folder.
        training: The name that sites keep memories under.
        attendance: The sites that are there, and those that are not.
    """

    record: RunRecord
    training: str
    attendance: Attendance


def open_run(grid: Grid, experiment: Experiment, folder: Path, *, engine: str) -> Opened:
    """Finds the sites, and makes the run's folder, or opens it.

    A run that goes on has the columns that it began with.

    Args:
        grid: The nodes.
        experiment: What to run. If it says ``resume``, ``folder`` holds the run to go on with.
        folder: Where the run is recorded.
        engine: Name of the engine, for the record.

    Raises:
        Refused: If the folder is not free, or not of a run that could go on so.
        RunStopped: Too few sites can take part.
    """
    e, training, kind = experiment, secrets.token_hex(8), None
    if e.resume:
        record = RunRecord.open(folder)
        record.check_resumable(e, engine=engine)
        training = record.config["training"]
        columns = next((row["columns"] for row in record.rows() if "columns" in row), None)
        kind = None if columns is None else Kind(columns=tuple(columns))
    attendance = attendance_of(grid, e, training=training, kind=kind)
    attendance.wait(e.min_clients)
    if not e.resume:
        record = RunRecord.create(folder, e, engine=engine, training=training)
    return Opened(record, training, attendance)
