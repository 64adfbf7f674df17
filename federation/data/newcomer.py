"""Rows of a client that no run has seen, read as its clients' rows were."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram.models.base import Inputs
from engram.tasks import TASKS
from engram.units import Units
from federation.data.arrays import Own
from federation.data.cells import check_there, known, numbers, typed
from federation.data.federated import FederatedData, Split
from federation.data.frames import read_frame
from federation.data.images import CLASS
from federation.data.npy import read_npy
from federation.data.npz import read_npz
from federation.data.partitions import RowNumbers
from federation.data.places import Place
from federation.data.unlabeled import InputColumn, fill_of, read_unlabeled
from federation.data.values import Columns, Values
from federation.errors import DataError
from federation.experiment import Experiment
from federation.roster import Kind

__all__ = ["Newcomer", "read_newcomer"]


class Newcomer(NamedTuple):
    """A client that no run has seen.

    Attributes:
        x: Its rows, as networks take them.
        y: Their targets; None if they have none.
        size: How many rows there are.
        outputs: Number of classes, or of values or labels to predict.
        columns: The columns of inputs, where rows are a table's.
        name: What it is called.
        numeric: As ``Arrays.numeric``.
        units: Units of the run's rows.
    """

    x: Inputs
    y: Tensor | None
    size: int
    outputs: int
    columns: list[InputColumn]
    name: str
    numeric: tuple[bool, ...] = ()
    units: Units = Units()

    def data(self, rows: RowNumbers, client: int) -> FederatedData:
        """Returns some of its rows as a federation's, at a client's number.

        They are the rows to learn from, and those that few-shot scoring fine-tunes on.
        """
        y = torch.zeros(self.size) if self.y is None else self.y
        split = Split(self.x, y, [rows[:0]] * client + [rows])
        found = FederatedData(split, split, self.outputs, names={client: self.name})
        return found._replace(numeric=self.numeric, units=self.units)


def read_newcomer(
    path: Path,
    kind: Kind,
    columns: Sequence[InputColumn],
    classes: Sequence[str],
    experiment: Experiment,
) -> Newcomer:
    """Reads rows, with targets if there are some; for the formats see ``read_unlabeled``.

    A CSV file has targets if it has the target's column; another file, if it has ``y``; a folder of
    images, if these are in folders of their classes.

    Args:
        path: Where they are.
        kind: What rows of the run are like.
        columns: The inputs, where those are a table's.
        classes: What classes are called.
        experiment: The settings of the run.

    Raises:
        DataError: If they cannot be read, or are other rows.
    """
    e = experiment
    if path.suffix == ".csv" and e.missing == "median":
        columns = _filled(path, columns, e)
    found = read_unlabeled(path, kind, columns, e.to_config())
    if not found.size:
        raise DataError(f"{path} must hold some rows")
    y, column = _targets(path, found.others, e)
    known: dict[str, Any] = {"numeric": tuple(chain(*(c.numeric(e.missing) for c in columns)))}
    known |= {"units": kind.units, "name": path.stem, "columns": list(columns)}
    newcomer = Newcomer(found.x, None, found.size, kind.outputs, **known)
    if y is None:
        return newcomer
    if len(y) != found.size:
        raise DataError(f"{path}: y must have {found.size} rows, as x has, got {len(y)}")
    own = Own(
        path,
        TASKS[e.task].targets,
        kind.outputs,
        column=column,
        values=Values({column: tuple(classes)}),
    )
    labels, outputs, _ = own.labels(y, Place(path, column))
    if outputs != kind.outputs:
        raise DataError(f"{path}: y must have {kind.outputs} values a row, got {outputs}")
    return newcomer._replace(y=torch.from_numpy(labels))


def _filled(path: Path, columns: Sequence[InputColumn], e: Experiment) -> list[InputColumn]:
    """Returns the columns with the file's own values for what is missing in it."""
    frame, of_run = read_frame(path), Columns.of(e)
    there = [column.name for column in columns if column.name in frame.columns]  # or it is refused
    texts = {column.name: column.values for column in columns if column.values is not None}
    own = typed(path, frame[there], of_run._replace(values=Values(texts)))

    def filled(column: InputColumn) -> InputColumn:
        if column.name not in own or own[column.name].isna().all():  # the run's stands for it
            return column
        return column._replace(fill=fill_of(own[column.name], text=column.values is not None))

    return list(map(filled, columns))


def _targets(path: Path, others: Mapping[str, Sequence[Any]], e: Experiment) -> tuple[Any, str]:
    """Returns targets as the source has them, None for none, and what they are called there."""
    if path.suffix == ".csv":
        target = e.target_column
        return (_in_table(path, e) if target in others else None), target
    if "file" not in others:
        return (read_npy(path) if path.is_dir() else read_npz(path)).get("y"), "y"
    folders = [Path(file).parent for file in others["file"]]
    return None if path in folders else np.array([folder.name for folder in folders]), CLASS


def _in_table(path: Path, e: Experiment) -> Any:
    target = e.target_column
    y = known(read_frame(path, [target])[target], Columns.of(e).missing_values)
    check_there(path, {target: y})
    if TASKS[e.task].targets != "classes":
        return numbers(path, target, y, "code it by numbers")
    return y.to_numpy()
