"""Writing files that a crash at any instant leaves as they were, or whole and new."""

import contextlib
import os
import tempfile
from pathlib import Path

__all__ = ["NEW", "replace_file", "sweep", "sync"]

NEW = ".new-"
"""How the names begin of files that are not in their place yet."""


def replace_file(path: Path, data: bytes) -> None:
    """Puts the bytes in the place of whatever the file held, and waits until they are on the disk.

    Only the file's owner may read it. Its folder must be there.

    Raises:
        OSError: They could not be written, for want of space or otherwise; the old file stays.
    """
    handle, new = tempfile.mkstemp(dir=path.parent, prefix=NEW)
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


def sweep(folder: Path) -> None:
    """Removes what kills have left in a folder and those below it, which nobody else writes to."""
    for left in folder.rglob(f"{NEW}*"):
        left.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Waits until a file's contents, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
