"""The schema of a table fitted to its rows, and rows encoded by it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engram.arrays import Array, Bools, Ints
from federation.data.cells import check_there, known, numbers, typed
from federation.data.values import Columns, Values, row_name
from federation.errors import DataError, few_names, refusals
from federation.schema import Column, Schema

_LACKING: Final = "the model has learned from rows where none is missing"
_DECLARE: Final = "set missing=median or missing=indicator"


def fit(path: Path, frame: Any, declared: Columns) -> Schema:
    """Returns the schema of a data frame's columns.

    It depends on the header and the values of text alone, and not on which values are missing:
    so it is the same on all nodes, which declare the values of text. A column of type
    ``category`` has the values of its type.

    Args:
        path: Where the table is, for messages.
        frame: The columns of inputs.
        declared: What settings say of them.

    Raises:
        DataError: Values are missing where none may be, are others than numbers and text, or
            are not those that are declared; it says in which columns and rows.
    """
    cells, faults, columns = typed(path, frame, declared), [], []
    if declared.missing == "refuse":
        check_there(path, cells, _DECLARE)
    for name, column in cells.items():
        values: tuple[str, ...] | None = None
        kinds = getattr(frame[name].dtype, "categories", None)
        free = name not in declared.values.declared and not declared.values.needed
        try:
            if kinds is not None and free:
                values = tuple(map(str, kinds))
            elif column.dtype == "string":
                values = _values_of(path, name, column, declared.values)
        except DataError as error:
            faults += error.faults
        columns.append(Column(name, values, default=declared.default_of(path, name, values)))
    if faults:
        raise DataError(*faults)
    return Schema(tuple(columns), declared.missing, declared.missing_values)


def encode(schema: Schema, path: Path, frame: Any, fills: Sequence[Any] | None = None) -> Array:
    """Returns rows as inputs, (n, d), found by the names of columns.

    Args:
        schema: The schema.
        path: Where the rows are, for messages.
        frame: The rows, with these columns among others, in any order; in one that lacks a column
            with a ``default``, all its values are missing.
        fills: For each column, the value that stands for a missing one in each row, (n,); None
            for each column's ``fill``, or else its ``default``.

    Raises:
        DataError: A column is lacking, or values are missing, infinite, of another type, or
            unknown; it names all of these columns.
    """
    names = [str(name) for name in frame.columns]
    _check_names(path, names, [c.name for c in schema.columns if c.default is None])
    cells = _known(schema, frame)
    needed = {name: column for name, column in cells.items() if name in names}
    refused = schema.missing == "refuse"
    faults = refusals(lambda: check_there(path, needed, _LACKING)) if refused else []
    fills = [_stand_in(column) for column in schema.columns] if fills is None else fills
    found: list[npt.NDArray[Any]] = []
    for column, fill in zip(schema.columns, fills, strict=True):
        given = cells[column.name]
        try:
            found += _encoded(path, schema, column, given, fill)
        except DataError as error:
            faults += error.faults
        found += [given.isna().to_numpy()] if schema.missing == "indicator" else []
    if faults:
        raise DataError(*faults)
    return np.stack(found, axis=1).astype(np.float64, copy=False)


def gaps(schema: Schema, frame: Any) -> Bools:
    """Returns which inputs are of missing values, (n, d), where these are no inputs themselves."""
    cells = _known(schema, frame)
    each = [
        (cells[c.name].isna(), 1 if c.values is None else len(schema.levels(c)))
        for c in schema.columns
    ]
    return np.stack([gone for gone, count in each for _ in range(count)], axis=1)


def _known(schema: Schema, frame: Any) -> dict[str, Any]:
    """Returns the columns of a schema, of which the frame may lack some."""
    lacking = [name for name in schema.names if name not in frame]
    frame = frame.assign(**dict.fromkeys(lacking, np.nan)) if lacking else frame
    return {name: known(frame[name], schema.missing_values) for name in schema.names}


def _stand_in(column: Column) -> float | str | None:
    """Returns the value that stands for a missing one, of whoever has no other."""
    return column.default if column.fill is None else column.fill


def usual(
    schema: Schema, path: Path, frame: Any, owner: Ints, owners: int
) -> list[npt.NDArray[Any]]:
    """Returns for each column the median, or commonest text, of each owner's rows.

    Where an owner has no value it is the column's own, if it has one, and else NaN or None.

    Args:
        schema: The schema.
        path: Where the rows are, for messages.
        frame: The rows.
        owner: The owner of each row, (n,), from 0.
        owners: Number of owners.
    """
    found, columns = [], _known(schema, frame)
    for column in schema.columns:
        cells = _cells(path, column, columns[column.name])
        groups, text = cells.groupby(owner), column.values is not None
        each = (groups.agg(_commonest) if text else groups.median()).reindex(range(owners))
        values = np.array(each.to_numpy(dtype=object, na_value=None) if text else each.to_numpy())
        if (own := _stand_in(column)) is not None:
            values[each.isna().to_numpy()] = own
        found.append(values)
    return found


def filled(schema: Schema, path: Path, frame: Any) -> Schema:
    """Returns the schema with the rows' medians and commonest texts for missing values.

    A column without a value in these rows keeps its own.
    """
    everybody = np.zeros(len(frame), dtype=np.intp)
    return schema.with_fills([values[0] for values in usual(schema, path, frame, everybody, 1)])


def in_order(schema: Schema, path: Path, x: Any, names: Sequence[str]) -> Any:
    """Returns an array of inputs, (n, d), whose columns are in another order, in this one.

    Raises:
        DataError: Its columns have other names.
    """
    _check_names(path, names, schema.inputs)
    if x.ndim != 2 or len(names) != x.shape[1]:
        got = f"{len(names)} names for shape {tuple(x.shape)}"
        raise DataError(f"{path}: x_names must name each column of x, got {got}")
    return x[:, [list(names).index(name) for name in schema.inputs]]


def _check_names(path: Path, names: Sequence[str], wanted: Sequence[str]) -> None:
    if lacking := [name for name in wanted if name not in names]:
        others = [name for name in names if name not in wanted]
        but = f"; it has {few_names(others)}, which the model does not know" if others else ""
        raise DataError(f"{path} lacks the columns {few_names(lacking)}{but}")


def _cells(path: Path, column: Column, given: Any) -> Any:
    """Returns a column's cells as float64 or, of text, as ``string``; what is missing stays so."""
    if column.values is not None:
        return given.convert_dtypes().astype("string")
    values = numbers(path, column.name, given, "the model has learned from numbers")
    if np.isinf(values).any():
        row = given.index[int(np.argmax(np.isinf(values)))]
        raise DataError(f"{path}: {column.name} is infinite in {row_name(row)}")
    return given.__class__(values, index=given.index)


def _encoded(
    path: Path, schema: Schema, column: Column, given: Any, fill: Any
) -> list[npt.NDArray[Any]]:
    """Returns the inputs that a column is, each (n,): its numbers, or where it has each value."""
    cells = _cells(path, column, given)
    if column.values is None:
        fill = np.nan_to_num(0.0 if fill is None else fill)
        return [np.where(cells.isna(), fill, cells.to_numpy())]
    text = cells if fill is None else cells.where(cells.notna(), fill)
    _values_of(path, column.name, text, Values({column.name: column.values}))
    levels = schema.levels(column)
    return [(text == value).fillna(False).to_numpy(dtype=bool) for value in levels]


def _values_of(path: Path, name: str, column: Any, values: Values) -> tuple[str, ...]:
    there = column.dropna()
    return values.of(path, name, there.to_numpy(dtype=str), there.index)


def _commonest(column: Any) -> Any:
    found = column.mode()
    return found.iloc[0] if len(found) else None
