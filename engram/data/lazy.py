"""Rows that are read as they are drawn: a data set may be larger than the machine's memory."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from engram.settings.errors import DataError, Refused, one_line

if TYPE_CHECKING:
    from engram.core.standardization import Tokenizer

RowNumbers = npt.NDArray[np.int64]  # row numbers of a data set


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
    """

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
        except Exception:  # anybody's data set may stand behind it: which row is it?
            for position in positions.tolist():
                row = self._numbers[position]
                try:
                    self._read(self._numbers[[position]])
                except UnreadableRow as error:  # of one of several sources
                    raise UnreadableRow(error.row, position, error.reason) from error
                except Exception as error:
                    reason = getattr(error, "strerror", None) or str(error) or repr(error)
                    raise UnreadableRow(row, position, one_line(reason)) from error
            raise


class Images(Lazy):
    """Rows that are images, whatever the type of their numbers."""


class Texts(Lazy):
    """Texts, which are rows of unknown tokens until there is a tokenizer.

    Args:
        texts: The texts, (n,).
        encode: ``(texts, tokenizer, length) -> tokens``, int64, (n, length).
        length: Tokens of a row.
    """

    def __init__(
        self,
        texts: npt.NDArray[np.object_],
        encode: "Callable[[Any, Tokenizer, int], npt.NDArray[np.int64]]",
        length: int,
    ) -> None:
        self.texts, self._encode, self._length = texts, encode, length
        like = np.ones((1, length), dtype=np.int64)
        super().__init__(lambda rows: like.repeat(len(rows), 0), like, np.arange(len(texts)))

    def __getitem__(self, some: Any) -> "Texts":
        return Texts(self.texts[some], self._encode, self._length)

    def tokens(self, tokenizer: "Tokenizer") -> npt.NDArray[np.int64]:
        """Returns the rows of tokens that a tokenizer makes, (n, length).

        Raises:
            Refused: It cannot be used here.
        """
        try:
            return self._encode(self.texts, tokenizer, self._length)
        except ValueError as error:
            raise Refused(f"the tokenizer cannot be used: {one_line(str(error))}") from error


class Joined(Lazy):
    """Rows of several sources, one below the other, of which each is converted by itself.

    Args:
        parts: The sources.
        numbers: Which of all rows these are, shape (n,); by default all of them.
    """

    def __init__(self, parts: Sequence[Lazy], numbers: RowNumbers | None = None) -> None:
        self.parts, self._ends = parts, np.cumsum([len(part) for part in parts])
        every = np.arange(self._ends[-1]) if numbers is None else numbers
        super().__init__(self._of_parts, parts[0].like, every)

    def __getitem__(self, some: Any) -> "Joined":
        return Joined(self.parts, self._numbers[some])

    def then(self, convert: Callable[[Any], Any]) -> "Joined":
        """Returns the same rows, those of each source converted by themselves."""
        return Joined([part.then(convert) for part in self.parts], self._numbers)

    def _of_parts(self, numbers: RowNumbers) -> Any:
        from torch.utils._pytree import tree_map  # noqa: PLC0415 - slow, not always needed

        owner = np.searchsorted(self._ends, numbers, side="right")
        found, at = [], []
        for part in np.unique(owner):
            at.append(np.flatnonzero(owner == part))
            start = self._ends[part] - len(self.parts[part])
            found.append(self.parts[part].take(numbers[at[-1]] - start))
        back = np.argsort(np.concatenate(at))

        def together(*leaves: Any) -> Any:
            alike = len({leaf.dtype == np.uint8 for leaf in leaves}) == 1
            return np.concatenate(leaves if alike else [*map(scaled, leaves)])[back]

        return tree_map(together, *found)


def scaled(x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Returns grey levels as shares of 255, and other numbers as they are; float32."""
    return x.astype(np.float32) * np.float32(1 / 255 if x.dtype == np.uint8 else 1)
