"""Units of columns: means and deviations, which sites fit together without showing a row."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, get_args

import numpy as np

from engram.core.arrays import Array, Bools

if TYPE_CHECKING:  # tables are read without torch
    from torch import Tensor

Tokens = Literal["words", "characters", "tokenizers"]
"""Tokens of texts: the last are those of Hugging Face's library of that name."""

_FAR: Final = 1e6  # sizes of a column at two sites differ by a smaller factor, in any honest units
_CONSTANT: Final = 1e-12  # deviation over mean, below which a column differs by rounding alone


class Standard(NamedTuple):
    """Mean and deviation of each column; a single one holds for all columns."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]  # the standard deviations, all of them positive

    def standardized(self, values: "Tensor") -> "Tensor":
        """Returns (values - mean) / deviation, computed in float64."""
        mean, deviation = self._like(values.double())
        found: Tensor = ((values.double() - mean) / deviation).to(values.dtype)
        return found

    def restored(self, values: "Tensor") -> "Tensor":
        """Returns mean + deviation * values."""
        mean, deviation = self._like(values)
        found: Tensor = mean + deviation * values
        return found

    def scaled(self, values: "Tensor") -> "Tensor":
        """Returns values / deviation."""
        found: Tensor = values / self._like(values)[1]
        return found

    def _like(self, values: "Tensor") -> tuple[Any, Any]:
        if len(self.mean) == 1:
            return self.mean[0], self.deviation[0]
        return values.new_tensor(self.mean), values.new_tensor(self.deviation)


class Moments(NamedTuple):
    """Count, means and squared deviations of a site's columns.

    They say as much as sums and sums of squares, and lose no digits where a mean is far from 0.
    """

    rows: int
    means: tuple[float, ...]  # the mean of each column
    squares: tuple[float, ...]  # sum of each column's squared deviations from its mean

    @classmethod
    def of(cls, values: Array, numeric: Bools | None = None) -> Self:
        """Returns the moments of rows.

        Args:
            values: The rows, shape (n, d), n >= 1.
            numeric: Columns that are standardized, shape (d,); None for all of them. The others
                have mean 0 and deviation 1.
        """
        means = values.mean(0)
        squares = np.square(values - means).sum(0)
        if numeric is not None:
            means, squares = np.where(numeric, means, 0), np.where(numeric, squares, len(values))
        return cls(len(values), tuple(means.tolist()), tuple(squares.tolist()))

    def sizes(self) -> list[float]:
        """Returns the root mean square of each column's values."""
        both = zip(self.means, self.squares, strict=True)
        return [math.hypot(mean, math.sqrt(square / self.rows)) for mean, square in both]

    def standard(self) -> Standard:
        """Returns means and standard deviations; that of a constant column is 1."""
        deviations = np.sqrt(np.array(self.squares) / self.rows)
        found = np.where(deviations > _CONSTANT * np.abs(self.means), deviations, 1.0)
        return Standard(self.means, tuple(found.tolist()))


def merged(parts: Iterable[Moments]) -> Moments | None:
    """Returns the moments of all sites' rows; None if there are none.

    Chan, Golub, LeVeque. Algorithms for Computing the Sample Variance. The American Statistician
    37, 1983, equation (2.1).
    """
    whole: Moments | None = None
    for part in parts:
        if whole is None:
            whole = part
            continue
        rows = whole.rows + part.rows
        gaps = [b - a for a, b in zip(whole.means, part.means, strict=True)]
        means = [a + gap * (part.rows / rows) for a, gap in zip(whole.means, gaps, strict=True)]
        weight = whole.rows * (part.rows / rows)
        both = zip(whole.squares, part.squares, gaps, strict=True)
        squares = [one + other + gap * gap * weight for one, other, gap in both]
        whole = Moments(rows, tuple(means), tuple(squares))
    return whole


def comparable(parts: Sequence[Moments]) -> list[bool]:
    """Returns a mask of the sites with mergeable moments: no single site may dominate.

    Those must be of as many columns as most have. A column's size at a site is the root mean square
    of its values; it must be at most a million times that at the median site, which is the lower
    one of the middle two, and does not count where it is 0.
    """
    widths = Counter(len(part.means) for part in parts)
    width = max(widths, key=lambda one: widths[one], default=0)  # the first if tied
    fitting = [len(part.means) == width for part in parts]
    sizes = np.array([part.sizes() for part, fits in zip(parts, fitting, strict=True) if fits])
    if not len(sizes):
        return fitting
    usual = np.sort(sizes, axis=0)[(len(sizes) - 1) // 2]
    near = iter(((sizes <= _FAR * usual) | (usual == 0)).all(axis=1))
    return [fits and bool(next(near)) for fits in fitting]


class Tokenizer(NamedTuple):
    """A rule that makes tokens of texts: see ``engram.data.tokenizers``."""

    by: Tokens
    words: tuple[str, ...] = ()  # the vocabulary of words or characters
    file: str = ""  # the contents of a ``tokenizer.json``

    @classmethod
    def from_json(cls, found: Any) -> Self:
        """Reads untrusted JSON of ``_asdict``.

        Raises:
            TypeError: It is something else.
        """
        match found:
            case {"by": by, "words": list(words), "file": str(file)}:
                if by in get_args(Tokens) and all(isinstance(word, str) for word in words):
                    return cls(by, tuple(words), file)
        raise TypeError("a tokenizer must have words, or a file")


class Units(NamedTuple):
    """Units in which the rows of a run are, beside those in which its network computes."""

    # Standard of the columns of inputs; None if the network takes them as they are.
    inputs: Standard | None = None
    targets: Standard | None = None  # standard of the targets; None likewise
    text: Tokenizer | None = None  # tokenizer of inputs that are texts; None of others

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Converts to JSON for ``from_json``."""
        there = {name: part._asdict() for name, part in self._asdict().items() if part is not None}
        return {
            name: {key: list(x) if isinstance(x, tuple) else x for key, x in part.items()}
            for name, part in there.items()
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Mapping[str, Any]]) -> Self:
        """Reads the JSON of ``to_json``.

        Raises:
            KeyError, TypeError: It is something else.
        """
        standards = {
            name: Standard(tuple(part["mean"]), tuple(part["deviation"]))
            for name, part in found.items()
            if name != "text"
        }
        text = Tokenizer.from_json(found["text"]) if "text" in found else None
        return cls(**standards, text=text)
