"""Rows of a client that no run has seen, read as its clients' rows were."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engram.data.arrays import Own
from engram.data.federated import FederatedData, Split
from engram.data.images import CLASS
from engram.data.lazy import RowNumbers
from engram.data.new_rows import read_new_rows
from engram.data.row_places import Place
from engram.data.schema.columns import Column, Kind
from engram.data.schema.declared import declare
from engram.data.schema.fitting import fit
from engram.data.schema.table_files import TABLES
from engram.data.tables.raw_tables import labels_of
from engram.networks.base import Inputs
from engram.scoring.tasks import TASKS
from engram.settings.errors import DataError
from engram.settings.experiment import Experiment


class Newcomer(NamedTuple):
    """A client that no run has seen.

    Attributes:
        x: Its rows, as networks take them.
        y: Their targets; None if they have none.
        size: How many rows there are.
        kind: The kind of the run's rows; the schema of a table with what stands for a missing value
            in these rows.
        name: What it is called.
    """

    x: Inputs
    y: Tensor | None
    size: int
    kind: Kind
    name: str

    def data(self, rows: RowNumbers, client: int) -> FederatedData:
        """Returns some of its rows as a federation's, at a client's number.

        They are the rows to learn from, and those that few-shot scoring fine-tunes on.
        """
        y = torch.zeros(self.size) if self.y is None else self.y
        split = Split(self.x, y, [rows[:0]] * client + [rows])
        known: dict[str, Any] = {"schema": self.kind.schema, "units": self.kind.units}
        return FederatedData(split, split, self.kind.outputs, {client: self.name}, **known)


def read_newcomer(path: Path, kind: Kind, experiment: Experiment) -> Newcomer:
    """Reads rows, with targets if there are some; for the formats see ``read_new_rows``.

    A CSV or Excel file has targets if it has the target's column; another file, if it has ``y``; a
    folder of images, if these are in folders of their classes.

    Args:
        path: Where they are.
        kind: What rows of the run are like.
        experiment: The settings of the run.

    Raises:
        DataError: If they cannot be read, or are other rows.
    """
    e = experiment
    found = read_new_rows(path, kind, e.to_config(), of_one_client=True)
    kind = kind if found.schema is None else kind._replace(schema=found.schema)
    if not found.size:
        raise DataError(f"{path} must hold some rows")
    newcomer = Newcomer(found.x, None, found.size, kind, path.stem)
    y, targets = found.targets.get("y"), TASKS[e.task].targets
    if y is None:
        return newcomer
    name = CLASS if "file" in found.others else "y"
    if path.suffix.lower() in TABLES:
        name = e.target_column
        column = fit(y.to_frame(), declare(e).schema).schema.column(name)
        y = labels_of(path, column, y)
    if len(y) != found.size:
        raise DataError(f"{path}: y must have {found.size} rows, as x has, got {len(y)}")
    own = Own(path, targets, kind.outputs, target=Column(name, values=tuple(kind.class_names)))
    labels, outputs, _ = own.labels(y, Place(path, name))
    if outputs != kind.outputs:
        raise DataError(f"{path}: y must have {kind.outputs} values a row, got {outputs}")
    return newcomer._replace(y=torch.from_numpy(labels))
