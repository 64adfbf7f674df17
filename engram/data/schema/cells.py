"""Cells of a column as they are written, and as they are meant."""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engram.data.schema.columns import Column
from engram.settings.errors import DataError, brief, few_names

NOTHING: Final = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "<NA>"})
"""Cells that count as missing unless a schema has them among a column's values."""

# A number as programs write it; digits that are a code, since a number begins with no zero.
NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
GROUPED: Final = re.compile(r"[+-]?(0|[1-9]\d{0,2}(\.\d{3})*)", re.ASCII)
"""A whole number with points between its thousands, if it has any."""
CODE: Final = re.compile(r"[+-]?0\d+", re.ASCII)
BLANKS: Final = {0xA0: " ", 0x202F: " "}  # that do not break, as between thousands
EXACT: Final = 2**53  # whole numbers below it are float64


def meant(column: Column, texts: Iterable[str]) -> list[str | None]:
    """Returns the meaning of cells; None where one is missing.

    In columns of numbers -99 as a code for a missing value is -99.0 and -99,00, too.
    """
    gone = {*column.missing, *(NOTHING - {*column.values})}
    of_numbers = column.missing and column.kind in ("", "number", "whole")
    codes = {number(column, code) for code in column.missing} - {None} if of_numbers else set()
    found = [column.codes.get(text, column.codes.get(text.strip(), text.strip())) for text in texts]
    return [
        None if text in gone or (codes and _is_one(column, text, codes)) else text for text in found
    ]


def _is_one(column: Column, text: str, codes: Collection[float | None]) -> bool:
    return number(column, text) in codes and not CODE.fullmatch(text)


def number(column: Column, text: str) -> float | None:
    """Returns a text as a number, by the column's unit and marks; None if it is none."""
    text = text.translate(BLANKS)
    if column.unit:
        text = text.removesuffix(column.unit).removeprefix(column.unit).strip()
    if column.thousands:
        head, mark, tail = text.partition(column.decimal or ".")
        first, *others = head.split(column.thousands)
        if any(len(each) != 3 for each in others) or (others and not first.lstrip("+-")):
            return None
        text = first + "".join(others) + mark + tail
    if column.decimal == ",":
        text = text.replace(".", "?").replace(",", ".")
    text = text.replace("\u2212", "-")  # the sign of mathematics
    return float(text) if NUMBER.fullmatch(text) else None


def row_name(label: Any) -> str:
    """Returns a row's name in messages: its number in the table, or in its client's."""
    return f"row {label[1]} of {label[0]}" if isinstance(label, tuple) else f"row {label}"


def named_cells(given: Any, rows: npt.NDArray[np.int64], wrong: Sequence[int]) -> str:
    """Names three different cells by their rows, and counts the others.

    ``rows`` is the number of each row's cell in ``given``; ``wrong`` are numbers of cells.
    """
    there = np.flatnonzero(np.isin(rows, wrong))
    first = there[np.sort(np.unique(rows[there], return_index=True)[1])]
    shown = ", ".join(
        f"{brief(_text(given.iloc[row]))} in {row_name(given.index[row])}" for row in first[:3]
    )
    more = len(there) - len(first[:3])
    return f"{shown} and {more} more rows" if more else shown


def texts_of(different: Any) -> npt.NDArray[Any]:
    """Returns different cells of a column as texts."""
    cells = different.to_numpy(dtype=object) if hasattr(different, "to_numpy") else different
    return np.array([c if isinstance(c, str) else _text(c) for c in cells], dtype=object)


def _text(cell: Any) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.0f}" if cell.is_integer() and abs(cell) < EXACT else repr(cell)


def check_columns(path: Path, wanted: Collection[str], names: Collection[str]) -> None:
    """Refuses a table that lacks columns, with a ``DataError`` that names them."""
    there = {*names}
    if lacking := [name for name in wanted if name not in there]:
        has = few_names(sorted(names, key=wanted.__contains__))
        raise DataError(f"{path} has no column {few_names(map(repr, lacking))}; it has {has}")


def check_there(path: Path, columns: Any, advice: str = "a row needs one") -> None:
    """Refuses columns that lack a value, with a ``DataError`` that names the first of each.

    ``columns`` may be a data frame.
    """
    first = [
        f"{name} is missing in {row_name(column.index[column.isna().argmax()])}"
        for name, column in columns.items()
        if column.hasnans
    ]
    if first:
        raise DataError(f"{path}: {few_names(first)}: {advice}")
