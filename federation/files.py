"""Reads untrusted files, and replaces files atomically."""

import contextlib
import errno
import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from federation.errors import Refused, one_line

NEW = ".new-"
"""Prefix of files that have not been moved into place yet."""


def open_file(path: Path) -> BinaryIO:
    """Opens a regular file for reading; a pipe or a device, which could block, is an error.

    Raises:
        OSError: If it cannot be opened, or is not a regular file; ``strerror`` says so.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except ValueError as error:  # a NUL, or characters that cannot be encoded
        raise OSError(errno.EINVAL, "Not a possible file name") from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        what = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "Not a regular file"
        raise OSError(errno.EINVAL, what)
    return os.fdopen(handle, "rb")


def read_file(path: Path, *, most: int | None = None) -> bytes:
    """Returns the contents of a regular file of at most ``most`` bytes, if given.

    Raises:
        OSError: As for ``open_file``, or if the file is larger.
    """
    with open_file(path) as file:
        if most is None:
            return file.read()
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"Larger than {most} bytes")
    return data


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file.

    Raises:
        Refused: If the file cannot be read, or does not hold an object.
    """
    try:
        contents = json.loads(read_file(path))
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path} is damaged: {one_line(str(error))}") from error
    if not isinstance(contents, dict):
        raise Refused(f"{path} is damaged: it does not hold an object")
    return contents


def replace_file(path: Path, data: bytes, *, shared: bool = False) -> None:
    """Replaces a file atomically, and waits until the bytes are on the disk.

    Its folder must exist.

    Args:
        path: The file.
        data: Its contents.
        shared: Whether others may read it, as far as the process's mask allows; else, only its
            owner may.

    Raises:
        OSError: If the bytes could not be written; the old file stays.
    """
    handle, new = tempfile.mkstemp(dir=path.parent, prefix=NEW)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if shared:
                mask = os.umask(0)
                os.umask(mask)
                os.fchmod(file.fileno(), 0o666 & ~mask)
            os.fsync(file.fileno())
        Path(new).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(new).unlink()
        raise
    sync(path.parent)


def sweep(folder: Path) -> None:
    """Removes what killed processes left in a folder tree, to which nobody may be writing now."""
    for left in folder.rglob(f"{NEW}*"):
        left.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of a folder, or of a file, which is made if it is missing.

    Raises:
        BlockingIOError: Another process holds it.
        OSError: It cannot be opened.
    """
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file at this moment; nothing is made or changed."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def sync(path: Path) -> None:
    """Waits until a file's contents, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
