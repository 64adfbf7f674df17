"""Digests of data sets, by which rows are known again.

Files are read once for each size and time that they have.
"""

import hashlib
import hmac
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from engram.data.source import Source
from engram.settings.files import open_file


class Rows(NamedTuple):
    """Data sets as they were at some time.

    Attributes:
        sources: The data sets.
        stamp: Digest of the names, sizes and times of their files.
        digest: Digest of their contents.
    """

    sources: tuple[str, ...]
    stamp: str
    digest: str

    def now(self, key: bytes = b"") -> "Rows":
        """Returns the same data sets as they are now, or these if a file cannot be read."""
        return rows_of(map(Source, self.sources), key, self) or self


def rows_of(sources: Iterable[Source], key: bytes = b"", last: Rows | None = None) -> Rows | None:
    """Returns data sets as they are now; None if none is a file, or one cannot be read.

    Args:
        sources: The data sets.
        key: The secret of whoever has them, without which digests confirm no guess of the contents;
            empty for none.
        last: What was returned before, which stays if no file has another size or time.
    """
    some = [Source(source) for source in sources]  # without rows that they may carry
    if not any(source.unpermuted.is_file for source in some):
        return None
    try:
        stamp = stamp_of(some)
        if last is not None and last.stamp == stamp:
            return last
        return Rows(tuple(map(str, some)), stamp, keyed(digest_of(some), key))
    except OSError:
        return None


def read_rows(found: Any) -> Rows | None:
    """Reads the JSON of ``Rows._asdict``; None of anything else."""
    match found:
        case {"sources": [*sources], "stamp": str(stamp), "digest": str(digest)}:
            return Rows(tuple(map(str, sources)), stamp, digest)
    return None


def keyed(digest: str, key: bytes) -> str:
    """Keys a digest, so that only owners of the key can compute it."""
    return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest() if key else digest


def stamp_of(sources: Iterable[Source]) -> str:
    """Returns a digest of the names, sizes and times of data sets' files.

    Raises:
        OSError: A file is not there.
    """
    found = hashlib.sha256()
    for path in chain.from_iterable(map(_files, sources)):
        stat = path.stat()
        found.update(f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {path}\n".encode())
    return found.hexdigest()


def digest_of(sources: Iterable[Source]) -> str:
    """Returns the digest of data sets: of the bytes of files wherever they lie, else of names.

    Raises:
        OSError: A file cannot be read.
    """
    some = tuple(Source(source) for source in sources)
    return _digest_of(some, stamp_of(some))


@lru_cache(maxsize=64)
def _digest_of(sources: tuple[Source, ...], stamp: str) -> str:
    del stamp  # only with another one are files read again
    found = hashlib.sha256()
    for source in sources:
        root = source.unpermuted.path
        if not source.unpermuted.is_file:
            found.update(f"name {source.unpermuted}\n".encode())
        for path in _files(source):
            inside = f" {path.relative_to(root)}" if path != root else ""
            found.update(f"file {file_sha256(path)}{inside}\n".encode())
    return found.hexdigest()


def _files(source: Source) -> Iterator[Path]:
    plain = source.unpermuted
    if plain.is_file and plain.path.is_dir():
        yield from sorted(path for path in plain.path.rglob("*") if path.is_file())
    elif plain.is_file:
        yield plain.path


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
