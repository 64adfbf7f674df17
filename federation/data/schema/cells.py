"""Cells of a column as they are written, and as they are meant."""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from federation.data.schema.columns import Column

NOTHING: Final = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "<NA>"})
"""Cells that count as missing unless a schema has them among a column's values."""

NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
"""A number as programs write it."""

CODE: Final = re.compile(r"[+-]?0\d+", re.ASCII)
"""Digits that are a code, since a number does not begin with a zero."""


def meant(column: Column, cell: str) -> str | None:
    """Returns what a cell means; None where it is missing."""
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


class Cells(NamedTuple):
    """The cells of a column, without missing ones.

    Attributes:
        name: The column's name.
        texts: The different cells, as they are meant.
        counts: How often each stands there.
        numbers: The number that each is; None unless all are numbers.
        rows: For each row, the cell's place in ``texts``; -1 where it is missing.
        nothing: How many cells say NA or the like, which the schema does not declare.
        blanks: Cells that differ from another one in blanks around them alone.
        typed: Whether the source says what these are, so that no number is a code.
    """

    name: str
    texts: npt.NDArray[Any]
    counts: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.float64] | None
    rows: npt.NDArray[np.int64]
    nothing: int = 0
    blanks: tuple[str, ...] = ()
    typed: bool = False

    @classmethod
    def of(cls, column: Column, given: Any) -> Self:
        """Reads a column of pandas: of text as it is written, or of a type that a source gives."""
        plain = given.astype(object) if str(given.dtype) == "category" else given
        rows, found = plain.factorize()
        written = [_text(cell) for cell in found.tolist()]
        texts = [meant(column, text) for text in written]
        place = {text: k for k, text in enumerate(dict.fromkeys(filter(None, texts)))}
        moved = np.array([*(place.get(text, -1) if text else -1 for text in texts), -1])
        said = {k for k, text in enumerate(written) if text.strip() in NOTHING - {""}}
        said -= {k for k in said if texts[k] or written[k].strip() in column.missing}
        known = {*written}
        blanks = (t for t in written if t not in column.codes and t != t.strip() in known)
        numbers = _numbers(column, list(place), typed=plain.dtype.kind in "iuf")
        rows, was = moved[rows], rows
        return cls(
            column.name,
            np.array(list(place), dtype=object),
            np.bincount(rows[rows >= 0], minlength=len(place)),
            numbers,
            rows,
            int(np.isin(was, list(said)).sum()),
            tuple(blanks),
            plain.dtype.kind in "iufbmM",
        )

    @property
    def size(self) -> int:
        """Number of cells."""
        return int(self.counts.sum())

    @property
    def whole(self) -> bool:
        """Whether all cells are whole numbers."""
        return self.numbers is not None and bool(np.all(self.numbers % 1 == 0))

    def all(self, test: Callable[[str], object]) -> bool:
        """Whether a test holds for every cell, of which there is one."""
        return len(self.texts) > 0 and all(test(text) for text in self.texts)

    def shown(self) -> tuple[str, ...]:
        """Returns three of the cells."""
        return tuple(map(str, self.texts[:3]))


def _text(cell: Any) -> str:
    return f"{cell:.17g}" if isinstance(cell, float) else str(cell)


def _numbers(column: Column, texts: list[str], *, typed: bool) -> npt.NDArray[np.float64] | None:
    found = [number(column, text) for text in texts]
    plain = not column.unit and column.decimal != "," and not column.thousands
    code = not typed and plain and any(map(CODE.fullmatch, texts))
    return None if code or None in found or not found else np.array(found, dtype=np.float64)
