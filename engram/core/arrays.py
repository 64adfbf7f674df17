"""Types of numpy's arrays, and conversion of masked ones."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]


def unmasked(value: Any) -> Any:
    """Returns masked arrays, or a list of them, with NaN for masked entries.

    Raises:
        TypeError: Something is masked that is no number.
    """
    rows = value if isinstance(value, list | tuple) else [value]
    if not any(isinstance(row, np.ma.MaskedArray) for row in rows):
        return value
    array = np.ma.asarray(value)
    if not np.ma.is_masked(array):
        return array.data
    if array.dtype.kind not in "buif":
        raise TypeError(f"masked entries of {array.dtype} have no value that stands for them")
    numbers = array.data.astype(np.result_type(array.dtype, np.float32))
    return np.where(np.ma.getmaskarray(array), np.float32(np.nan), numbers)
