"""Cells of a table as numbers and values, by its schema."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isnan
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pyarrow import compute

from engram.data.schema.cells import (
    CODE,
    EXACT,
    NOTHING,
    NUMBER,
    meant,
    named_cells,
    number,
    texts_of,
)
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
    """Converts a column of pandas by its schema: to float64 with NaN, or text.

    Numbers, whole numbers, truth values (0 and 1), ordered values (0, 1, ...) and dates (days) are
    numbers; values of categories, text and identifiers are of the type ``string``.

    Raises:
        DataError: Some cells are something else; it names them, and says in how many rows.
    """
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
    texts = meant(column, texts_of(different))
    read = _READERS.get(column.kind, _value)
    if column.kind == "date":
        values: list[Any] = _dates(column, texts)
    else:
        values = [None if text is None else read(column, text) for text in texts]
    wrong = [k for k, text in enumerate(texts) if text is not None and values[k] is None]
    if wrong:
        raise _fault(column, named_cells(cells, rows, wrong))
    values.append(None)  # for the row -1 of a missing cell
    if read is _value and column.kind != "date":
        return pd.Series(pd.array(values, dtype="string")[rows], index=cells.index)
    numbers = np.array(values, dtype=np.float64)
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


def _place(column: Column, text: str) -> float | None:
    known = column.values
    if column.kind == "truth" and not known:
        known, text = _TRUTH, text.lower()
    return float(known.index(text)) if text in known else None


def _dates(column: Column, texts: list[str | None]) -> list[float | None]:
    """Days since a column's first day; None for texts that are no dates."""
    try:
        there = _days(column, pd.Series(texts, dtype=object), errors="coerce")
        days = (there.dt.total_seconds() / _DAY).tolist()
    except ValueError:  # the format is none
        days = [np.nan] * len(texts)
    # Beside nanoseconds there is no room for distant days.
    return [
        _date(column, text) if text is not None and isnan(day) else day
        for text, day in zip(texts, days, strict=True)
    ]


def _date(column: Column, text: str) -> float | None:
    try:
        return float(_days(column, text).total_seconds() / _DAY)
    except (ValueError, OverflowError):
        return None


def _days(column: Column, texts: Any, **how: Any) -> Any:
    since = pd.Timestamp(column.since or "1970-01-01", tz="UTC")
    return pd.to_datetime(texts, format=column.format or "ISO8601", utc=True, **how) - since


def _value(column: Column, text: str) -> str | None:
    return text if not column.values or text in column.values else None


_READERS: Final[Mapping[str, Callable[[Column, str], float | str | None]]] = {
    "number": number,
    "whole": _whole,
    "truth": _place,
    "ordered": _place,
}


def plain_numbers(texts: Any) -> npt.NDArray[np.float64] | None:
    """Converts texts as programs write numbers, all at once; or None.

    Nulls of Arrow become NaN.
    """
    texts = pa.array(texts, pa.string()) if isinstance(texts, np.ndarray) else texts
    try:
        numbers = np.asarray(compute.cast(texts, pa.float64()))
    except pa.ArrowInvalid:
        bare = compute.utf8_trim_whitespace(texts)
        return None if bare.equals(texts) else plain_numbers(bare)
    # Beyond NUMBER, Arrow takes names of infinity and NaN alone.
    if np.isinf(numbers).any() or np.isnan(numbers).sum() > texts.null_count or _has_code(texts):
        return None
    return numbers


def _has_code(texts: pa.StringArray) -> bool:
    """Whether a number begins with a needless zero; looked for in bytes, which is quicker."""
    ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    if not len(data):
        return False
    first = data.take(ends[:-1], mode="clip")
    begin = ends[:-1] + ((first == ord("+")) | (first == ord("-")))
    begin = begin[(data.take(begin, mode="clip") == ord("0")) & (ends[1:] - begin > 1)]
    after = data[begin + 1]
    if not ((after >= ord("0")) & (after <= ord("9"))).any():
        return False
    return bool(compute.any(compute.match_substring_regex(texts, f"^({CODE.pattern})$")).as_py())


