"""Trees of rows, each leaf an array or rows that are read as they are drawn: unions and hashes."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils._pytree import tree_leaves, tree_map

from engram.core.arrays import Ints
from engram.core.streams import Stream
from engram.data.lazy import Lazy, RowNumbers, scaled


class Joined(Lazy):
    """Rows of several sources, one below the other, of which each is converted by itself.

    ``numbers`` are those of all rows that these are; by default all.
    """

    def __init__(self, parts: Sequence[Lazy], numbers: RowNumbers | None = None) -> None:
        self._parts, self._ends = parts, np.cumsum([len(part) for part in parts])
        every = np.arange(self._ends[-1]) if numbers is None else numbers
        super().__init__(self._of_parts, parts[0].like, every)

    @property
    def parts(self) -> Sequence[Lazy]:
        """The sources."""
        return self._parts

    def __getitem__(self, some: Any) -> "Joined":
        return Joined(self._parts, self._numbers[some])

    def then(self, convert: Callable[[Any], Any]) -> "Joined":
        """Returns the same rows, those of each source converted by themselves."""
        return Joined([part.then(convert) for part in self._parts], self._numbers)

    def _of_parts(self, numbers: RowNumbers) -> Any:
        owner = np.searchsorted(self._ends, numbers, side="right")
        found, at = [], []
        for part in np.unique(owner):
            at.append(np.flatnonzero(owner == part))
            start = self._ends[part] - len(self._parts[part])
            found.append(self._parts[part].take(numbers[at[-1]] - start))
        back = np.argsort(np.concatenate(at))

        def together(*leaves: Any) -> Any:
            alike = len({leaf.dtype == np.uint8 for leaf in leaves}) == 1
            return np.concatenate(leaves if alike else [*map(scaled, leaves)])[back]

        return tree_map(together, *found)


def row_hashes(
    x: Any, y: npt.NDArray[Any], owner: Ints, seed: int, stream: Stream, names: Sequence[str] = ()
) -> npt.NDArray[np.float64]:
    """Returns keyed hashes of rows, (n,), uniform in [0, 1).

    Each is of the row's client, inputs and target, and of how many rows before it are the same in
    these: which of them is taken away, nobody can see.

    Args:
        x: Inputs: an array (n, ...), ``Lazy`` rows, or a tuple or dictionary of such.
        y: Targets, (n, ...).
        owner: Each row's client, (n,).
        seed: The key, with the stream.
        stream: The purpose.
        names: Classes' names, which stand for their numbers: other rows have a part in these.
    """
    hashed = partial(blake2b, key=f"{seed} {stream:d}".encode(), digest_size=8)
    if names and y.ndim == 1:
        y = np.array([int(hashed(name.encode()).hexdigest(), 16) for name in names], np.uint64)[y]
    found, alike = np.empty(len(y)), Counter[bytes]()
    for start in range(0, len(y), 1024):
        rows = np.arange(start, min(start + 1024, len(y)))
        read = tree_map(partial(_content, rows), x)
        # Rows of several sources are scaled if they are read together.
        leaves = [scaled(leaf) if leaf.dtype == np.uint8 else leaf for leaf in tree_leaves(read)]
        for row, *content in zip(rows, owner[rows], *leaves, y[rows], strict=True):
            digest = hashed(b"".join(np.asarray(leaf).tobytes() for leaf in content)).digest()
            alike[digest] += 1
            again = hashed(b"%d" % alike[digest] + digest).hexdigest()
            found[row] = (int(again, 16) >> 11) / 2**53
    return found


def _content(rows: Ints, leaf: Any) -> Any:
    return leaf.content(rows) if isinstance(leaf, Lazy) else leaf[rows]


def has_lazy(x: Any) -> bool:
    """Whether some inputs of a tree are read as they are drawn."""
    return any(isinstance(leaf, Lazy) for leaf in tree_leaves(x))
