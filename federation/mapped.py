"""Large arrays in a file that has no name, so that memory need not hold a whole cohort's models.

The kernel keeps as much of the file in memory as there is room for.
"""

import mmap
import tempfile
from collections.abc import Sequence
from typing import Final

from flwr.app import Array

LARGE: Final = 2**24
"""Bytes from which on arrays are put into a file."""
_ALIGNED = 64  # bytes, a multiple of which numpy's headers have


class Mapped(Array):
    """An array whose bytes are part of a file, and are read when they are wanted."""

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


def view_of(array: Array) -> memoryview:
    """Returns an array's bytes; those in a file are not read for that, and may be written to."""
    found: memoryview | None = vars(array).get("view")
    return memoryview(array.data) if found is None else found


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
