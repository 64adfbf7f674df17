"""Clients that rows name, found before anything else is known of the rows."""

from collections.abc import Mapping
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np

from engram.data.datasets import read_given
from engram.data.images import read_images
from engram.data.npy import read_npy
from engram.data.npz import read_npz, task_arrays, with_task
from engram.data.schema.columns import File
from engram.data.schema.table_files import read_rows
from engram.data.schema.written import read_schema
from engram.data.source import HUB, TABLES, Source
from engram.data.tables.frames import is_frame
from engram.settings.data import DataSettings
from engram.settings.errors import DataError
from engram.settings.experiment import FIRST, by_schema, read_by
from engram.settings.run import MachineSettings

_log = getLogger("flwr.engram")
_FILE = File()


def follow_rows(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with those that follow from rows that name their clients.

    The partition is by these names, and the number of clients theirs, unless others are given. It
    is said if another partition is.

    Args:
        given: Settings by key; others have their defaults.
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
    """Returns how many clients a user's rows name.

    It is 0 if they name none, or cannot be read: whoever loads them says why.

    Args:
        source: The rows.
        task_column: As the setting ``task-column``.
        data_dir: As the setting ``data-dir``.
        file: How a text file writes them.
    """
    try:
        labels = _labels(source, task_column, data_dir, file)
    except DataError:
        return 0
    return len(np.unique(np.concatenate(labels).astype(str))) if labels else 0


def _labels(source: Source, task_column: str, data_dir: Path, file: File) -> list[Any]:
    """Returns the names of rows' clients: of all rows, of training and test rows, or nothing."""
    kind, path = source.kind, source.path
    arrays: Mapping[str, Any] = {}
    if source.is_given:
        arrays = {} if source.by_client else read_given(source, ())
    elif kind in TABLES:
        arrays = {"x": read_rows(path, file, only=[task_column])}
    elif kind == "npz":
        arrays = with_task(path, read_npz(path, task_arrays(task_column)), task_column)
    elif kind == "npy":
        arrays = with_task(path, read_npy(path), task_column)
    elif kind == "images":
        arrays = read_images(path)
    elif source.is_file or kind == HUB:
        from engram.data.hugging_face import read_column  # noqa: PLC0415 - slow to import

        return read_column(kind, path, task_column, data_dir)
    frame: Any = arrays.get("x")
    if is_frame(frame) and task_column in frame:
        return [frame[task_column].dropna()]
    return [arrays[key] for key in ("task", "task_train", "task_test") if key in arrays]
