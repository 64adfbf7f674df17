"""Values of others as plain arrays, in which nothing that they say besides is lost."""

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.core.arrays import unmasked
from engram.data.images import pixels
from engram.settings.errors import brief


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
    return np.asarray(unmasked(value))


def shown(value: object) -> str:
    """Returns a short text of a value: of what holds others, what and how many it is."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__} of shape {tuple(shape)}"
    several = isinstance(value, tuple | list | dict) and value
    return f"{type(value).__name__} of length {len(several)}" if several else brief(value)
