"""A CSV file as rows for networks: numbers as they are, and columns of text as one column a value.

What the columns of inputs are depends on the header and the values of text alone, and not on which
values are missing: so they are the same on all nodes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.metrics import Targets
from federation.data.tables import check_columns, numbers, read_frame
from federation.data.values import Columns
from federation.errors import DataError

__all__ = ["read_csv"]

_Array = npt.NDArray[Any]


def read_csv(path: Path, columns: Columns, targets: Targets) -> dict[str, _Array]:
    """Returns arrays ``x`` (n, d), ``y`` and, where the file has it, ``task``.

    Args:
        path: A file with a header.
        columns: What its columns are.
        targets: What targets are; classes may be text.

    Raises:
        DataError: If it is no such file, lacks the target's column, or lacks values where none may
            be missing; it says in which column and row.
    """
    frame = read_frame(path)
    check_columns(path, [columns.target], frame.columns)
    found: dict[str, _Array] = {}
    for key, name in (("y", columns.target), ("task", columns.task)):
        if name in frame.columns:
            _check_there(path, name, frame[name].isna().to_numpy(), "a row needs one")
            found[key] = frame[name].to_numpy()
    y = found["y"]
    declared = columns.target in columns.values.declared
    if targets == "classes" and (declared or y.dtype.kind not in "iuf"):
        found["y"] = columns.values.numbered(path, columns.target, y.astype(str))
    elif y.dtype.kind not in "iuf":
        found["y"] = numbers(path, columns.target, frame[columns.target], "code it by numbers")
    owner = found.get("task", np.zeros(len(frame)))
    features = [name for name in frame.columns if name not in (columns.target, columns.task)]
    if not features:
        raise DataError(f"{path} must have a column besides {columns.target} to learn from")
    parts = [part for name in features for part in _inputs(path, name, frame[name], owner, columns)]
    return found | {"x": np.stack(parts, axis=1).astype(np.float32)}


def _inputs(path: Path, name: str, column: Any, owner: _Array, columns: Columns) -> list[_Array]:
    """Returns what a column is to a network: one column of numbers or, of text, one a value."""
    missing = column.isna().to_numpy()
    if columns.missing == "refuse":
        _check_there(path, name, missing, "set missing=median or missing=indicator")
    column = column.convert_dtypes()  # else truth values with some missing would be text
    text = name in columns.values.declared or column.dtype.kind not in "biuf"
    column = column.astype("string" if text else "Float64")
    if columns.missing == "median" and missing.any():
        column = column.fillna(column.groupby(owner).transform(_commonest if text else "median"))
    flags = [missing] if columns.missing == "indicator" else []
    if not text:
        return [column.fillna(0).to_numpy(dtype=np.float64), *flags]
    there = column.notna().to_numpy()
    values = columns.values.of(path, name, column[there].to_numpy(dtype=str))
    return [*((column == value).fillna(False).to_numpy(dtype=bool) for value in values), *flags]


def _commonest(column: Any) -> Any:
    found = column.mode()
    return found.iloc[0] if len(found) else None


def _check_there(path: Path, name: str, missing: _Array, advice: str) -> None:
    if missing.any():
        raise DataError(f"{path}: {name} is missing in row {int(np.argmax(missing))}: {advice}")
