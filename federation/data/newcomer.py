"""Rows of a client that no run has seen, read as its clients' rows were."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engram.models.base import Inputs
from engram.tasks import TASKS
from engram.units import Units
from federation.data.arrays import Own
from federation.data.cells import check_there, known, numbers
from federation.data.federated import FederatedData, Split
from federation.data.images import CLASS
from federation.data.lazy import RowNumbers
from federation.data.new_rows import InputColumn, NewRows, read_new_rows
from federation.data.places import Place
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
    """Reads rows, with targets if there are some; for the formats see ``read_new_rows``.

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
    found = read_new_rows(path, kind, columns, e.to_config(), of_one_client=True)
    columns = found.columns or columns
    if not found.size:
        raise DataError(f"{path} must hold some rows")
    y, column = _targets(path, found, e)
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


def _targets(path: Path, found: NewRows, e: Experiment) -> tuple[Any, str]:
    """Returns targets as the source has them, None for none, and what they are called there."""
    y = found.targets.get("y")
    if path.suffix != ".csv":
        return y, CLASS if "file" in found.others else "y"
    target = e.target_column
    if y is not None:
        y = known(y, Columns.of(e).missing_values)
        check_there(path, {target: y})
        classes = TASKS[e.task].targets == "classes"
        y = y.to_numpy() if classes else numbers(path, target, y, "code it by numbers")
    return y, target
