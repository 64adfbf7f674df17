"""Tables as rows for networks: numbers as they are, and columns of text as one column a value.

What the columns of inputs are depends on the header and the values of text alone, and not on which
values are missing: so they are the same on all nodes.
"""

from collections.abc import Collection
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.metrics import Targets
from federation.data.arrays import HeldOut
from federation.data.tables import check_columns, numbers, read_frame
from federation.data.values import Columns
from federation.errors import DataError

__all__ = [
    "check_there",
    "indicators",
    "inputs_of",
    "kinds_of",
    "numbered",
    "read_csv",
    "rows_of",
    "typed",
    "usual",
]

_Array = npt.NDArray[Any]


def read_csv(path: Path, columns: Columns, targets: Targets, split: HeldOut) -> dict[str, _Array]:
    """Reads a file with a header, as ``rows_of`` says."""
    return rows_of(path, read_frame(path), columns, targets, split)


def rows_of(
    path: Path, frame: Any, columns: Columns, targets: Targets, split: HeldOut
) -> dict[str, _Array]:
    """Returns arrays ``x`` (n, d), ``y`` and, where there is such a column, ``task``.

    Args:
        path: Where the table is, for messages.
        frame: The table.
        columns: What its columns are.
        targets: What targets are; classes may be text.
        split: Which rows are held out: no model is to learn from their values.

    Raises:
        DataError: If it lacks a column, or values where none may be missing; it says in which
            column and row.
    """
    features = inputs_of(path, columns, frame.columns)
    found, owner, learned = kinds_of(path, frame, columns, targets, split)
    parts = (_inputs(path, name, frame[name], owner, learned, columns) for name in features)
    return found | {"x": np.stack([*chain(*parts)], axis=1).astype(np.float32)}


def kinds_of(
    path: Path, frame: Any, columns: Columns, targets: Targets, split: HeldOut
) -> tuple[dict[str, _Array], _Array, _Array]:
    """Returns ``y`` and ``task``; whose each row is, (n,); and whether it is for training, (n,).

    For the arguments and errors see ``rows_of``.
    """
    found: dict[str, _Array] = {}
    for key, name in (("y", columns.target), ("task", columns.task)):
        if name in frame.columns:
            check_there(path, name, frame[name].isna().to_numpy(), "a row needs one")
            found[key] = frame[name].to_numpy()
    if targets != "classes" and found["y"].dtype.kind not in "iuf":
        found["y"] = numbers(path, columns.target, frame[columns.target], "code it by numbers")
    kind = numbered(path, columns, found["y"]) if targets == "classes" else np.zeros(len(frame))
    owner = found.get("task", np.zeros(len(frame)))
    return found, owner, ~split(kind, found.get("task"))


def inputs_of(path: Path, columns: Columns, names: Collection[str]) -> list[str]:
    """Returns the names of the columns of inputs.

    Raises:
        DataError: If there is no such column, or none of the target.
    """
    check_columns(path, [columns.target, *columns.inputs], names)
    found = [name for name in names if name not in (columns.target, columns.task)]
    if not found:
        raise DataError(f"{path} must have a column besides {columns.target} to learn from")
    return list(columns.inputs) or found


def numbered(path: Path, columns: Columns, y: _Array) -> _Array:
    """Returns classes as numbers, where they are text or declared."""
    if columns.target not in columns.values.declared and y.dtype.kind in "iuf":
        return y
    return columns.values.numbered(path, columns.target, y.astype(str))


def _inputs(
    path: Path, name: str, column: Any, owner: _Array, learned: _Array, columns: Columns
) -> list[_Array]:
    """Returns what a column is to a network: one column of numbers or, of text, one a value."""
    missing = column.isna().to_numpy()
    if columns.missing == "refuse":
        check_there(path, name, missing, "set missing=median or missing=indicator")
    column = typed(name, column, columns)
    text = column.dtype == "string"
    if columns.missing == "median" and missing.any():
        known = column.where(learned).groupby(owner)
        column = column.fillna(known.transform(usual if text else "median"))
    flags = [missing] if columns.missing == "indicator" else []
    if not text:
        return [column.fillna(0).to_numpy(dtype=np.float64), *flags]
    return [*indicators(path, name, column, columns), *flags]


def typed(name: str, column: Any, columns: Columns) -> Any:
    """Returns a column of inputs as pandas' ``string``, if it is one of text, or ``Float64``."""
    column = column.convert_dtypes()  # else truth values with some missing would be text
    text = name in columns.values.declared or column.dtype.kind not in "biuf"
    return column.astype("string" if text else "Float64")


def usual(column: Any) -> Any:
    """Returns the median of numbers, or the commonest of texts; None or NA if there are none."""
    if column.dtype != "string":
        return column.median()
    found = column.mode()
    return found.iloc[0] if len(found) else None


def indicators(path: Path, name: str, column: Any, columns: Columns) -> list[_Array]:
    """Returns for each value of a column of text which rows have it, (n,).

    Raises:
        DataError: As ``Values.of``.
    """
    there = column.notna().to_numpy()
    values = columns.values.of(path, name, column[there].to_numpy(dtype=str))
    return [(column == value).fillna(False).to_numpy(dtype=bool) for value in values]


def check_there(path: Path, name: str, missing: _Array, advice: str) -> None:
    """Refuses a column that lacks a value, with a ``DataError`` that names its row."""
    if missing.any():
        raise DataError(f"{path}: {name} is missing in row {int(np.argmax(missing))}: {advice}")
