"""Reading files that somebody else put there; writing files that a crash leaves old or new."""

import contextlib
import errno
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

from federation.errors import Refused, one_line

NEW = ".new-"
"""How the names begin of files that are not in their place yet."""


def open_file(path: Path) -> BinaryIO:
    """Opens a regular file to be read, and nothing else: a pipe or a device would block for ever.

    Raises:
        OSError: If it cannot be opened, or is no regular file; ``strerror`` says so.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except ValueError as error:  # it holds a NUL, or what no file system can write
        raise OSError(errno.EINVAL, "No possible name of a file") from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        what = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "Not a regular file"
        raise OSError(errno.EINVAL, what)
    return os.fdopen(handle, "rb")


def read_file(path: Path, *, most: int | None = None) -> bytes:
    """Returns what a regular file holds.

    It can have ``most`` bytes, if given.

    Raises:
        OSError: As for ``open_file``; or it is larger.
    """
    with open_file(path) as file:
        if most is None:
            return file.read()
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"Larger than {most} bytes")
    return data


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object that a JSON file holds.

    Raises:
        Refused: If it cannot be read, or holds none.
    """
    try:
        contents = json.loads(read_file(path))
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path} is damaged: {one_line(str(error))}") from error
    if not isinstance(contents, dict):
        raise Refused(f"{path} is damaged: it holds no object")
    return contents


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
