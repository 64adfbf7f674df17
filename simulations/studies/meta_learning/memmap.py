"""Memory-mapped task memories, and checks that memories fit."""

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from federation.errors import Refused
from federation.machine import available

Allocator = Callable[[str, tuple[int, ...], Tensor], Tensor]  # (name, shape, like) -> zeros


def mapped(folder: Path) -> Allocator:
    """Returns an allocator of tensors that are memory-mapped files in a folder.

    The system keeps the parts in use in memory, and writes the rest out. The files are unlinked at
    once, so that they vanish with their tensors, however the process ends.
    """

    def allocate(name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        count = math.prod(shape)
        size = count * like.element_size()
        try:
            handle, path = tempfile.mkstemp(dir=folder)
            try:
                os.posix_fallocate(handle, 0, size)  # or a full disk would kill the process later
                flat = torch.from_file(path, shared=True, size=count, dtype=like.dtype)
            finally:
                Path(path).unlink()
                os.close(handle)
        except OSError as error:
            need = f"{size / 2**30:.1f} GiB for memories ({name})"
            raise Refused(f"{folder} has no room of {need}: {error.strerror}") from error
        return flat.view(shape)

    return allocate


class Need(NamedTuple):
    """Size of a sweep's task memories."""

    what: str  # describes the memories
    size: int  # bytes
    resident: bool  # whether they have to stay in RAM, see ``MetaRule``


def check_memories(needs: Sequence[Need], memory_dir: Path | None) -> None:
    """Checks that all memories fit at once in RAM or in the folder where they are kept.

    Raises:
        Refused: If they do not fit, or the folder is missing or not writable.
    """
    if memory_dir is not None and not memory_dir.is_dir():
        raise Refused(f"--memory-dir must be an existing folder, got {memory_dir}")
    if memory_dir is not None and not os.access(memory_dir, os.W_OK | os.X_OK):
        raise Refused(f"--memory-dir must be a writable folder, got {memory_dir}")
    for filed in (False, True):
        some = [need for need in needs if filed == (memory_dir is not None and not need.resident)]
        total = sum(need.size for need in some)
        free = shutil.disk_usage(memory_dir).free if filed and memory_dir else available("cpu")
        if total > free:
            what = "; ".join(need.what for need in some)
            place = f" in {memory_dir}" if filed else ""
            elsewhere = not memory_dir and not all(need.resident for need in some)
            advice = ": name a --memory-dir for them" if elsewhere else ""
            raise Refused(f"{what}: {mib(total)}, and {mib(free)} are free{place}{advice}")


def mib(size: int) -> str:
    """Formats a number of bytes in MiB."""
    return f"{size / 2**20:,.1f} MiB"
