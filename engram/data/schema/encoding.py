"""Rows of a table as inputs, by its schema.

Rows, ``cells``, are as ``read_cells`` returns them; ``path`` is where they are, for messages;
``owner``, (n,), numbers the owner of each row from 0.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from engram.core.arrays import Array, Bools, Ints
from engram.core.checks import Fault
from engram.data.lazy import Texts
from engram.data.schema.cells import check_columns, check_there, row_name
from engram.data.schema.columns import Column, Schema
from engram.data.schema.declared import Declared
from engram.data.schema.typed import is_plain, typed
from engram.settings.errors import DataError, brief, few_names, refusals

_LACKING: Final = "the model has learned from rows where none is missing"
_EMPTY: Final = "set missing=indicator for an empty text"


def encode(schema: Schema, path: Path, cells: Any, fills: Sequence[Any] | None = None) -> Array:
    """Returns rows as inputs, (n, d).

    ``fills`` are for each column the values that stand for a missing one in each row, (n,); None
    for each column's ``fill``, or else its ``default``.

    Raises:
        DataError: Values are missing where none may be; it names all of these columns.
    """
    if schema.missing == "refuse":
        check_there(path, cells, _LACKING)
    fills = [_stand_in(column) for column in schema.columns] if fills is None else fills
    found = np.empty((len(cells), len(schema.inputs)))
    places = iter(found.T)
    for column, fill, (_, given) in zip(schema.columns, fills, cells.items(), strict=True):
        for values in _encoded(schema, column, given, fill):
            next(places)[:] = values
    return found


def encode_learned(
    schema: Schema, path: Path, cells: Any, owner: Ints | None, learned: Bools
) -> tuple[Array, Schema, list[npt.NDArray[Any]]]:
    """Encodes rows with owners' medians for missing values, where they may.

    ``owner`` is None if all rows have one; ``learned``, (n,), are the rows that medians, and
    commonest values, are of.

    Returns:
        The inputs, (n, d); the schema with what stands for missing values of whoever is no owner;
        and what does for each owner's, as ``usual`` returns it: nothing unless medians do.

    Raises:
        DataError: As ``encode``.
    """
    if schema.missing != "median":
        return encode(schema, path, cells), schema, []
    owner = np.zeros(len(cells), dtype=np.intp) if owner is None else owner
    fills = usual(schema, cells[learned], owner[learned], int(owner.max(initial=0)) + 1)
    x = encode(schema, path, cells, [values[owner] for values in fills])
    return x, filled(schema, cells[learned]), fills


def gaps(schema: Schema, cells: Any) -> Bools:
    """Marks inputs of missing values, (n, d), that are no inputs themselves."""
    counts = [len(schema.levels(c)) if c.is_category else 1 for c in schema.columns]
    return np.repeat(cells.isna().to_numpy(), counts, axis=1)


def read_cells(schema: Schema, path: Path, frame: Any) -> Any:
    """Returns the columns of a schema as a data frame of numbers and values, as ``typed`` does.

    The rows of ``frame`` have these columns among others, in any order; where one with a
    ``default`` is lacking, all its values are missing.

    Raises:
        DataError: A column is lacking, or cells are not what the schema says, or infinite; it
            names all these columns.
    """
    check_columns(path, [c.name for c in schema.columns if c.default is None], frame.columns)
    plain = _plain(schema, frame)
    numbers = frame[plain].astype(np.float64)
    if plain == [*schema.names]:
        return numbers
    found, faults = dict[str, Any](), list[Fault]()
    for name in schema.names:
        if name in numbers:
            found[name] = numbers[name]
            continue
        given = frame[name] if name in frame else pd.Series(np.nan, index=frame.index)
        try:
            cells = typed(schema.column(name), given)
        except DataError as error:
            faults += [Fault((), f"{path}: {each.text}", (name,)) for each in error.faults]
            continue
        found[name] = cells
        if cells.dtype.kind == "f" and len(odd := frame.index[np.isinf(cells.to_numpy())]):
            fault = f"{path}: {name} is infinite in {row_name(odd[0])}: leave it empty"
            faults.append(Fault((), fault, (name,)))
    if faults:
        lacking = refusals(lambda: check_there(path, found, _LACKING))
        raise DataError(*(lacking if schema.missing == "refuse" else []), *faults)
    return pd.DataFrame(found, index=frame.index, copy=False)


def _plain(schema: Schema, frame: Any) -> list[str]:
    """Returns columns of finite numbers as they are, whole where they must be."""
    plain = {name for name in schema.names if is_plain(schema.column(name))}
    types = zip(frame.columns, frame.dtypes, strict=True)
    there = {name for name, dtype in types if name in plain and dtype.kind in "iuf"}
    names = [name for name in schema.names if name in there]
    if not names:
        return []
    return [name for name in names if _is_right(schema, name, frame[name])]


def _is_right(schema: Schema, name: str, column: Any) -> bool:
    numbers = column.to_numpy(np.float64, na_value=np.nan)
    is_whole = schema.by_name[name].kind == "whole"
    return not (np.isinf(numbers).any() or (is_whole and (numbers % 1 > 0).any()))


def _stand_in(column: Column) -> float | str | None:
    return column.default if column.fill is None else column.fill


def usual(schema: Schema, cells: Any, owner: Ints, owners: int) -> list[npt.NDArray[Any]]:
    """Returns for each column the median, or commonest value, of each owner's rows.

    Where an owner has no value it is the column's own, if it has one, and else NaN or None.
    """
    found = []
    for column in schema.columns:
        groups, text = cells[column.name].groupby(owner), column.is_category
        each = (groups.agg(_commonest) if text else groups.median()).reindex(range(owners))
        values = np.array(each.to_numpy(dtype=object, na_value=None) if text else each.to_numpy())
        if (own := _stand_in(column)) is not None:
            values[each.isna().to_numpy()] = own
        found.append(values)
    return found


def filled(schema: Schema, cells: Any) -> Schema:
    """Returns the schema with the rows' medians and commonest values for missing ones.

    A column without a value in these rows keeps its own.
    """
    everybody = np.zeros(len(cells), dtype=np.intp)
    return schema.with_fills([values[0] for values in usual(schema, cells, everybody, 1)])


def _encoded(schema: Schema, column: Column, cells: Any, fill: Any) -> list[npt.NDArray[Any]]:
    """The inputs of a column, each (n,)."""
    gone = [cells.isna().to_numpy()] if schema.missing == "indicator" else []
    if not column.is_category:
        fill = np.nan_to_num(0.0 if fill is None else fill)
        numbers = cells.to_numpy()
        return [np.where(np.isnan(numbers), fill, numbers) if cells.hasnans else numbers, *gone]
    text = cells if fill is None else cells.where(cells.notna(), fill)
    levels = schema.levels(column)
    return [*((text == v).fillna(False).to_numpy(dtype=bool) for v in levels), *gone]


def _commonest(column: Any) -> Any:
    found = column.mode()
    return found.iloc[0] if len(found) else None


def read_texts(path: Path, frame: Any, columns: Declared) -> Texts:
    """Returns the texts of a table that has such, as rows without a tokenizer.

    A missing text is refused, or else an empty one.

    Raises:
        DataError: There is no such column; some texts are missing, or are something else.
    """
    text, schema = columns.text, columns.schema
    assert text is not None  # for mypy: it has such
    check_columns(path, [text.name], frame.columns)
    given = frame[text.name]
    cells = given.mask(given.isin({"", *schema.column(text.name).missing}))
    if schema.missing == "refuse":
        check_there(path, {text.name: cells}, _EMPTY)
    there = cells.dropna().items()
    strange = {label: cell for label, cell in there if not isinstance(cell, str)}
    if strange:
        named = few_names(f"{brief(cell)} in {row_name(row)}" for row, cell in strange.items())
        raise DataError(f"{path}: {text.name} must hold texts, got {named}")
    return Texts(cells.astype(object).where(cells.notna(), "").to_numpy(), text.length)
