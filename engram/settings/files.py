"""Reads untrusted files, and replaces files atomically."""

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from engram.core.machine import available
from engram.settings.errors import Refused, one_line

NEW = ".new-"
"""Prefix of files that have not been moved into place yet."""

_LARGEST: Final = 2**28  # bytes of a file of JSON
_SMALL: Final = 2**24  # bytes for which there is always room
_DEEPEST: Final = 32  # arrays and objects of JSON, or tables of TOML, in each other
_PART: Final = r"""[ \t]*(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*"""  # of a key of TOML
_DEEP_KEY: Final = re.compile(rf"(?:^[ \t]*\[{{1,2}}|^|[{{,])(?:{_PART}\.){{{_DEEPEST}}}", re.M)


def open_file(path: Path, *, links: bool = True) -> BinaryIO:
    """Opens a regular file for reading; a pipe or a device, which could block, is an error.

    ``links`` says whether it may be a symbolic link, as a user's own data may; a file that Engram
    has written is none.

    Raises:
        OSError: If it cannot be opened, or is not a regular file; ``strerror`` says so.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW))
    except ValueError as error:  # a NUL, or characters that cannot be encoded
        raise OSError(errno.EINVAL, "Not a possible file name") from error
    except OSError as error:
        if error.errno == errno.ELOOP and not links:
            raise OSError(errno.ELOOP, "A link, which is not followed", str(path)) from error
        raise
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        what = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "Not a regular file"
        raise OSError(errno.EINVAL, what)
    return os.fdopen(handle, "rb")


def read_file(path: Path, *, most: int | None = None, links: bool = True) -> bytes:
    """Returns the contents of a regular file of at most ``most`` bytes, if given.

    Raises:
        OSError: As for ``open_file``, or if the file is larger, or than the memory that is free.
    """
    with open_file(path, links=links) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"Larger than {most} bytes")
        if size > _SMALL and size > available("cpu"):
            raise OSError(errno.EFBIG, "Larger than the memory that is free")
        return file.read(size)  # room is made for as many bytes as are asked for


def read_json(path: Path, *, most: int = _LARGEST) -> dict[str, Any]:
    """Reads a JSON object from a file of at most ``most`` bytes; links are refused.

    Raises:
        Refused: If the file cannot be read, is too large, or does not hold an object.
    """
    try:
        contents = parse_json(read_file(path, most=most, links=False))
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Refused(f"{path} is damaged: {one_line(str(error))}") from error
    if not isinstance(contents, dict):
        raise Refused(f"{path} is damaged: it does not hold an object")
    return contents


def parse_json(data: bytes) -> Any:
    """Parses JSON of foreign origin.

    Raises:
        ValueError: If it is none, nests too deeply, or has text that is no Unicode.
    """
    try:
        contents = json.loads(data)
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error
    level: list[Any] = [contents]
    for _ in range(_DEEPEST):
        inside = [part for one in level for part in _parts(one)]
        "".join(part for part in inside if isinstance(part, str)).encode()  # refuses surrogates
        level = [part for part in inside if isinstance(part, dict | list)]
        if not level:
            return contents
    raise ValueError(f"it nests more than {_DEEPEST} levels deep")


def sorted_json(contents: Any) -> bytes:
    """Serializes JSON with sorted keys, for digests and signatures of its contents."""
    return json.dumps(contents, sort_keys=True).encode()


def parse_toml(data: bytes) -> dict[str, Any]:
    """Returns the contents of TOML of foreign origin.

    Raises:
        ValueError: If it is none, or nests too deeply: a key takes the square of its parts.
    """
    text = data.decode()
    if _DEEP_KEY.search(text):
        raise ValueError(f"a key has more than {_DEEPEST} parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error


def _parts(of: Any) -> Iterable[Any]:
    return [*of, *of.values()] if isinstance(of, dict) else of if isinstance(of, list) else [of]


@contextlib.contextmanager
def refusing(told: str) -> Iterator[None]:
    """Turns an ``OSError`` into ``Refused``: ``told``, as "FILE cannot be written", and why."""
    try:
        yield
    except OSError as error:
        raise Refused(f"{told}: {error.strerror}") from error


def replace_file(path: Path, data: bytes | Sequence[bytes], *, mode: int = 0o600) -> None:
    """Replaces a file atomically, and waits until the bytes are on the disk.

    Its folder must exist. By default only its owner may read it. ``data`` may be parts, in order.

    Raises:
        OSError: If the bytes could not be written; the old file stays.
    """
    try:
        handle, new = tempfile.mkstemp(dir=path.parent, prefix=NEW)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # not the name it drew
    try:
        with os.fdopen(handle, "wb") as file:
            if stat.S_IMODE(os.fstat(handle).st_mode) != mode:  # some file systems set none
                os.fchmod(handle, mode)
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        Path(new).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(new).unlink()
        raise
    sync(path.parent)


def stats_below(folder: Path) -> Iterator[os.stat_result]:
    """Yields the status of each file in a folder tree, but for those that are removed meanwhile."""
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield Path(place, name).lstat()


def sweep(folder: Path) -> None:
    """Removes unfinished files of killed processes from a folder tree."""
    for left in folder.rglob(f"{NEW}*"):
        left.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path, *, folder: bool = False, wait: bool = False) -> Iterator[None]:
    """Holds the lock of a file, which is made if it is missing, or of a folder, which is not.

    Raises:
        BlockingIOError: Another process holds it, which is not waited for.
        FileNotFoundError: Whoever held the folder before has removed it.
        OSError: It cannot be opened.
    """
    how = os.O_DIRECTORY if folder else os.O_RDWR | os.O_CREAT | os.O_NONBLOCK
    handle = os.open(path, how | os.O_NOFOLLOW, 0o600)
    try:
        if stat.S_ISFIFO(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if not os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        yield
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file at this moment; nothing is made or changed."""
    try:
        with open_file(path, links=False) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is none, or it is none
        pass
    return False


def sync(path: Path) -> None:
    """Waits until a file's contents, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
