"""Tables as rows for networks: numbers as they are, and columns of text as one column a value.

What the columns of inputs are depends on the header and the values of text alone, and not on which
values are missing: so they are the same on all nodes.
"""

from collections.abc import Collection, Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.metrics import Targets
from federation.data.arrays import HeldOut
from federation.data.cells import check_there, known, numbers, typed, unlike_numbers
from federation.data.frames import check_columns, targets_of
from federation.data.labels import is_text
from federation.data.values import Columns
from federation.errors import DataError

__all__ = ["TableRows", "check_classes", "framed", "indicators", "inputs_of", "parted", "usual"]

_Array = npt.NDArray[Any]


class TableRows(NamedTuple):
    """A table as rows for networks.

    Attributes:
        path: Where it is, for messages.
        inputs: Its columns of inputs, as a data frame.
        columns: What its columns are.
        others: Arrays ``y`` and, where rows name their client, ``task``.
        owner: Whose each row is, (n,).
        learned: Whether a row is for training, (n,): no model learns from values of the others.
    """

    path: Path
    inputs: Any
    columns: Columns
    others: dict[str, _Array]
    owner: _Array
    learned: _Array

    def arrays(self) -> dict[str, _Array]:
        """Returns ``x`` (n, d), ``x_names``, and the others.

        ``x_numeric`` (d,) says which columns of x are numbers, and no indicators.

        Raises:
            DataError: Values are missing where none may be, or are others than numbers and text; it
                says in which columns and rows.
        """
        each = typed(self.path, self.inputs, self.columns)
        if self.columns.missing == "refuse":
            check_there(self.path, each, "set missing=median or missing=indicator")
        parts = (self._inputs(name, column) for name, column in each.items())
        names, values = zip(*(pair for part in parts for pair in part.items()), strict=True)
        x = np.stack(values, axis=1).astype(np.float32)
        numeric = np.array([column.dtype.kind == "f" for column in values])
        return {**self.others, "x": x, "x_names": np.array(names), "x_numeric": numeric}

    def _inputs(self, name: str, column: Any) -> dict[str, _Array]:
        """Returns the inputs that a column is: its numbers or, of text, one for each value."""
        missing, text = column.isna().to_numpy(), column.dtype == "string"
        if self.columns.missing == "median" and missing.any():
            seen = column.where(self.learned).groupby(self.owner)
            column = column.fillna(seen.transform(usual if text else "median"))
        flags = {f"{name} is missing": missing} if self.columns.missing == "indicator" else {}
        if not text:
            return {name: column.fillna(0).to_numpy(dtype=np.float64), **flags}
        return {**indicators(self.path, name, column, self.columns), **flags}


def parted(path: Path, frame: Any, columns: Columns, targets: Targets, split: HeldOut) -> TableRows:
    """Returns a table that has a column of the target.

    Args:
        path: Where the table is, for messages.
        frame: The table.
        columns: What its columns are.
        targets: What targets are; classes may be text.
        split: Which rows are held out.

    Raises:
        DataError: It lacks a column, or the target of some rows; it says which.
    """
    columns.check_task(path, frame.columns)
    check_columns(path, [columns.target], frame.columns)
    inputs = inputs_of(path, columns, frame.columns)
    named = {"y": columns.target, "task": columns.task}
    there = {key: frame[name] for key, name in named.items() if name in frame.columns}
    there["y"] = known(there["y"], columns.missing_values)
    check_there(path, {named[key]: column for key, column in there.items()})
    others = {key: column.to_numpy() for key, column in there.items()}
    if targets == "classes":
        check_classes(path, columns, there["y"])
    elif others["y"].dtype.kind not in "iuf":
        others["y"] = numbers(path, columns.target, there["y"], "code it by numbers")
    return _split(path, frame[inputs], columns, others, targets, split)


