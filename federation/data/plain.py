"""Values of others as plain arrays, in which nothing that they say besides is lost."""

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from federation.data.images import pixels
from federation.errors import brief


def plain(value: Any) -> npt.NDArray[Any]:
    """Returns an array: masked numbers are NaN, and pictures have their colors.

    Raises:
        TypeError: It is sparse, or has masked entries that are no numbers.
        ValueError: As ``numpy.asarray`` does.
    """
    if hasattr(value, "toarray"):
        raise TypeError("a sparse one is given by its toarray()")
    if "PIL.Image" in sys.modules and isinstance(value, sys.modules["PIL.Image"].Image):
        return pixels(value)
    rows = value if isinstance(value, list | tuple) else [value]
    if not any(isinstance(row, np.ma.MaskedArray) for row in rows):
        return np.asarray(value)
    masked = np.ma.asarray(value)
    if not np.ma.is_masked(masked):
        return np.asarray(masked.data)
    if masked.dtype.kind not in "buif":
        raise TypeError(f"masked entries of {masked.dtype} have no value that stands for them")
    numbers = masked.data.astype(np.result_type(masked.dtype, np.float32))
    return np.where(np.ma.getmaskarray(masked), np.float32(np.nan), numbers)


def shown(value: object) -> str:
    """Returns a short text of a value: of what holds others, what and how many it is."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__} of shape {tuple(shape)}"
    several = isinstance(value, tuple | list | dict) and value
    return f"{type(value).__name__} of length {len(several)}" if several else brief(value)
