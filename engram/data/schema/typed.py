"""Cells of a table as numbers and values, by its schema."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from engram.data.schema.cells import NUMBER, meant, named_cells, number, plain_numbers, texts_of
from engram.data.schema.columns import Column
from engram.settings.errors import DataError, few_names

_TRUTH: Final = ("false", "true")
_DAY: Final = 86_400.0  # seconds
_NAMES: Final = {
    "number": "numbers",
    "whole": "whole numbers",
    "truth": "true or false",
    "date": "dates",
}


def typed(column: Column, cells: Any) -> Any:
    """Returns a column of pandas as its schema has it: float64, NaN where one is missing, or text.

    Numbers, whole numbers, truth values (0 and 1), ordered values (0, 1, ...) and dates (days) are
    numbers; values of categories, text and identifiers are of the type ``string``.

    Args:
        column: The column.
        cells: Its cells: text as it is written, or of a type that a source gives.

    Raises:
        DataError: Some cells are something else; it names them, and says in how many rows.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import, not always needed

    if not column.kind:  # as in schemas that were stored before there were kinds
        column = replace(column, kind="category" if column.values else "number")
    plain = cells.astype(object) if str(cells.dtype) == "category" else cells
    if plain.dtype.kind in "iuf" and column.kind in ("number", "whole") and not column.codes:
        return _native(column, plain)
    rows, different = plain.factorize()
    if is_plain(column) and plain.dtype.kind == "O":
        numbers = plain_numbers(texts_of(different))
        if numbers is not None and not (column.kind == "whole" and (numbers % 1).any()):
            return pd.Series(np.append(numbers, np.nan)[rows], index=cells.index)
    texts = [meant(column, text) for text in texts_of(different)]
    read = _READERS.get(column.kind, _value)
    values = [None if text is None else read(column, text) for text in texts]
    wrong = [k for k, text in enumerate(texts) if text is not None and values[k] is None]
    if wrong:
        raise _fault(column, named_cells(cells, rows, wrong))
    if read is _value:
        found = pd.array([*values, None], dtype="string")
        return pd.Series(found[rows], index=cells.index)  # of -1, the last
    numbers = np.array([*values, None], dtype=np.float64)
    return pd.Series(numbers[rows] * column.factor, index=cells.index)


def is_plain(column: Column) -> bool:
    """Whether a column's cells may be numbers as programs write them, or nothing, alone."""
    others = column.codes or column.values or column.missing or column.unit or column.thousands
    marks = others or column.decimal == "," or column.factor != 1
    return column.kind in ("", "number", "whole") and not marks


def _native(column: Column, cells: Any) -> Any:
    """Returns numbers as a source has them, those that stand for nothing as NaN."""
    numbers = cells.astype(np.float64)
    gone = [float(code) for code in column.missing if NUMBER.fullmatch(code)]
    numbers = numbers.mask(numbers.isin(gone)) if gone else numbers
    if column.kind == "whole" and (numbers % 1 > 0).any():
        rows = np.where(numbers % 1 > 0, np.arange(len(numbers)), -1)
        raise _fault(column, named_cells(cells, rows, rows[rows >= 0].tolist()))
    return numbers * column.factor if column.factor != 1 else numbers


def _fault(column: Column, cells: str) -> DataError:
    wanted = few_names(column.values) if column.values else _NAMES.get(column.kind, "text")
    return DataError(f"column {column.name} must hold {wanted}, got {cells}")


# --- One cell, by the column's kind; None where it is none ------------------------------------


def _whole(column: Column, text: str) -> float | None:
    found = number(column, text)
    return None if found is None or found % 1 else found


def _truth(column: Column, text: str) -> float | None:
    known = column.values or _TRUTH
    return _place(known, text if column.values else text.lower())


def _ordered(column: Column, text: str) -> float | None:
    return _place(column.values, text)


def _place(known: tuple[str, ...], text: str) -> float | None:
    return float(known.index(text)) if text in known else None


def _date(column: Column, text: str) -> float | None:
    import pandas as pd  # noqa: PLC0415 - slow to import, not always needed

    try:
        at = pd.to_datetime(text, format=column.format or "ISO8601", utc=True)
    except (ValueError, OverflowError):
        return None
    since = pd.Timestamp(column.since or "1970-01-01", tz="UTC")
    return float((at - since).total_seconds() / _DAY)


def _value(column: Column, text: str) -> str | None:
    return text if not column.values or text in column.values else None


_READERS: Final[Mapping[str, Callable[[Column, str], float | str | None]]] = {
    "number": number,
    "whole": _whole,
    "truth": _truth,
    "ordered": _ordered,
    "date": _date,
}