class Cells(NamedTuple):
    """The cells of a column, without missing ones.

    Attributes:
        column: What is written of the column.
        given: The column, as pandas has it.
        rows: For each row, the cell's place in ``texts``; -1 where it is missing.
        texts: The different cells, as they are meant.
        numbers: The number that each is; None unless all are numbers.
        nothing: Cells such as NA, which the schema does not declare, and how many there are.
        blanks: Cells that differ from another one in blanks around them alone.
    """

    column: Column
    given: Any
    rows: npt.NDArray[np.int64]
    texts: npt.NDArray[Any]
    numbers: npt.NDArray[np.float64] | None
    nothing: Mapping[str, int] = MappingProxyType({})
    blanks: tuple[str, ...] = ()

    @classmethod
    def of(cls, column: Column, given: Any) -> Self:
        """Reads a column of pandas: of text as it is written, or of a type that a source gives."""
        plain = given.astype(object) if str(given.dtype) == "category" else given
        rows, found = plain.factorize()
        if plain.dtype.kind in "iuf" and not (column.missing or column.codes):
            typed = np.asarray(found, np.float64)
            whole = np.all((np.trunc(typed) == typed) & (abs(typed) < EXACT))
            texts = typed.astype(np.int64) if whole else np.asarray(found)
            return cls(column, given, rows, texts, typed)
        has_marks = column.unit or column.thousands or column.decimal == ","
        if plain.dtype.kind == "O" and not (column.missing or column.codes or has_marks):
            texts = texts_of(found)
            is_bare = all(text == text.strip() for text in texts)
            if is_bare and (numbers := plain_numbers(texts)) is not None:
                return cls(column, given, rows, texts, numbers)
        written = texts_of(found).tolist()
        means = meant(column, written)
        place = {text: k for k, text in enumerate(dict.fromkeys(filter(None, means)))}
        moved = np.array([*(place.get(text, -1) if text else -1 for text in means), -1])
        said = [k for k, text in enumerate(written) if text.strip() in NOTHING - {""}]
        said = [k for k in said if not means[k] and written[k].strip() not in column.missing]
        known = {*written}
        blanks = (t for t in written if t not in column.codes and t != t.strip() in known)
        return cls(
            column,
            given,
            moved[rows],
            np.array(list(place), dtype=object),
            _numbers(column, list(place), typed=plain.dtype.kind in "iuf"),
            {written[k].strip(): int(np.count_nonzero(rows == k)) for k in said},
            tuple(blanks),
        )

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Counts of each of ``texts``."""
        return np.bincount(self.rows[self.rows >= 0], minlength=len(self.texts))

    @property
    def size(self) -> int:
        """Number of cells."""
        return int(np.count_nonzero(self.rows >= 0))

    @property
    def whole(self) -> bool:
        """Whether all cells are whole numbers."""
        return self.numbers is not None and bool(np.all(np.trunc(self.numbers) == self.numbers))

    def all(self, test: Callable[[str], object]) -> bool:
        """Whether a test holds for every cell, of which there must be one."""
        return len(self.texts) > 0 and all(test(str(text)) for text in self.texts)

    def shown(self) -> tuple[str, ...]:
        """Returns three of the cells."""
        return tuple(map(str, self.texts[:3]))

    def named(self, wrong: npt.NDArray[np.bool_]) -> str:
        """Returns some of ``texts`` with the first row of each."""
        return named_cells(self.given, self.rows, np.flatnonzero(wrong).tolist())


def _numbers(column: Column, texts: list[str], *, typed: bool) -> npt.NDArray[np.float64] | None:
    found = [number(column, text) for text in texts]
    plain = not column.unit and column.decimal != "," and not column.thousands
    code = not typed and plain and any(map(CODE.fullmatch, texts))
    return None if code or None in found or not found else np.array(found, dtype=np.float64)
