"""``torch.utils.data.Dataset``s as rows that are read as they are drawn."""

from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils._pytree import tree_map
from torch.utils.data import Dataset

from federation.data.lazy import Lazy, RowNumbers


def inputs_of(part: Dataset[Any]) -> Lazy:
    """Returns the inputs of a map-style data set of pairs (inputs, targets)."""
    rows: Any = part

    def read(numbers: RowNumbers) -> Any:
        items = [rows[number][0] for number in numbers.tolist()]
        return tree_map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *items)

    return Lazy(read, read(np.zeros(1, dtype=np.int64)), np.arange(len(rows)))


def targets_of(part: Any) -> npt.NDArray[Any]:
    """Returns its ``targets``, where it has such; else those of all rows, which are read once."""
    known = getattr(part, "targets", None)
    if known is not None and getattr(part, "target_transform", None) is None:
        return np.asarray(known)
    return np.stack([np.asarray(part[row][1]) for row in range(len(part))])
