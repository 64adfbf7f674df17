"""Files of NumPy, which are untrusted: .npz, and folders of .npy.

Nothing is unpickled. A header may claim any shape, and a few kilobytes may unpack to terabytes; so
the claims of headers are compared with what the archive holds, and with the memory that is free,
before anything is unpacked. Inputs of .npy files are read as they are drawn, by their place in the
file, and not mapped into memory: so a limit of the address space counts only what is drawn, and a
file that is cut short is an error, where a mapped one would kill the process.
"""

import lzma
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from engram.core.machine import check_rows, rows_in_memory
from engram.data.image_axes import TESTS
from engram.data.lazy import Lazy, RowNumbers, like_of
from engram.data.schema.cells import check_columns
from engram.data.schema.declared import name_order
from engram.settings.errors import DataError, few_names
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
    AttributeError,  # of openpyxl
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
_PARTS: Final = ("train", *TESTS)
_INPUTS: Final = ("x", *(f"x_{part}" for part in _PARTS))
_A = TypeVar("_A")


def read_npz(path: Path, only: Collection[str] = ()) -> dict[str, npt.NDArray[Any]]:
    """Reads arrays by name: all, or those of the names ``only``.

    Raises:
        DataError: If it cannot be read, is no such file, or needs more memory than is free.
    """
    wanted = "an .npz file of plain arrays, as numpy.savez writes it"
    with reading(path, wanted), open_file(path) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > _MOST:
            raise ValueError("too many arrays")
        if only:
            members = [m for m in members if m.filename.removesuffix(_SUFFIX) in only]
        check_rows(str(path), sum(_size(archive, member) for member in members))
        arrays = {}
        for member in members:
            with rows_in_memory(str(path)), archive.open(member) as stream:
                array = np.lib.format.read_array(stream, allow_pickle=False)
            arrays[member.filename.removesuffix(_SUFFIX)] = array
    return arrays


@contextmanager
def reading(path: Path, wanted: str) -> Iterator[None]:
    """Turns errors of reading a file, which must be ``wanted``, into errors of data."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except UNREADABLE as error:  # what it says would not help
        raise DataError(f"{path} must be {wanted}") from error


def task_arrays(column: str) -> tuple[str, ...]:
    """Names of arrays of clients: of all rows, or of parts."""
    return column, *(f"{column}_{part}" for part in _PARTS)


def with_task(path: Path, arrays: Mapping[str, _A], column: str) -> dict[str, _A]:
    """Renames the arrays of clients to ``task``, ``task_train``, ``task_test`` and so on.

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
    """Returns the bytes of an array, as its header claims and the archive confirms."""
    with archive.open(member) as stream:
        *_, size = _header(stream)
        if stream.tell() + size != member.file_size:
            raise ValueError("it is not what its header claims")
    return size


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Returns an array's shape, whether it is in Fortran order, its dtype and its bytes.

    Raises:
        ValueError: It is none, or one of objects; or another one of ``UNREADABLE``.
    """
    shape, in_columns, dtype = _HEADER[np.lib.format.read_magic(stream)](stream)
    if dtype.hasobject or min(shape, default=0) < 0:
        raise ValueError("an array of objects")
    return shape, in_columns, dtype, math.prod(shape) * dtype.itemsize


def read_npy(folder: Path) -> dict[str, npt.NDArray[Any] | Lazy]:
    """Returns the arrays of a folder's .npy files, by the names that an .npz file has for them.

    Raises:
        DataError: If there is no such folder, or a file in it is no plain array.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} must be a folder with x.npy and y.npy (and task.npy, if wanted)")
    return {path.stem: _read(path) for path in sorted(folder.glob("*.npy"))}


def _read(path: Path) -> npt.NDArray[Any] | Lazy:
    with reading(path, "a plain array, as numpy.save writes it"), open_file(path) as file:
        shape, in_columns, dtype, size = _header(file)
        start = file.tell()
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


def _rows(path: Path, file: Any, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Lazy:
    width = math.prod(shape[1:]) * dtype.itemsize

    def read(numbers: RowNumbers) -> npt.NDArray[Any]:
        rows = np.empty((len(numbers), width), dtype=np.uint8)
        for row, number in zip(rows, numbers.tolist(), strict=True):
            if os.preadv(file.fileno(), [row.data], start + number * width) != width:
                raise DataError(f"{path} ends before it")
        return rows.view(dtype).reshape(len(numbers), *shape[1:])

    return Lazy(read, np.zeros((1, *shape[1:]), dtype=dtype), np.arange(shape[0]))


def in_order(path: Path, arrays: Mapping[str, Any], wanted: Sequence[str] = ()) -> dict[str, Any]:
    """Sorts columns of inputs by their names ``x_names``, or as ``wanted``.

    Raises:
        DataError: As ``named``; or there is no such column.
    """
    parts = {key: arrays[key] for key in _INPUTS if key in arrays}
    shapes = {like_of(part).shape[1:] for part in parts.values()}
    if "x_names" not in arrays or len(shapes) != 1 or len(shape := shapes.pop()) != 1:
        return dict(arrays)
    names = named(path, arrays, "x_names", shape[0])
    check_columns(path, wanted, names)
    order = [names.index(name) for name in wanted or sorted(names, key=name_order)]

    def take(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return rows[:, order]

    inputs = {k: x.then(take) if isinstance(x, Lazy) else take(x) for k, x in parts.items()}
    return {**arrays, **inputs, "x_names": np.array(names)[order]}


def named(path: Path, arrays: Mapping[str, Any], key: str, count: int) -> list[str]:
    """Returns the names of columns of an array: those that ``key`` holds, or x0, x1, ...

    Raises:
        DataError: They are not different names, one for each column.
    """
    default = [f"{key[0]}{k}" for k in range(count)]
    names = [str(name) for name in np.ravel(arrays.get(key, default))]
    if len(set(names)) < len(names):
        raise DataError(f"{path}: {key} must be different, got {few_names(names)}")
    if len(names) != count:
        raise DataError(f"{path}: {key} must name {count} columns, got {few_names(names)}")
    return names