def framed(
    path: Path, arrays: Mapping[str, Any], columns: Columns, targets: Targets, split: HeldOut
) -> TableRows:
    """Returns a table of which inputs ``x`` are a data frame, and ``y`` and ``task`` are arrays.

    ``task`` may be a column of the frame instead. Columns of type ``category`` have the values of
    their types, unless these have to be declared.

    For arguments and errors see ``parted``.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import, not always needed

    frame, others = arrays["x"], {name: arrays[name] for name in arrays if name != "x"}
    if columns.task in frame:
        if "task" in others:
            advice = f"leave out the column {columns.task}, or set another task-column"
            raise DataError(f"{path} must name the clients of rows once: {advice}")
        others["task"] = targets_of(columns.task, frame[columns.task])
    elif "task" not in others:
        columns.check_task(path, frame.columns)
    if targets == "classes" and is_text(others["y"]):
        check_classes(path, columns, pd.Series(others["y"], index=frame.index))
    inputs = inputs_of(path, columns._replace(target=""), frame.columns)
    if not columns.values.needed:
        types = {name: getattr(frame[name].dtype, "categories", ()) for name in inputs}
        given = {name: tuple(map(str, values)) for name, values in types.items() if len(values)}
        declared = {**given, **columns.values.declared}
        columns = columns._replace(values=columns.values._replace(declared=declared))
    return _split(path, frame[inputs], columns, others, targets, split)


def _split(
    path: Path,
    inputs: Any,
    columns: Columns,
    others: dict[str, _Array],
    targets: Targets,
    split: HeldOut,
) -> TableRows:
    nothing = np.zeros(len(inputs))
    kind = _numbered(path, columns, others["y"]) if targets == "classes" else nothing
    task = np.unique(others["task"], return_inverse=True)[1] if "task" in others else None
    learned = ~split(kind, task)
    return TableRows(path, inputs, columns, others, nothing if task is None else task, learned)


def inputs_of(path: Path, columns: Columns, names: Collection[str]) -> list[str]:
    """Returns the names of the columns of inputs.

    Raises:
        DataError: If there is no such column, or none of the target.
    """
    check_columns(path, [*filter(None, [columns.target]), *columns.inputs], names)
    found = [name for name in names if name not in (columns.target, columns.task)]
    if not found:
        besides = f" besides {columns.target}" if columns.target else ""
        raise DataError(f"{path} must have a column{besides} to learn from")
    return list(columns.inputs) or found


def check_classes(path: Path, columns: Columns, y: Any) -> None:
    """Refuses a column of classes that are text, where most are numbers, unless it is declared."""
    text = y.dtype.kind == "O" and y.dtype != "category"
    text = text and all(isinstance(cell, Hashable) for cell in y[:1])  # no list of one-hot rows
    if text and columns.target not in columns.values.declared and (unlike := unlike_numbers(y)):
        advice = f"number all classes, or name them by categories={columns.target}=A|B|..."
        raise DataError(f"{path}: {columns.target} has {unlike} among numbers: {advice}")


def _numbered(path: Path, columns: Columns, y: _Array) -> _Array:
    """Returns classes, (n,) or one-hot (n, k), in the order in which they are numbered later on."""
    if y.ndim == 2:
        y = y.argmax(axis=1) if y.shape[1] > 1 else y[:, 0]
    text = is_text(y)
    if not text and columns.target not in columns.values.declared:
        return y
    whole = y if text else y.astype(np.int64)
    return columns.values.numbered(path, columns.target, whole.astype(str))


def usual(column: Any) -> Any:
    """Returns the median of numbers, or the commonest of texts; None or NA if there are none."""
    if column.dtype != "string":
        return column.median()
    found = column.mode()
    return found.iloc[0] if len(found) else None


def indicators(path: Path, name: str, column: Any, columns: Columns) -> dict[str, _Array]:
    """Returns for each value of a column of text which rows have it, (n,), by ``NAME=VALUE``.

    Raises:
        DataError: As ``Values.of``.
    """
    there = column.notna().to_numpy()
    values = columns.values.of(path, name, column[there].to_numpy(dtype=str))
    return {
        f"{name}={value}": (column == value).fillna(False).to_numpy(dtype=bool) for value in values
    }
