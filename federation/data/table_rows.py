"""Tables as rows for networks: encoded by their schema, with targets."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engram.metrics import Targets
from federation.data.arrays import HeldOut
from federation.data.cells import check_there
from federation.data.encoding import encode, filled, usual
from federation.data.labels import is_text
from federation.data.raw_tables import RawTable, labels_of
from federation.data.texts import texts_of
from federation.data.values import Columns

_Array = npt.NDArray[Any]
DECLARE: Final = "set missing=median or missing=indicator"
"""The way out where values are missing."""


def rows_of(table: RawTable, columns: Columns, targets: Targets, split: HeldOut) -> dict[str, Any]:
    """Returns ``x`` (n, d), its ``schema``, ``y`` and, where rows name their client, ``task``.

    Of a column of texts ``x`` is ``Texts``, and there is no schema.

    Where medians stand for missing values, there are also ``fills``: those of each client, as
    ``usual`` returns them. The schema has everybody's.

    Args:
        table: The table.
        columns: What settings say of its columns.
        targets: What targets are; classes may be text.
        split: Which rows are held out: nothing is learned from them, and so no median.

    Raises:
        DataError: As ``encode`` and ``targets_of``.
    """
    path, cells, schema, each = table.path, table.inputs, table.schema, None
    y = targets_of(table, targets)
    if columns.text:
        rows = {"x": texts_of(path, cells, columns), "y": y}
        return rows if table.task is None else {**rows, "task": table.task}
    kind = _numbered(path, columns, y) if targets == "classes" else np.zeros(len(y))
    known: dict[str, Any] = {} if table.task is None else {"task": table.task}
    owner = np.unique(known["task"], return_inverse=True)[1] if known else None
    learned = ~split(kind, owner)
    if schema.missing == "refuse" and cells.isna().to_numpy().any():
        check_there(path, dict(cells.items()), "; ".join([DECLARE, *table.notes]))
    if schema.missing == "median":
        owner = np.zeros(len(y), dtype=np.intp) if owner is None else owner
        count = int(owner.max(initial=0)) + 1
        known["fills"] = usual(schema, cells[learned], owner[learned], count)
        each = [values[owner] for values in known["fills"]]
        schema = filled(schema, cells[learned])
    x = encode(schema, path, cells, each)
    return {"x": x, "schema": schema, "y": y, **known}


def targets_of(table: RawTable, targets: Targets) -> _Array:
    """Returns the targets of rows, as their source has them.

    Raises:
        DataError: Some are missing, or no numbers where these are wanted.
    """
    column = table.target
    if column is None:  # given beside the frame
        return np.asarray(table.y)
    wanted = column if targets == "classes" else replace(column, kind="number", values=())
    return labels_of(table.path, wanted, table.y.to_frame())


def _numbered(path: Path, columns: Columns, y: _Array) -> _Array:
    """Returns classes, (n,) or one-hot (n, k), in the order in which they are numbered later on."""
    if y.ndim == 2:
        y = y.argmax(axis=1) if y.shape[1] > 1 else y[:, 0]
    text = is_text(y)
    if not text and columns.target not in columns.values.declared:
        return y
    whole = y if text else y.astype(np.int64)
    return columns.values.numbered(path, columns.target, whole.astype(str))
