"""Room for memories that do not fit into the machine's: in files that go with the process."""

import math
import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from engram.meta.single_node import Allocator
from federation.errors import Refused

__all__ = ["mapped"]


def mapped(folder: Path) -> Allocator:
    """Makes tensors whose numbers are in files of a folder: as large as its disk has room for.

    The system keeps in memory what is in use, and writes the rest out. A file has no name, so it
    is gone when the tensor is, however the process ends.
    """

    def room(name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        count = math.prod(shape)
        size = count * like.element_size()
        try:
            handle, path = tempfile.mkstemp(dir=folder)
            try:
                os.posix_fallocate(handle, 0, size)  # else a full disk would end the process later
                flat = torch.from_file(path, shared=True, size=count, dtype=like.dtype)
            finally:
                Path(path).unlink()
                os.close(handle)
        except OSError as error:
            need = f"{size / 2**30:.1f} GiB for memories ({name})"
            raise Refused(f"{folder} has no room of {need}: {error.strerror}") from error
        return flat.view(shape)

    return room
