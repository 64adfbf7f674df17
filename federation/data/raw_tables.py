"""Tables as their sources have them: the one reader of their columns.

CSV files, data frames, and arrays that name their columns become the same record.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.checks import Fault
from federation.data.cells import check_there
from federation.data.encoding import read_cells
from federation.data.frames import check_columns, is_frame
from federation.data.lazy import Lazy
from federation.data.schema.fitting import fit
from federation.data.schema.roles import check_roles, parts_of
from federation.data.schema.table_files import read_rows
from federation.data.schema.typed import is_plain, typed
from federation.data.shaping import PART, say_once
from federation.data.values import Columns, name_order
from federation.errors import DataError, few_names
from federation.machine import check_rows
from federation.schema import Column, Schema

_Array = npt.NDArray[Any]


class RawTable(NamedTuple):
    """A table.

    Attributes:
        path: Where it is, for messages.
        inputs: Its columns of inputs, as ``read_cells`` returns them; texts as they are.
        y: The target of each row: a column as ``typed`` returns it, or an array that was given.
        task: The client of each row, (n,); None if the table does not say.
        schema: The schema of its inputs.
        target: The column of targets; None where they were given beside the table.
        part: As ``PART``; None if the table does not say.
    """

    path: Path
    inputs: Any
    y: Any
    task: _Array | None
    schema: Schema
    target: Column | None = None
    part: _Array | None = None


def of_file(path: Path, columns: Columns) -> RawTable:
    """Reads a file; for its columns and errors see ``of_frame`` and ``read_rows``."""
    schema = columns.schema
    numbers = [c.name for c in schema.columns if is_plain(schema.column(c.name))]
    return of_frame(path, read_rows(path, schema.file, numbers), columns)


def of_frame(
    path: Path, frame: Any, columns: Columns, y: _Array | None = None, task: _Array | None = None
) -> RawTable:
    """Returns a data frame as a table.

    Args:
        path: Where it is, for messages.
        frame: The frame.
        columns: What its columns are.
        y: Targets that are given beside it.
        task: Clients that are given beside it.

    Raises:
        DataError: It lacks a column, or the client of some rows, or may be read in several ways; it
            says which.
    """
    if y is None:
        check_columns(path, [columns.target], frame.columns)
    columns = columns if y is None else columns._replace(target="")
    columns.check_task(path, frame.columns if task is None else [columns.task])
    names = inputs_of(path, columns, frame.columns)
    if columns.task in frame:
        if task is not None:
            advice = f"leave out the column {columns.task}, or set another task-column"
            raise DataError(f"{path} must name the clients of rows once: {advice}")
        task = labels_of(path, fit(frame[[columns.task]], Schema()).schema.columns[0], frame)
    for name in columns.drop:
        if name not in names:
            has = few_names(names)
            raise DataError(f"{path} has no feature {name!r} to be left out; it has {has}")
    names = [name for name in names if name not in columns.drop]
    there = [name for name in (*names, columns.target) if name in frame]
    fitted = fit(frame[there], columns.schema, target=columns.target, is_written=columns.is_known)
    for note in (*fitted.notes, *map(str, () if columns.strict else fitted.questions)):
        say_once(f"{path}: {note}")
    if fitted.questions and columns.strict:
        asked = [Fault((), str(each), (each.column,)) for each in fitted.questions]
        raise DataError(asked[0]._replace(text=f"{path}: {asked[0].text}"), *asked[1:])
    read = fitted.schema.by_name
    known = [read.get(name) or columns.schema.column(name) for name in names]
    schema = columns.of_inputs(path, known)
    inputs = frame[names] if columns.text else read_cells(schema, path, frame)
    target = fitted.schema.column(columns.target) if y is None else None
    part = parts_of(path, columns.schema, frame)
    y = frame[columns.target] if y is None else y
    return RawTable(path, inputs, y, task, schema, target, part)


def labels_of(path: Path, column: Column, frame: Any) -> _Array:
    """Returns a column of clients, or of classes: whole numbers, truth values, numbers or text.

    Raises:
        DataError: Some are missing, or none of the column's values.
    """
    try:
        cells = typed(column, frame[column.name])
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    check_there(path, {column.name: cells})
    kind: Any = {"whole": np.int64, "truth": bool}.get(column.kind, np.float64)
    return np.asarray(cells.to_numpy(dtype=kind if cells.dtype.kind == "f" else str))


def inputs_of(path: Path, columns: Columns, names: Any) -> list[str]:
    """Returns the names of the columns of inputs, those among them that the table may lack.

    Raises:
        DataError: If there is no such column, or none of the target.
    """
    needed = [name for name in columns.inputs if name not in columns.defaults]
    check_columns(path, [*filter(None, [columns.target]), *needed], names)
    check_roles(path, columns.schema, columns.target, columns.inputs)
    aside = {column.name for column in columns.schema.columns if column.role != "input"}
    found = [name for name in names if name not in (columns.target, columns.task, *aside)]
    if not found:
        besides = f" besides {columns.target}" if columns.target else ""
        raise DataError(f"{path} must have a column{besides} to learn from")
    return list(columns.inputs) or (sorted(found, key=name_order) if columns.by_name else found)


def of_arrays(path: Path, arrays: Mapping[str, Any], columns: Columns) -> RawTable:
    """Returns arrays, by the names that an .npz file has for them, as a table.

    Args:
        path: Where they are, for messages.
        arrays: Inputs ``x``, a data frame or an array (n, d) whose columns ``x_names`` may name;
            targets ``y``, of several columns the one that ``y_names`` calls as the target is; and
            clients, in an array of the task column's name or in a column of the frame.
        columns: What its columns are.

    Raises:
        DataError: They are something else.
    """
    if missing := {"x", "y"} - arrays.keys():
        raise DataError(f"{path} must hold x and y (and task, if wanted); it lacks {min(missing)}")
    x, y, name = arrays["x"], arrays["y"], "task"
    if not is_frame(x):
        x, y, name = framed(path, arrays), _column(path, arrays, columns.target), columns.task
    task = arrays.get(name)
    if not len(x):
        raise DataError(f"{path} must hold some rows")
    if PART in arrays and (name := columns.schema.of_role("part")):
        raise DataError(f"{path}: test rows are given, and the column {name} names them, too")
    wrong = {"y": y} if y.shape[:1] != x.shape[:1] else {}
    wrong |= {name: task} if task is not None and task.shape != x.shape[:1] else {}
    for key, array in wrong.items():
        raise DataError(f"{path}: {key} must have shape {x.shape[:1]}, got {array.shape}")
    return of_frame(path, x, columns, y, task)


def framed(path: Path, arrays: Mapping[str, Any]) -> Any:
    """Returns an array ``x`` (n, d) as a data frame, whose columns ``x_names`` may name.

    Raises:
        DataError: There is no such array, or its columns do not have so many names.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import, not always needed

    if "x" not in arrays:
        held = [name for name in arrays if name != "x_names"]
        raise DataError(f"{path} must hold x; it holds {few_names(held) or 'no arrays'}")
    x = arrays["x"]
    x = x.take(np.arange(len(x))) if isinstance(x, Lazy) else x
    if x.ndim != 2 or x.dtype.kind not in "buif":
        raise DataError(
            f"{path}: x must be numbers of shape (rows, columns), got {x.dtype} of shape {x.shape}"
        )
    check_rows(f"{path} in float64", 8 * x.size)
    columns = named(path, arrays, "x_names", x.shape[1])
    return pd.DataFrame(x.astype(np.float64), columns=columns)


