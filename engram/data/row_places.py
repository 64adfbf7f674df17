"""Places of rows in messages: which array, which row of it, and whose row that is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.settings.errors import DataError, brief, one_line

_Array = npt.NDArray[Any]


class Place(NamedTuple):
    """An array of rows, as messages call it.

    Attributes:
        path: The file or data set that it is of.
        name: Its name there.
        task: Whose each row is, (n,), as numbers of ``names``; None where nobody says.
        names: Names of clients.
        cut: Number of training rows, where test rows follow them; else 0.
        drawn: Whether these are only some of the rows, so that their numbers mean nothing.
    """

    path: Path
    name: str
    task: _Array | None = None
    names: Sequence[str] = ()
    cut: int = 0
    drawn: bool = False

    def some(self, rows: Any) -> "Place":
        """Returns the place of some of its rows, which are all rows of their clients."""
        return self._replace(task=None if self.task is None else self.task[rows])

    def fault(self, expected: str, got: str) -> DataError:
        """Returns the error that the array must be something else."""
        return DataError(f"{self.path}: {self.name} must be {expected}, got {got}")

    def first(self, values: _Array, wrong: _Array) -> str:
        """Returns the first wrong value, and where it is: "nan in row 3 of client lake".

        A client's rows are counted from 0, among its own.

        Args:
            values: The array, (n, ...).
            wrong: Which of its values are wrong, of the same shape.
        """
        row = int(np.argmax(wrong.reshape(len(wrong), -1).any(axis=1)))
        value = values[row][wrong[row]].flat[0] if values.ndim > 1 else values[row]
        shown = brief(str(value)) if isinstance(value, str) else str(value)
        if self.drawn:
            return shown
        part, start = ("", 0) if row < self.cut or not self.cut else (" of the test rows", self.cut)
        if self.task is None:
            return f"{shown} in row {row - start}{part}"
        owner = self.task[row]
        own = int(np.count_nonzero(self.task[start:row] == owner))
        return f"{shown} in row {own}{part} of client {self.called(owner)}"

    def called(self, owner: int) -> str:
        """Returns a client's name."""
        return one_line(self.names[owner]) if self.names else str(owner)
