"""Keyed hashes of rows, by which rows are held out so that none depends on another."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.core.arrays import Ints
from engram.core.streams import Stream
from engram.data.lazy import Lazy, Texts, scaled


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
    from torch.utils._pytree import tree_leaves, tree_map  # noqa: PLC0415 - slow, rarely needed

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
    if isinstance(leaf, Texts):
        return leaf.texts[rows]
    return leaf.take(rows) if isinstance(leaf, Lazy) else leaf[rows]
