"""Items of ``torch.utils.data.Dataset``s as rows that are read as they are drawn."""

import contextlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch.utils._pytree import tree_map
from torch.utils.data import Dataset, Subset

from engram.core.arrays import unmasked
from engram.data.lazy import Lazy, RowNumbers, some_of
from engram.data.readers.images import pixels
from engram.settings.errors import DataError, brief, few_names

_NAMES: Final = ("y", "label", "labels", "target", "targets")
_ITEMS: Final = (
    "pairs (x, y), such as ((x0, x1), y) for several inputs, or named fields, one of them "
    f"{', '.join(_NAMES)}"
)


def inputs_of(part: Dataset[Any]) -> Lazy:
    """Returns the inputs of a map-style data set.

    Raises:
        DataError: Its first item is neither a pair nor names its target.
    """
    rows: Any = part

    def read(numbers: RowNumbers) -> Any:
        items = [_pair(rows[number])[0] for number in numbers.tolist()]
        return tree_map(lambda *leaves: np.stack([*map(plain, leaves)]), *items)

    return Lazy(read, read(np.zeros(1, dtype=np.int64)), np.arange(len(rows)))


def targets_of(part: Any) -> npt.NDArray[Any]:
    """Returns its ``targets``, where they are those of its items; else those of all items.

    Up to 200 items are read for the comparison, and the others only where it fails.
    """
    if getattr(part, "target_transform", None) is None and hasattr(part, "targets"):
        known = plain(part.targets)
        if known.shape[:1] == (len(part),) and _agree(part, known):
            return known
    found = np.stack([plain(_pair(part[row])[1]) for row in range(len(part))])
    if found.dtype.kind not in "buifUS":
        raise DataError(f"targets must be numbers or text, got {shown(_pair(part[0])[1])}")
    return found


def class_names(part: Any, y: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Class names, where targets number them: of a subset those of the whole."""
    whole = part
    while isinstance(whole, Subset):
        whole = whole.dataset
    names = np.array([*map(str, getattr(whole, "classes", ()))])
    if y.ndim != 1 or y.dtype.kind not in "iu" or len(np.unique(names)) < len(names):
        return None
    stored, change = _stored(part), getattr(whole, "target_transform", None)
    changed = change is not None if stored is None else not np.array_equal(stored, y)
    return None if changed or y.min() < 0 or y.max() >= len(names) else names


def _stored(part: Any) -> npt.NDArray[Any] | None:
    if isinstance(part, Subset):
        whole = _stored(part.dataset)
        return None if whole is None else whole[np.asarray(part.indices)]
    return plain(part.targets) if hasattr(part, "targets") else None


def _agree(part: Any, known: npt.NDArray[Any]) -> bool:
    for row in some_of(len(known)).tolist():
        with contextlib.suppress(Exception):  # who draws one that cannot be read says so
            if not np.array_equal(plain(_pair(part[row])[1]), known[row]):
                return False
    return True


def _pair(item: Any) -> tuple[Any, Any]:
    fields = item._asdict() if hasattr(item, "_asdict") else item
    if isinstance(fields, Mapping):
        inputs = {name: value for name, value in fields.items() if name not in _NAMES}
        if inputs and len(fields) == len(inputs) + 1:
            (target,) = fields.keys() - inputs.keys()
            return inputs if len(inputs) > 1 else next(iter(inputs.values())), fields[target]
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    named = isinstance(fields, Mapping)
    got = f"{type(item).__name__} with {few_names(fields)}" if named else shown(item)
    raise DataError(f"items must be {_ITEMS}, got {got}")


def plain(value: Any) -> npt.NDArray[Any]:
    """Returns an array: masked numbers are NaN, and pictures have their colors.

    Raises:
        TypeError: It is sparse, or has masked entries that are no numbers.
        ValueError: As ``numpy.asarray`` does.
    """
    if hasattr(value, "toarray"):
        raise TypeError("a sparse one is given by its toarray()")
    if isinstance(value, Image.Image):
        return pixels(value)
    return np.asarray(unmasked(value))


def shown(value: object) -> str:
    """A short text of a value, with the shape or length of a container."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__} of shape {tuple(shape)}"
    several = isinstance(value, tuple | list | dict) and value
    return f"{type(value).__name__} of length {len(several)}" if several else brief(value)
