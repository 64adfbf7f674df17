"""Tables as rows for networks: the schema is fitted, and the rows are encoded by it."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.checks import Fault
from engram.metrics import Targets
from federation.data.arrays import HeldOut
from federation.data.cells import check_there, known, numbers, unlike_numbers
from federation.data.encoding import encode, filled, fit, usual
from federation.data.labels import is_text
from federation.data.raw_tables import RawTable
from federation.data.texts import texts_of
from federation.data.values import Columns
from federation.errors import DataError

_Array = npt.NDArray[Any]


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
        DataError: As ``fit`` and ``targets_of``.
    """
    path, inputs = table.path, table.inputs
    y = targets_of(table, columns, targets)
    if columns.text:
        rows = {"x": texts_of(path, inputs, columns), "y": y}
        return rows if table.task is None else {**rows, "task": table.task}
    kind = _numbered(path, columns, y) if targets == "classes" else np.zeros(len(y))
    known: dict[str, Any] = {} if table.task is None else {"task": table.task}
    owner = np.unique(known["task"], return_inverse=True)[1] if known else None
    learned = ~split(kind, owner)
    schema, each = fit(path, inputs, columns), None
    if schema.missing == "median":
        owner = np.zeros(len(y), dtype=np.intp) if owner is None else owner
        count = int(owner.max(initial=0)) + 1
        known["fills"] = usual(schema, path, inputs[learned], owner[learned], count)
        each = [values[owner] for values in known["fills"]]
        schema = filled(schema, path, inputs[learned])
    x = encode(schema, path, inputs, each).astype(np.float32)
    return {"x": x, "schema": schema, "y": y, **known}


def targets_of(table: RawTable, columns: Columns, targets: Targets) -> _Array:
    """Returns the targets of rows, as their source has them.

    Raises:
        DataError: Some are missing, no numbers where these are wanted, or text among numbers.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import, not always needed

    path, y = table.path, table.y
    if isinstance(y, np.ndarray):  # given beside the frame
        if targets == "classes" and is_text(y):
            check_classes(path, columns, pd.Series(y, index=table.inputs.index))
        return y
    y = known(y, columns.missing_values)
    check_there(path, {columns.target: y})
    if targets == "classes":
        check_classes(path, columns, y)
    elif y.dtype.kind not in "iuf":
        return numbers(path, columns.target, y, "code it by numbers")
    return np.asarray(y.to_numpy())


def check_classes(path: Path, columns: Columns, y: Any) -> None:
    """Refuses a column of classes that are text, where most are numbers, unless it is declared."""
    text = y.dtype.kind == "O" and y.dtype != "category"
    text = text and all(isinstance(cell, Hashable) for cell in y[:1])  # no list of one-hot rows
    if text and columns.target not in columns.values.declared and (unlike := unlike_numbers(y)):
        advice = f"number all classes, or name them by categories={columns.target}=A|B|..."
        text = f"{path}: {columns.target} has {unlike} among numbers: {advice}"
        raise DataError(Fault((), text, (columns.target,)))


def _numbered(path: Path, columns: Columns, y: _Array) -> _Array:
    """Returns classes, (n,) or one-hot (n, k), in the order in which they are numbered later on."""
    if y.ndim == 2:
        y = y.argmax(axis=1) if y.shape[1] > 1 else y[:, 0]
    text = is_text(y)
    if not text and columns.target not in columns.values.declared:
        return y
    whole = y if text else y.astype(np.int64)
    return columns.values.numbered(path, columns.target, whole.astype(str))
