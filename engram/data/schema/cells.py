"""Cells of a column as they are written, and as they are meant."""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from engram.data.schema.columns import Column
from engram.settings.errors import brief

NOTHING: Final = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "<NA>"})
"""Cells that count as missing unless a schema has them among a column's values."""

NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
"""A number as programs write it."""

CODE: Final = re.compile(r"[+-]?0\d+", re.ASCII)
"""Digits that are a code, since a number does not begin with a zero."""

_EXACT: Final = 2**53  # whole numbers below it are float64


def meant(column: Column, cell: str) -> str | None:
    """Returns the meaning of a cell; None where it is missing."""
    text = cell if cell in column.codes else cell.strip()
    text = column.codes.get(text, text)
    if text in column.missing or (text in NOTHING and text not in column.values):
        return None
    return text


def number(column: Column, text: str) -> float | None:
    """Returns a text as a number, by the column's unit and marks; None if it is none."""
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
    return float(text) if NUMBER.fullmatch(text) else None


def row_name(label: Any) -> str:
    """Returns a row's name in messages: its number in the table, or in its client's."""
    return f"row {label[1]} of {label[0]}" if isinstance(label, tuple) else f"row {label}"


def named_cells(given: Any, rows: npt.NDArray[np.int64], wrong: Sequence[int]) -> str:
    """Returns three different cells with the first row of each, and how many more rows have such.

    Args:
        given: The column, as pandas has it.
        rows: The number of each row's cell.
        wrong: Numbers of cells.
    """
    there = np.flatnonzero(np.isin(rows, wrong))
    first = there[np.sort(np.unique(rows[there], return_index=True)[1])]
    shown = ", ".join(
        f"{brief(_text(given.iloc[row]))} in {row_name(given.index[row])}" for row in first[:3]
    )
    more = len(there) - len(first[:3])
    return f"{shown} and {more} more rows" if more else shown


def plain_numbers(texts: Any) -> npt.NDArray[np.float64] | None:
    """Returns texts as numbers, all at once; None unless all are as programs write them.

    Args:
        texts: An array of NumPy or Arrow; in the latter nulls become NaN.
    """
    import pyarrow as pa  # noqa: PLC0415 - slow to import, not always needed
    from pyarrow import compute  # noqa: PLC0415 - likewise

    texts = pa.array(texts, pa.string()) if isinstance(texts, np.ndarray) else texts
    bare = compute.utf8_trim_whitespace(texts)
    try:
        numbers = compute.cast(bare, pa.float64())
    except pa.ArrowInvalid:
        return None
    codes = compute.match_substring_regex(bare, f"^({CODE.pattern})$")
    # Beyond NUMBER, Arrow takes names of infinity and NaN alone.
    if not compute.all(compute.is_finite(numbers)).as_py() or compute.any(codes).as_py():
        return None
    return np.asarray(numbers)


def plain_columns(columns: Sequence[Any]) -> list[npt.NDArray[np.float64] | None]:
    """Returns columns of Arrow's texts as numbers, NaN where empty; None as ``plain_numbers``.

    All are read at once if all are numbers, as in wide tables, and else by halves.
    """
    import pyarrow as pa  # noqa: PLC0415 - slow to import, not always needed
    from pyarrow import compute  # noqa: PLC0415 - likewise

    if not columns:
        return []
    texts = pa.chunked_array([c for column in columns for c in column.chunks], pa.string())
    empty = compute.equal(compute.binary_length(texts), 0)
    if compute.any(empty).as_py():
        texts = compute.if_else(empty, pa.scalar(None, pa.string()), texts)
    numbers = plain_numbers(texts)
    if numbers is not None and not (abs(numbers) >= _EXACT).any():
        return [*np.split(numbers, len(columns))]
    if len(columns) == 1:
        return [None]
    half = len(columns) // 2
    return plain_columns(columns[:half]) + plain_columns(columns[half:])


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
            whole = np.all((np.trunc(typed) == typed) & (abs(typed) < _EXACT))
            texts = typed.astype(np.int64) if whole else np.asarray(found)
            return cls(column, given, rows, texts, typed)
        if plain.dtype.kind == "O" and not (column.missing or column.codes or column.unit):
            texts = texts_of(found)
            if (numbers := plain_numbers(texts)) is not None:
                return cls(column, given, rows, texts, numbers)
        written = texts_of(found).tolist()
        means = [meant(column, text) for text in written]
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
    def name(self) -> str:
        """The column's name."""
        return self.column.name

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
        """Whether a test holds for every cell, of which there is one."""
        return len(self.texts) > 0 and all(test(str(text)) for text in self.texts)

    def shown(self) -> tuple[str, ...]:
        """Returns three of the cells."""
        return tuple(map(str, self.texts[:3]))

    def named(self, wrong: npt.NDArray[np.bool_]) -> str:
        """Returns some of ``texts`` with the first row of each."""
        return named_cells(self.given, self.rows, np.flatnonzero(wrong).tolist())


def texts_of(different: Any) -> npt.NDArray[Any]:
    """Returns different cells of a column as texts."""
    cells = different.to_numpy(dtype=object) if hasattr(different, "to_numpy") else different
    return np.array([c if isinstance(c, str) else _text(c) for c in cells], dtype=object)


def _text(cell: Any) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.0f}" if cell.is_integer() and abs(cell) < _EXACT else repr(cell)


def _numbers(column: Column, texts: list[str], *, typed: bool) -> npt.NDArray[np.float64] | None:
    found = [number(column, text) for text in texts]
    plain = not column.unit and column.decimal != "," and not column.thousands
    code = not typed and plain and any(map(CODE.fullmatch, texts))
    return None if code or None in found or not found else np.array(found, dtype=np.float64)
