"""A folder of .npy files as a data set: inputs are read as they are drawn, all else at once.

Rows are read by their place in the file, and not mapped into memory: so a limit of the address
space counts only what is drawn, and a file that is cut short is an error, where a mapped one would
kill the process.
"""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.core.machine import check_rows, rows_in_memory
from engram.data.lazy import Lazy, RowNumbers
from engram.data.npz import UNREADABLE, array_header
from engram.settings.errors import DataError
from engram.settings.files import open_file

_INPUTS = ("x", "x_train", "x_test")


def read_npy(folder: Path) -> dict[str, npt.NDArray[Any] | Lazy]:
    """Returns the arrays of a folder's .npy files, by the names that an .npz file has for them.

    Raises:
        DataError: If there is no such folder, or a file in it is no plain array.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} must be a folder with x.npy and y.npy (and task.npy, if wanted)")
    return {path.stem: _read(path) for path in sorted(folder.glob("*.npy"))}


def _read(path: Path) -> npt.NDArray[Any] | Lazy:
    try:
        with open_file(path) as file:
            shape, in_columns, dtype = array_header(file)
            start, size = file.tell(), math.prod(shape) * dtype.itemsize
            if dtype.hasobject or min(shape, default=0) < 0:
                raise ValueError("an array of objects")
            if start + size != os.fstat(file.fileno()).st_size:
                raise DataError(f"{path} is cut short: its header says that {size} bytes follow it")
            if path.stem.partition(".")[0] in _INPUTS and shape:
                if in_columns:
                    raise DataError(f"{path} must be in C order: write numpy.ascontiguousarray(x)")
                handle = os.dup(file.fileno())  # it stays open as long as rows may be drawn
                return _rows(path, os.fdopen(handle, "rb", buffering=0), start, shape, dtype)
            check_rows(str(path), size)
            file.seek(0)
            with rows_in_memory(str(path)):
                return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except DataError:
        raise
    except UNREADABLE as error:
        raise DataError(f"{path} must be a plain array, as numpy.save writes it") from error


def _rows(path: Path, file: Any, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Lazy:
    width = math.prod(shape[1:]) * dtype.itemsize

    def read(numbers: RowNumbers) -> npt.NDArray[Any]:
        rows = np.empty((len(numbers), width), dtype=np.uint8)
        for row, number in zip(rows, numbers.tolist(), strict=True):
            if os.preadv(file.fileno(), [row.data], start + number * width) != width:
                raise DataError(f"{path} ends before it")
        return rows.view(dtype).reshape(len(numbers), *shape[1:])

    return Lazy(read, np.zeros((1, *shape[1:]), dtype=dtype), np.arange(shape[0]))
