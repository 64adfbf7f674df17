"""Rows that are read as they are drawn, and their places in messages."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from engram.core.standardization import Tokenizer
from engram.data.tokenizers import encode
from engram.settings.errors import DataError, Refused, brief, one_line

RowNumbers = npt.NDArray[np.int64]  # row numbers of a data set
_Array = npt.NDArray[Any]
_MOST: Final = 200  # rows that stand for all of a larger data set


def some_of(count: int) -> RowNumbers:
    """Returns the numbers of all rows, or of 200 of them, drawn at random, the same each time."""
    if count <= _MOST:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, _MOST, replace=False))


class UnreadableRow(DataError):
    """A row that was drawn, and cannot be read.

    Attributes:
        row: Its number in its source.
        position: Its number among the rows that were asked for.
        reason: Why not.
    """

    def __init__(self, row: int, position: int, reason: str) -> None:
        super().__init__(f"row {row} cannot be read: {reason}")
        self.row, self.position, self.reason = row, position, reason


class Lazy:
    """Inputs of which no row is read before it is drawn; an array as far as choosing rows goes.

    Args:
        read: Returns rows (k, ...) by their numbers (k,) in the source: an array, or a tuple or
            dictionary of arrays. A row is the same each time.
        like: A row as ``read`` returns it, with whatever values.
        numbers: Which rows of the source these are, shape (n,).

    Attributes:
        images: Whether all of them are images, whatever their shape.
    """

    images: ClassVar[bool] = False

    def __init__(self, read: Callable[[RowNumbers], Any], like: Any, numbers: RowNumbers) -> None:
        self._read, self.like, self._numbers = read, like, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, some: Any) -> Self:
        """Returns some of the rows, chosen as those of an array are; none is read."""
        return type(self)(self._read, self.like, self._numbers[some])

    def then(self, convert: Callable[[Any], Any]) -> "Lazy":
        """Returns the same rows, each converted after it is read."""
        read = self._read
        return Lazy(lambda rows: convert(read(rows)), convert(self.like), self._numbers)

    def take(self, positions: RowNumbers) -> Any:
        """Reads rows (k, ...) by their numbers (k,) here.

        Raises:
            UnreadableRow: One cannot be read; it says which.
        """
        try:
            return self._read(self._numbers[positions])
        except Exception as all_of_them:  # anybody's data set may be behind it: which row is it?
            for position in positions.tolist():
                row = self._numbers[position]
                try:
                    self._read(self._numbers[[position]])
                except UnreadableRow as error:  # of one of several sources
                    raise UnreadableRow(error.row, position, error.reason) from error
                except Exception as error:
                    reason = getattr(error, "strerror", None) or str(error) or repr(error)
                    raise UnreadableRow(row, position, one_line(reason)) from error
            raise DataError("rows must be of one shape and type each") from all_of_them

    @property
    def parts(self) -> "Sequence[Lazy]":
        """The sources, each of which is converted by itself."""
        return [self]

    def content(self, positions: RowNumbers) -> Any:
        """Reads rows for their hashes."""
        return self.take(positions)


class Images(Lazy):
    """Rows that are images, of any type of numbers."""

    images = True


class Texts(Lazy):
    """Texts, which are rows of unknown tokens until there is a tokenizer.

    A row has ``length`` tokens.
    """

    def __init__(self, texts: npt.NDArray[np.object_], length: int) -> None:
        self.texts, self._length = texts, length
        like = np.ones((1, length), dtype=np.int64)
        super().__init__(lambda rows: like.repeat(len(rows), 0), like, np.arange(len(texts)))

    def __getitem__(self, some: Any) -> "Texts":
        return Texts(self.texts[some], self._length)

    def content(self, positions: RowNumbers) -> Any:
        """Returns the texts themselves, for hashes."""
        return self.texts[positions]

    def tokens(self, tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
        """Returns the rows of tokens that a tokenizer makes, (n, length).

        Raises:
            Refused: It cannot be used here.
        """
        try:
            return encode(self.texts, tokenizer, self._length)
        except ValueError as error:
            raise Refused(f"the tokenizer cannot be used: {one_line(str(error))}") from error


def scaled(x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Returns grey levels as shares of 255, and other numbers as they are; float32."""
    return x.astype(np.float32) * np.float32(1 / 255 if x.dtype == np.uint8 else 1)


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

    def fault(self, expected: str, got: str) -> DataError:
        """Returns the error that the array must be something else."""
        return DataError(f"{self.path}: {self.name} must be {expected}, got {got}")

    def first(self, values: _Array, wrong: _Array) -> str:
        """Returns the first wrong value, and where it is: "nan in row 3 of client lake".

        A client's rows are counted from 0, among its own.

        ``wrong`` is of the shape of ``values``, (n, ...).
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


def like_of(x: Any) -> Any:
    """Returns an array, or a row like those that are read as they are drawn."""
    return x.like if isinstance(x, Lazy) else x


def whole(x: Any) -> Any:
    """Returns an array, or all rows of those that are read as they are drawn."""
    return x.take(np.arange(len(x))) if isinstance(x, Lazy) else x


def is_frame(value: object) -> bool:
    """Whether something is a data frame; pandas is not loaded to tell."""
    return "pandas" in sys.modules and isinstance(value, sys.modules["pandas"].DataFrame)


def is_column(value: object) -> bool:
    """Whether something is a series of pandas, likewise."""
    return "pandas" in sys.modules and isinstance(value, sys.modules["pandas"].Series)
