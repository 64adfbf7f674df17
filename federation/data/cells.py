"""Cells of tables: numbers, text or nothing; the same for every table, wherever it comes from.

The tables are pandas' data frames. A row's name is its number in the table, or, where the index
has two levels, that in its client's: ``row 3 of client north``.
"""

import re
from collections.abc import Collection, Mapping
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engram.checks import Fault
from federation.data.values import Columns, row_name
from federation.errors import DataError, brief, few_names

_MIXED: Final = (
    "correct these cells, count them as missing by missing-values, or declare all values of such a "
    "column by categories"
)
_CODE: Final = re.compile(r"[+-]?0\d")
_STRANGE: Final = "give them as numbers, or leave them out"


def known(column: Any, missing_values: Collection[str]) -> Any:
    """Returns a column in which declared values are missing.

    Args:
        column: As pandas has it.
        missing_values: Texts that stand for a missing value; one of a number, for that number, too.
    """
    if not missing_values:
        return column
    values = {*missing_values, *(float(text) for text in missing_values if _is_number(text))}
    return column.mask(column.astype(object).isin(values))


def typed(path: Path, frame: Any, columns: Columns) -> dict[str, Any]:
    """Returns columns of inputs by name, each as pandas' ``Float64`` or ``string``.

    Truth values are 0 and 1. A declared column, or one of pandas' type ``category``, is text. Text
    is numbers only where all of it is but for cells that ``columns.missing_values`` declares.

    Args:
        path: Where the table is, for messages.
        frame: The columns.
        columns: What they are.

    Raises:
        DataError: Some columns hold text where most cells are numbers, or something else than both,
            such as dates; it names all of these columns, and their cells.
    """
    found: dict[str, Any] = {}
    mixed, strange = dict[str, str](), dict[str, str]()
    for name in frame.columns:
        text = name in columns.values.declared
        found[name], wrong = sorted_out(frame[name], columns.missing_values, text=text)
        if wrong:
            (strange if found[name] is None else mixed)[name] = f"{name} has {wrong}"
    faults = []
    if told := "; ".join(mixed.values()):
        faults.append(f"columns must be of numbers, or of text: {told}: {_MIXED}")
    if told := "; ".join(strange.values()):
        faults.append(f"columns must hold numbers or text: {told}: {_STRANGE}")
    if faults:
        raise DataError(Fault((), f"{path}: {'; '.join(faults)}", tuple(mixed)))
    return found


def sorted_out(given: Any, missing_values: Collection[str], *, text: bool) -> tuple[Any, str]:
    """Returns a column as ``typed`` does, and what is wrong with it; empty if nothing is.

    A column that holds something else than numbers and text is None, and one that holds some text
    where most cells are numbers is as it was.

    Args:
        given: The column.
        missing_values: Texts that stand for a missing value.
        text: Whether it is text, whatever it looks like.
    """
    column = known(given, missing_values).convert_dtypes()
    cells = column.dropna()
    if text or str(column.dtype) == "category" or column.dtype.kind in "biuf":
        numbers = not text and str(column.dtype) != "category"
        return column.astype("Float64" if numbers else "string"), ""
    if len(other := cells[~cells.map(_is_plain).to_numpy(dtype=bool)]):
        return None, named_cells(other[:1])
    if unlike := unlike_numbers(cells):
        return column, f"{unlike} among numbers"
    if not cells.map(means_number).all():
        return column.astype("string"), ""
    if len(cells) < given.count() or not cells.map(type).eq(str).any():
        return column.map(float, na_action="ignore").astype("Float64"), ""
    return column, f"text for numbers, such as {named_cells(cells[:1])}"


def _is_plain(cell: Any) -> bool:
    return isinstance(cell, str | Real | Decimal)


def unlike_numbers(cells: Any) -> str:
    """Names the cells that are no numbers, where most are; empty where not, or where all are.

    Most are if it is most of the cells, or most of the different ones: a text that stands for
    missing numbers may be in most rows.

    Args:
        cells: Numbers and text; none is missing.
    """
    codes, different = cells.factorize()
    numeric = np.array([means_number(cell) for cell in different], dtype=bool)
    most = len(cells) and max(numeric[codes].mean(), numeric.mean()) > 0.5
    return named_cells(cells[~numeric[codes]]) if most else ""


def means_number(cell: Any) -> bool:
    """Returns whether a cell is a number and no code, such as 01."""
    return _is_number(cell) and not _CODE.match(str(cell))


def named_cells(cells: Any) -> str:
    """Names cells for a message."""
    return few_names(f"{brief(cell)} in {row_name(label)}" for label, cell in cells.items())


def numbers(path: Path, name: str, column: Any, advice: str) -> npt.NDArray[np.float64]:
    """Returns a column of a frame; NaN where it is empty.

    Raises:
        DataError: If it holds something else than numbers; it names all these cells, and adds the
            advice.
    """
    try:
        if column.dtype.kind in "mM":  # dates, which pandas takes for nanoseconds
            raise TypeError(str(column.dtype))
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    except (TypeError, ValueError, OverflowError) as error:
        there = column.dropna()
        cells = named_cells(there[~there.map(_is_number).to_numpy(dtype=bool)])
        text = f"{path}: column {name} must hold numbers, got {cells}: {advice}"
        raise DataError(Fault((), text, (name,))) from error


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):  # the last of whole numbers above 1e308
        return False
    return True


def check_there(path: Path, columns: Mapping[str, Any], advice: str = "a row needs one") -> None:
    """Refuses columns that lack a value, with a ``DataError`` that names the first of each."""
    lacking = {name: column[column.isna()].index for name, column in columns.items()}
    first = [
        f"{name} is missing in {row_name(rows[0])}" for name, rows in lacking.items() if len(rows)
    ]
    if first:
        raise DataError(f"{path}: {few_names(first)}: {advice}")
