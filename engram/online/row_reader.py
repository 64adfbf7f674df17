"""Fast conversion of named rows to arrays: most have the same names in the same order."""

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.core.arrays import Array
from engram.online.compiled_updates import within


class Reader:
    """Reads rows with the same names in the same order, without a lookup for each name.

    Args:
        names: Names of columns, as an array of objects.
        width: Length of a row, at least the number of names; the rest of a row is 0.

    Attributes:
        names: As given.
        width: As given.
    """

    def __init__(self, names: npt.NDArray[Any], width: int) -> None:
        self.names, self.width = names, width
        self._order = names.tolist()
        self._pack = struct.Struct(f"{len(names)}d").pack_into  # in two thirds of numpy's time

    def read(self, x: Mapping[Any, Any], largest: float) -> Array | None:
        """Returns a row, shape (1, width).

        None if it does not have these names in this order, or values that are not numbers from
        ``-largest`` to ``largest``.
        """
        order = list(x)
        if order != self._order:
            return None
        self._order = order  # the next row likely has the same objects, and ``!=`` is then fast
        rows = np.zeros((1, self.width))
        try:
            self._pack(rows.data, 0, *x.values())
        except (struct.error, TypeError, ValueError, OverflowError):
            return None
        return rows if within(rows, largest) else None
