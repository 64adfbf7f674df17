"""Reads .npz files of whoever made them: nothing is unpickled, and no room made that is not there.

A header may claim any shape, and a few kilobytes may unpack to terabytes; so what the headers claim
is compared with what the archive says that it holds, and with the memory that is free, before
anything is unpacked.
"""

import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from engram.core.machine import check_rows, rows_in_memory
from engram.settings.errors import DataError
from engram.settings.files import open_file

_SUFFIX: Final = ".npy"
_MOST: Final = 1000  # arrays
_HEADER: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
UNREADABLE: Final = (  # what zipfile, its decompressors and numpy raise of what they cannot read
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    SyntaxError,
    EOFError,
    MemoryError,  # of Python's parser, by what a header nests
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
)
_LABELS: Final = "biufUS"  # kinds of arrays whose values may be names of clients
_A = TypeVar("_A")


def read_npz(path: Path, only: Collection[str] = ()) -> dict[str, npt.NDArray[Any]]:
    """Returns a file's arrays by name.

    Args:
        path: The file.
        only: Names of arrays, if no others are wanted.

    Raises:
        DataError: If it cannot be read, is no such file, or needs more memory than is free.
    """
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) > _MOST:
                raise ValueError("too many arrays")
            if only:
                members = [m for m in members if m.filename.removesuffix(_SUFFIX) in only]
            size = sum(_size(archive, member) for member in members)
            check_rows(str(path), size)
            arrays = {}
            for member in members:
                with rows_in_memory(str(path)), archive.open(member) as stream:
                    array = np.lib.format.read_array(stream, allow_pickle=False)
                arrays[member.filename.removesuffix(_SUFFIX)] = array
            return arrays
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except UNREADABLE as error:  # what it says would not help
        raise DataError(
            f"{path} must be an .npz file of plain arrays, as numpy.savez writes it"
        ) from error


def task_arrays(column: str) -> tuple[str, str, str]:
    """Returns the names of arrays that may say whose rows are: of all, or of train and test."""
    return column, f"{column}_train", f"{column}_test"


def with_task(path: Path, arrays: Mapping[str, _A], column: str) -> dict[str, _A]:
    """Returns arrays in which those that say whose rows are have the names of ``task``.

    Args:
        path: What the arrays are of.
        arrays: All that there are.
        column: The setting ``task-column``.

    Raises:
        DataError: One of those is not a column of numbers or text.
    """
    for name in (key for key in task_arrays(column) if key in arrays):
        found = np.asarray(arrays[name])
        if found.ndim != 1 or found.dtype.kind not in _LABELS:
            got = f"{found.dtype} of shape {found.shape}"
            raise DataError(f"{path}: {name} must be one column of numbers or text, got {got}")
    names = dict(zip(task_arrays(column), task_arrays("task"), strict=True))
    others = {k: array for k, array in arrays.items() if k not in {*names, *names.values()}}
    return others | {names[k]: array for k, array in arrays.items() if k in names}


def named_labels(
    path: Path, arrays: Mapping[str, npt.NDArray[Any]], task: str, labels: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Returns tasks by their names in ``task_names``, if they are numbers of these.

    Args:
        path: What the arrays are of.
        arrays: All that there are.
        task: Name of the array that the labels are from.
        labels: Tasks, shape (n,).

    Raises:
        DataError: They number others.
    """
    if labels.dtype.kind not in "iu" or "task_names" not in arrays:
        return labels
    names = arrays["task_names"].reshape(-1)
    if labels.min() < 0 or labels.max() >= len(names):
        raise DataError(f"{path}: {task} must number the {len(names)} task_names from 0")
    return np.asarray(names[labels])


def _size(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """Returns the bytes of an array, as its header claims and the archive confirms.

    Raises:
        ValueError: They differ, or it is an array of objects; besides, one of ``UNREADABLE``.
    """
    with archive.open(member) as stream:
        shape, _, dtype = array_header(stream)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or min(shape, default=0) < 0 or stream.tell() + size != member.file_size:
            raise ValueError("it is not what its header claims")
    return size


def array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Returns an array's shape, whether it is in Fortran order, and its dtype.

    Raises:
        ValueError: The stream is none; or another one of ``UNREADABLE``.
    """
    return _HEADER[np.lib.format.read_magic(stream)](stream)
