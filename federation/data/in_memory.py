"""Arrays of this process as data sets: what a caller holds in memory goes by a name of its own."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from federation.data.lazy import Lazy
from federation.errors import DataError

__all__ = ["IN_MEMORY", "held", "hold"]

IN_MEMORY: Final = "memory:"

_Arrays = dict[str, Any]
_HELD: dict[str, _Arrays] = {}


def hold(arrays: Mapping[str, npt.ArrayLike | Lazy]) -> str:
    """Keeps arrays for the rest of the process, by the names that an npz file would have.

    Of rows that are read as they are drawn, nothing but their number is in the digest.

    Returns:
        The setting ``dataset``, ``memory:`` and a digest of them: a run that is resumed with other
        data is refused as one with another setting is.
    """
    kept = {
        name: array if isinstance(array, Lazy) else np.asarray(array)
        for name, array in sorted(arrays.items())
    }
    digest = hashlib.sha256()
    for name, array in kept.items():
        if isinstance(array, Lazy):
            digest.update(f"{name} {len(array)} ".encode())
            continue
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    dataset = f"{IN_MEMORY}{digest.hexdigest()[:16]}"
    _HELD[dataset] = kept
    return dataset


def held(dataset: str) -> _Arrays:
    """Returns what ``hold`` was given.

    Raises:
        DataError: If this process holds no such arrays.
    """
    if dataset not in _HELD:
        raise DataError(f"{dataset} is data of another process: give the same arrays again")
    return _HELD[dataset]
