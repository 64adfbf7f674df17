"""Arrays of a caller as data sets."""

import contextlib
import hashlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engram.data.lazy import Lazy, UnreadableRow
from engram.data.source import MEMORY, Source
from engram.data.tables.frames import hashed, is_frame

_LOOKED_AT: Final = 8  # rows


def hold(arrays: Mapping[str, npt.ArrayLike | Lazy]) -> Source:
    """Returns arrays, by the names that an npz file would have, as the setting ``dataset``.

    Its text is ``memory:`` and a digest of them, so that a run that is resumed with other data is
    refused as one with another setting is. Of rows that are read as they are drawn, their number
    and a few of them are in the digest.
    """
    kept: dict[str, Any] = {
        name: array if isinstance(array, Lazy) or is_frame(array) else np.asarray(array)
        for name, array in sorted(arrays.items())
    }
    digest = hashlib.sha256()
    for name, array in kept.items():
        if is_frame(array):
            digest.update(f"{name} {[*array.dtypes.astype(str).items()]} ".encode() + hashed(array))
        elif isinstance(array, Lazy):
            digest.update(f"{name} {len(array)} ".encode() + _some(array))
        else:
            digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
    return Source(f"{MEMORY}:{digest.hexdigest()[:16]}", kept)


def _some(rows: Lazy) -> bytes:
    from torch.utils._pytree import tree_leaves  # noqa: PLC0415 - slow, not always needed

    found = []
    for number in np.linspace(0, len(rows) - 1, _LOOKED_AT).astype(np.int64):
        with contextlib.suppress(UnreadableRow):  # whoever draws it is told
            found += tree_leaves(rows.take(number[None]))
    return b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in found)
