"""Counts of the clients that rows name, before the data are loaded."""

from collections.abc import Mapping
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np

from engram.data.lazy import is_frame
from engram.data.loading import read_arrays
from engram.data.readers.npz import task_arrays, with_task
from engram.data.schema.columns import File
from engram.data.schema.written import read_schema
from engram.data.source import LIBRARY, TABLES, Source
from engram.settings.data import DataSettings
from engram.settings.errors import DataError
from engram.settings.experiment import FIRST, by_schema, read_by
from engram.settings.machine import MachineSettings

_log = getLogger("flwr.engram")
_FILE = File()


def follow_rows(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with those that follow from rows that name their clients.

    The partition is by these names, and the number of clients theirs, unless others are given. It
    is said if another partition is.
    """
    defaults, given = DataSettings.defaults(), by_schema(given)
    dataset = given.get("dataset", defaults["dataset"])
    column = given.get("task-column", defaults["task-column"])
    folder = given.get("data-dir", MachineSettings.defaults()["data-dir"])
    if not all(isinstance(value, str) for value in (dataset, column, folder)):
        return dict(given)
    method, partition = str(given.get("method", FIRST)), given.get("partition", "natural")
    source = Source.of(dataset)
    found: dict[str, Any] = {"partition": "natural"} if source.by_client else {}
    file = read_schema(given["schema"]).file if given.get("schema") else File()
    if count := count_clients(source, column, Path(folder), file):
        if partition != "natural" and read_by(method, {"partition": ""}):
            told = "%s names its rows' clients, %d of them, and partition=%s gives out rows anew"
            _log.warning(told, source.described, count, partition)
        else:
            found = {"partition": "natural", "num-clients": count}
    return read_by(method, found) | dict(given)


def count_clients(source: Source, task_column: str, data_dir: Path, file: File = _FILE) -> int:
    """Number of clients that rows name.

    It is 0 if they name none, or cannot be read: whoever loads them says why.

    ``file`` says how a text file writes them.
    """
    try:
        labels = _labels(source, task_column, data_dir, file)
    except DataError:
        return 0
    return len(np.unique(np.concatenate(labels).astype(str))) if labels else 0


def _labels(source: Source, task_column: str, data_dir: Path, file: File) -> list[Any]:
    kind, path = source.kind, source.path
    if kind in LIBRARY:
        from engram.data.readers.hugging_face import read_column  # noqa: PLC0415 - loads datasets

        return read_column(kind, path, task_column, data_dir)
    arrays: Mapping[str, Any] = {}
    if kind in TABLES:
        from engram.data.readers.table_files import read_rows  # noqa: PLC0415 - loads pandas

        arrays = {"x": read_rows(path, file, only=[task_column])}
    elif (source.is_given or source.is_file) and not source.by_client:
        arrays = read_arrays(source, only=task_arrays(task_column))
        arrays = with_task(path, arrays, task_column) if kind in ("npz", "npy") else arrays
    frame: Any = arrays.get("x")
    if is_frame(frame) and task_column in frame:
        return [frame[task_column].dropna()]
    return [arrays[key] for key in task_arrays("task") if key in arrays]
