"""Clients' memories on disk."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Final

from engram.client.encrypted_file import Damaged, Unencrypted, seal, unseal
from engram.client.memory import MemoryMismatch, newest_of
from engram.core.types import Params
from engram.settings.errors import EngramError
from engram.settings.files import read_file, replace_file
from engram.wire.tensors import tensors_from_bytes, tensors_to_bytes

_MEMORY: Final = "round"
_SERVES: Final = "serves"
"""Beginnings of files' names: of a client's memories, and of what served it."""


class MemoryFull(EngramError):
    """A memory does not fit the operator's bound, or the disk. The old one stays."""


class DiskStore:
    """Memories in files, ``client-<id>/round-<round>.memory`` under a folder.

    Beside them, in ``client-<id>/serves-<round>.memory``, may be what served the client when it was
    scored last. A crash or a full disk leaves every file either as it was or completely new.

    Args:
        folder: Created when the first memory is saved.
        key: 32 bytes to encrypt with, as ``encrypted_file.read_key`` returns them; None for none.
        limit: Most bytes of all files together; None for no bound.
    """

    def __init__(self, folder: Path, *, key: bytes | None = None, limit: int | None = None) -> None:
        self.folder = folder
        self._key = key
        self._limit = limit
        self._total = sum(path.lstat().st_size for path in folder.glob("client-*/*-*.memory"))

    def load(self, client: int, *, before: int) -> Params | None:
        """As ``MemoryStore.load``."""
        found = self.newest(client, before=before)
        return self.read(client, found) if found else None

    def newest(self, client: int, *, before: int) -> int:
        """As ``MemoryStore.newest``."""
        return newest_of(self.versions(client), before)

    def save(self, client: int, memory: Params, *, server_round: int, durable: int) -> None:
        """As ``MemoryStore.save``.

        Raises:
            MemoryFull: If it does not fit the bound, or the disk. The old memory stays.
        """
        path = self._path(client, server_round)
        data = seal(tensors_to_bytes(memory), _label(client, server_round), self._key)
        if self._lacks_room(path, data):  # training goes before what is kept for exports
            for serving in self.folder.glob(f"client-*/{_SERVES}-*.memory"):
                self._remove(serving)
        self._write(path, data, f"client {client}'s memory", "the old one stays: ")
        versions = self.versions(client)
        # A resumed run needs every version after the durable round, and the newest up to it.
        floor = max((r for r in versions if r <= min(durable, server_round - 1)), default=0)
        for version, old in versions.items():
            if version < floor or version > server_round:
                self._remove(old)

    def save_serving(self, client: int, arrays: Params, *, server_round: int) -> None:
        """Stores the slots that serve a client after a round, in place of former ones.

        Raises:
            MemoryFull: If it does not fit the bound, or the disk. The old file stays.
        """
        path = self._path(client, server_round, _SERVES)
        data = seal(tensors_to_bytes(arrays), _label(client, server_round, _SERVES), self._key)
        self._write(path, data, f"what serves client {client}", "")
        for other in path.parent.glob(f"{_SERVES}-*.memory"):  # whatever round a server has named
            if other != path:
                self._remove(other)

    def load_serving(self, client: int) -> tuple[int, Params] | None:
        """Returns the round and the arrays of ``save_serving``; None if there are none.

        Raises:
            MemoryMismatch: As ``read``.
        """
        newest = max(self.serving(client), default=None)
        return None if newest is None else (newest, self._read(client, newest, _SERVES))

    def drop_serving(self, client: int) -> None:
        """Removes the slots of ``save_serving`` for a client."""
        for path in (self.folder / f"client-{client}").glob(f"{_SERVES}-*.memory"):
            self._remove(path)

    def _lacks_room(self, path: Path, data: bytes) -> bool:
        return self._limit is not None and self._total - _size(path) + len(data) > self._limit

    def _write(self, path: Path, data: bytes, what: str, stays: str) -> None:
        if self._lacks_room(path, data):
            raise MemoryFull(
                f"{what} of {len(data)} bytes does not fit the bound of "
                f"{self._limit}, of which {self._total} are used: raise memory-limit, or "
                "`engram memory forget` what is not needed"
            )
        replaced = _size(path)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, data)
        except OSError as error:
            raise MemoryFull(
                f"{what} cannot be written ({error.strerror}); {stays}make room in {self.folder}"
            ) from error
        self._total += len(data) - replaced

    def _remove(self, path: Path) -> None:
        self._total -= _size(path)
        path.unlink(missing_ok=True)

    def read(self, client: int, version: int) -> Params:
        """Returns the memory that a round made.

        Raises:
            MemoryMismatch: If it is damaged, encrypted with another key, or not encrypted although
                there is a key.
        """
        return self._read(client, version, _MEMORY)

    def _read(self, client: int, version: int, what: str) -> Params:
        path = self._path(client, version, what)
        with _named(path):
            label = _label(client, version, what)
            return tensors_from_bytes(unseal(read_file(path), label, self._key))

    def unencrypted(self) -> dict[Path, str]:
        """Returns the files of memories that are not encrypted, each with its label.

        Raises:
            MemoryMismatch: If a memory is damaged, or encrypted with another key.
        """
        found = {}
        for client, what in product(self.clients(), (_MEMORY, _SERVES)):
            for version, path in self._files(client, what).items():
                label = _label(client, version, what)
                with _named(path):
                    data = read_file(path)
                    try:
                        unseal(data, label, self._key)
                    except Unencrypted:
                        unseal(data, label, None)
                        found[path] = label
        return found

    def encrypt(self) -> int:
        """Encrypts all unencrypted memories with the key; returns how many there were.

        Raises:
            MemoryMismatch: If one is damaged; then nothing is encrypted.
        """
        plain = self.unencrypted()
        for path, label in plain.items():
            with _named(path):
                replace_file(path, seal(unseal(read_file(path), label, None), label, self._key))
        return len(plain)

    def clients(self) -> list[int]:
        """Returns the clients that have a memory here, ascending."""
        return sorted(_numbered(self.folder, "client-", ""))

    def versions(self, client: int) -> dict[int, Path]:
        """Returns the rounds that made the client's memories, ascending, and their files."""
        return self._files(client, _MEMORY)

    def serving(self, client: int) -> dict[int, Path]:
        """Returns the rounds that ``save_serving`` was called after, ascending, and their files."""
        return self._files(client, _SERVES)

    def _files(self, client: int, what: str) -> dict[int, Path]:
        files = _numbered(self.folder / f"client-{client}", f"{what}-", ".memory")
        return dict(sorted(files.items()))

    def _path(self, client: int, version: int, what: str = _MEMORY) -> Path:
        return self.folder / f"client-{client}" / f"{what}-{version}.memory"


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except Unencrypted as error:
        raise MemoryMismatch(
            f"the memory {path} cannot be used: {error}; if this client wrote it before there was "
            "a key, run `engram memory encrypt`, else remove it"
        ) from error
    except (Damaged, ValueError) as error:
        raise MemoryMismatch(
            f"the memory {path} cannot be used: {error}; remove it to go on without"
        ) from error
    except OSError as error:
        raise MemoryMismatch(f"the memory {path} cannot be used: {error.strerror}") from error


def _numbered(folder: Path, prefix: str, suffix: str) -> dict[int, Path]:
    name = re.compile(rf"{prefix}(0|[1-9]\d{{0,17}}){re.escape(suffix)}", re.ASCII)
    there = os.listdir(folder) if folder.is_dir() else ()
    return {int(match[1]): folder / match[0] for match in map(name.fullmatch, there) if match}


def _label(client: int, version: int, what: str = _MEMORY) -> str:
    return f"client {client}, {what} {version}"


def _size(path: Path) -> int:
    return path.lstat().st_size if path.exists() else 0
