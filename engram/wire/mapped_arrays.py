"""Large arrays in files that have no names, so that memory need not hold a whole cohort's models.

The kernel keeps as much of a file in memory as there is room for.
"""

import gc
import mmap
import os
import tempfile
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import IO, Final
from weakref import finalize

from flwr.app import Array

LARGE: Final = 2**24
"""Bytes from which on arrays are put into a file."""
_ALIGNED = 64  # bytes, a multiple of which numpy's headers have


class Mapped(Array):
    """An array in a file, whose bytes are read on demand."""

    def __init__(self, dtype: str, shape: tuple[int, ...], stype: str, view: memoryview) -> None:
        vars(self).update(dtype=dtype, shape=shape, stype=stype, view=view)

    def __getattr__(self, name: str) -> bytes:
        """Returns a copy of the bytes."""
        if name != "data":
            raise AttributeError(name)
        return bytes(vars(self)["view"])

    def __reduce__(self) -> tuple[type[Array], tuple[object, ...]]:
        return Array, (self.dtype, self.shape, self.stype, self.data)


Mapped.__qualname__ = Array.__qualname__  # by which Flower names the type of what it sends


class Spool(MutableMapping[str, bytes]):
    """Bytes by name, of which those beyond the first ``LARGE`` are in a file."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}
        self._places: dict[str, tuple[int, int]] = {}  # in the file: from where, and how many
        self._file: IO[bytes] | None = None
        self._end = self._size = 0  # bytes in the file, and of all that was added

    def __setitem__(self, name: str, data: bytes) -> None:
        """Adds bytes; in memory, if there is no room for files."""
        self._held.pop(name, None)
        self._places.pop(name, None)
        self._size += len(data)
        if self._size > LARGE:
            with suppress(OSError):
                self._file = self._file or self._opened()
                self._file.seek(self._end)
                if self._file.write(data) == len(data):
                    self._places[name] = self._end, len(data)
                    self._end += len(data)
                    return
        self._held[name] = data

    def _opened(self) -> IO[bytes]:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with this
        finalize(self, file.close)
        return file

    def __getitem__(self, name: str) -> bytes:
        """Returns the bytes, read from the file each time."""
        if name in self._held or self._file is None:
            return self._held[name]
        start, count = self._places[name]
        return os.pread(self._file.fileno(), count, start)

    def __delitem__(self, name: str) -> None:
        """Forgets the bytes; a file keeps its length."""
        del (self._held if name in self._held else self._places)[name]

    def __iter__(self) -> Iterator[str]:
        return chain(self._held, self._places)

    def __len__(self) -> int:
        return len(self._held) + len(self._places)


def view_of(array: Array) -> memoryview:
    """Returns an array's bytes; those in a file are not read for that, and may be written to."""
    found: memoryview | None = vars(array).get("view")
    return memoryview(array.data) if found is None else found


def let_go(size: int) -> None:
    """Frees messages of so many bytes that nobody refers to any more, if they are large.

    Flower's records and their views refer to each other, so that they stay until Python looks for
    cycles, which it does by counting objects, however large these are.
    """
    if size > LARGE:
        gc.collect()


def join(pieces: Sequence[bytes]) -> tuple[bytes | mmap.mmap, int]:
    """Joins pieces of a line and of the arrays that it describes.

    Returns:
        What holds them, and where in it they begin: large ones such that arrays are aligned.
    """
    if sum(map(len, pieces)) < LARGE:
        return b"".join(pieces), 0
    start = -(pieces[0].find(b"\n") + 1) % _ALIGNED
    try:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(start))
            file.writelines(pieces)
            file.flush()
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), start
    except OSError:  # no room for temporary files
        return b"".join(pieces), 0
