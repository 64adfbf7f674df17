"""Writing files that a crash at any instant leaves as they were, or whole and new."""

import contextlib
import os
import tempfile
from pathlib import Path

__all__ = ["replace_file", "sync"]


def replace_file(path: Path, data: bytes) -> None:
    """Puts the bytes in the place of whatever the file held, and waits until they are on the disk.

    Only the file's owner may read it. Its folder must be there.

    Raises:
        OSError: They could not be written, for want of space or otherwise; the old file stays.
    """
    handle, new = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(new).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(new).unlink()
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Waits until a file's contents, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
