"""Objects that hold large tensors, for other processes: in memory shared with them, or as bytes."""

import io
import mmap
import os
import pickle
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

_ALIGNED: Final = 64  # as torch aligns its tensors; products could differ in the last bit elsewhere

Place = tuple[int, int]
"""First byte of an object's table of contents, and the one after the last."""


class Arena:
    """Objects that one process puts in, and its relatives get: tensors are not copied then.

    Make it before they are forked. It grows as needed, has no name, and does not count towards the
    size of /dev/shm, which is small in containers.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("engram")
        self._mapped: mmap.mmap | None = None
        self._end = 0

    def clear(self) -> None:
        """Frees the space of all objects."""
        self._end = 0

    def close(self) -> None:
        """Gives the memory up, as far as no tensor in it is in use."""
        os.close(self._file)
        self._mapped = None

    def put(self, thing: object) -> Place:
        """Puts an object in; returns the place from which ``get`` gets it."""
        buffers: list[pickle.PickleBuffer] = []
        head = io.BytesIO()
        _Pickler(head, protocol=5, buffer_callback=buffers.append).dump(thing)
        parts = [self._write(part) for part in (head.getbuffer(), *(b.raw() for b in buffers))]
        return self._write(pickle.dumps(parts))

    def get(self, place: Place) -> Any:
        """Returns an object; its tensors are views, until the arena is cleared."""
        head, *buffers = (self._view(part) for part in pickle.loads(self._view(place)))
        return pickle.loads(head, buffers=buffers)

    def _write(self, part: bytes | memoryview) -> Place:
        size = memoryview(part).nbytes
        start = -(-self._end // _ALIGNED) * _ALIGNED
        self._end = start + size
        if os.fstat(self._file).st_size < self._end:
            os.ftruncate(self._file, 2 * self._end)
        self._view((start, self._end))[:] = memoryview(part).cast("B")
        return start, self._end

    def _view(self, place: Place) -> memoryview:
        start, end = place
        if self._mapped is None or len(self._mapped) < end:  # older views keep older mappings
            self._mapped = mmap.mmap(self._file, os.fstat(self._file).st_size)
        return memoryview(self._mapped)[start:end]


def packed(thing: object) -> bytes:
    """Returns an object as bytes for ``unpacked``."""
    found = io.BytesIO()
    _Pickler(found, protocol=5).dump(thing)
    return found.getvalue()


def unpacked(data: bytes) -> Any:
    """Returns the object of ``packed``, with tensors of its own."""
    return tree_map(copied, pickle.loads(data))


def copied(leaf: Any) -> Any:
    """Returns a copy of a tensor, at an address as torch aligns them; all else as it is."""
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is Tensor and thing.device.type == "cpu" and thing.numel():
            return torch.from_numpy, (thing.detach().contiguous().numpy(),)
        return NotImplemented