def by_name(path: Path, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arrays whose columns of inputs, if ``x_names`` names them, are in that order.

    Raises:
        DataError: As ``named``.
    """
    parts = {key: arrays[key] for key in ("x", "x_train", "x_test") if key in arrays}
    shapes = {(part.like if isinstance(part, Lazy) else part).shape[1:] for part in parts.values()}
    if "x_names" not in arrays or len(shapes) != 1 or len(shape := shapes.pop()) != 1:
        return dict(arrays)
    names = named(path, arrays, "x_names", shape[0])
    order = sorted(range(len(names)), key=lambda k: name_order(names[k]))

    def take(rows: _Array) -> _Array:
        return rows[:, order]

    inputs = {k: x.then(take) if isinstance(x, Lazy) else take(x) for k, x in parts.items()}
    return {**arrays, **inputs, "x_names": np.array(names)[order]}


def _column(path: Path, arrays: Mapping[str, _Array], target: str) -> _Array:
    y = arrays["y"]
    if y.ndim != 2:
        names = ["y", *map(str, np.ravel(arrays.get("y_names", ())))]
        if target not in names:
            raise DataError(f"{path}: y is one column, {names[-1]}: there is no {target!r}")
        return y
    names = named(path, arrays, "y_names", y.shape[1])
    if target not in names:
        choose = f"choose one by target-column, got {target!r}"
        raise DataError(f"{path}: y has the columns {few_names(names)}: {choose}")
    return np.asarray(y[:, names.index(target)])


def named(path: Path, arrays: Mapping[str, Any], key: str, count: int) -> list[str]:
    """Returns the names of columns of an array: those that ``key`` holds, or x0, x1, ...

    Raises:
        DataError: They are not different names, one for each column.
    """
    default = [f"{key[0]}{k}" for k in range(count)]
    names = [str(name) for name in np.ravel(arrays.get(key, default))]
    if len(set(names)) < len(names):
        raise DataError(f"{path}: {key} must be different, got {few_names(names)}")
    if len(names) != count:
        raise DataError(f"{path}: {key} must name {count} columns, got {few_names(names)}")
    return names
