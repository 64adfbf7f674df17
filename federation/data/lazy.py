"""Rows that are read as they are drawn: a data set may be larger than the machine's memory."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from federation.errors import DataError, one_line

__all__ = ["Lazy", "UnreadableRow"]

Numbers = npt.NDArray[np.int64]


class UnreadableRow(DataError):
    """A row that was drawn, and cannot be read.

    Attributes:
        position: Its number among the rows that were asked for one.
    """

    def __init__(self, row: int, position: int, reason: str) -> None:
        super().__init__(f"row {row} cannot be read: {reason}")
        self.position = position


class Lazy:
    """Inputs of which no row is read before it is drawn; an array as far as choosing rows goes.

    Args:
        read: Returns rows (k, ...) by their numbers (k,) in the source: an array, or a tuple or
            dictionary of arrays. A row is the same each time.
        like: A row as ``read`` returns it, with whatever values.
        numbers: Which rows of the source these are, shape (n,).
    """

    def __init__(self, read: Callable[[Numbers], Any], like: Any, numbers: Numbers) -> None:
        self._read, self.like, self._numbers = read, like, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, some: Any) -> Self:
        """Returns some of the rows, chosen as those of an array are; none is read."""
        return type(self)(self._read, self.like, self._numbers[some])

    def then(self, convert: Callable[[Any], Any]) -> Self:
        """Returns the same rows, each converted after it is read."""
        read = self._read
        return type(self)(lambda rows: convert(read(rows)), convert(self.like), self._numbers)

    def take(self, positions: Numbers) -> Any:
        """Reads rows (k, ...) by their numbers (k,) here.

        Raises:
            UnreadableRow: One cannot be read; it says which.
        """
        try:
            return self._read(self._numbers[positions])
        except Exception:  # anybody's data set may stand behind it: which row is it?
            for position in positions.tolist():
                row = self._numbers[position]
                try:
                    self._read(self._numbers[[position]])
                except Exception as error:
                    reason = getattr(error, "strerror", None) or str(error) or repr(error)
                    raise UnreadableRow(row, position, one_line(reason)) from error
            raise
