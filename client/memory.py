"""A client's memory: what it keeps between the rounds that it takes part in.

It belongs to the client and never leaves its machine. It is tied to the round that wrote it, so
that a round that is repeated after a crash starts from the same memory and gives the same numbers.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from client.sealed import Damaged, Unencrypted, seal, unseal
from engram.types import Params
from federation.errors import EngramError
from federation.files import read_file, replace_file
from federation.tensors import tensors_from_bytes, tensors_to_bytes

__all__ = ["DiskStore", "MemoryFull", "MemoryMismatch", "MemoryStore", "RamStore"]


class MemoryMismatch(EngramError):
    """A stored memory is damaged, cannot be decrypted, or belongs to another model."""


class MemoryStore(Protocol):
    """Memories of the clients that a node hosts."""

    def load(self, client: int, *, before: int) -> Params | None:
        """Returns the client's newest memory from a round before the given one.

        Args:
            client: The client.
            before: Round; memories of this round and later ones are ignored.

        Returns:
            The memory, or None if the client has none yet.

        Raises:
            MemoryMismatch: If it cannot be read.
        """

    def newest(self, client: int, *, before: int) -> int:
        """Returns the round of the memory that ``load`` returns; 0 if there is none yet."""

    def save(self, client: int, memory: Params, *, server_round: int, durable: int) -> None:
        """Stores a client's new memory.

        Args:
            client: The client.
            memory: Its new memory.
            server_round: The round that made it.
            durable: The round of the coordinator's oldest checkpoint; 0 for none. A resumed run
                may start after it, so memories since then are kept.
        """


class RamStore:
    """Memories in this process. A resumed run gets them back by ``restore``."""

    def __init__(self) -> None:
        self._versions: dict[int, dict[int, Params]] = defaultdict(dict)

    def load(self, client: int, *, before: int) -> Params | None:
        """As ``MemoryStore.load``."""
        found = self.newest(client, before=before)
        return self._versions[client][found] if found else None

    def newest(self, client: int, *, before: int) -> int:
        """As ``MemoryStore.newest``."""
        return _newest(self._versions.get(client, {}), before)

    def save(self, client: int, memory: Params, *, server_round: int, durable: int) -> None:
        """As ``MemoryStore.save``, but keeps only one older version, whatever ``durable`` is.

        Nothing in RAM outlives the process, so only a round that this process repeats can ask for
        an older version.
        """
        del durable
        versions = self._versions[client]
        earlier = [version for version in versions if version < server_round]
        kept = {max(earlier): versions[max(earlier)]} if earlier else {}
        self._versions[client] = kept | {server_round: memory}

    def dump(self) -> bytes:
        """Serializes the newest memory of every client."""
        tensors: Params = {}
        for client, versions in self._versions.items():
            newest = max(versions)
            for name, leaf in versions[newest].items():
                tensors[f"{client}/{newest}/{name}"] = leaf
        return tensors_to_bytes(tensors)

    def restore(self, data: bytes) -> None:
        """Replaces all memories by those that ``dump`` returned.

        Raises:
            MemoryMismatch: If the bytes hold no memories.
        """
        versions: dict[int, dict[int, Params]] = defaultdict(dict)
        try:
            for key, leaf in tensors_from_bytes(data).items():
                client, version, name = key.split("/", 2)
                versions[int(client)].setdefault(int(version), {})[name] = leaf
        except ValueError as error:
            raise MemoryMismatch(f"the checkpoint holds no memories: {error}") from error
        self._versions = versions


class MemoryFull(EngramError):
    """A memory does not fit the operator's bound, or the disk. The old one stays."""


class DiskStore:
    """Memories in files, ``client-<id>/round-<round>.memory`` under a folder.

    A crash or a full disk leaves every file either as it was or completely new.

    Args:
        folder: Created when the first memory is saved.
        key: 32 bytes to encrypt with, as ``sealed.read_key`` returns them; None for none.
        limit: Most bytes of all files together; None for no bound.
    """

    def __init__(self, folder: Path, *, key: bytes | None = None, limit: int | None = None) -> None:
        self.folder = folder
        self._key = key
        self._limit = limit
        self._total = sum(path.lstat().st_size for path in folder.glob("client-*/round-*.memory"))

    def load(self, client: int, *, before: int) -> Params | None:
        """As ``MemoryStore.load``."""
        found = self.newest(client, before=before)
        return self.read(client, found) if found else None

    def newest(self, client: int, *, before: int) -> int:
        """As ``MemoryStore.newest``."""
        return _newest(self.versions(client), before)

    def save(self, client: int, memory: Params, *, server_round: int, durable: int) -> None:
        """As ``MemoryStore.save``.

        Raises:
            MemoryFull: If it does not fit the bound, or the disk. The old memory stays.
        """
        path = self._path(client, server_round)
        data = seal(tensors_to_bytes(memory), _label(client, server_round), self._key)
        replaced = path.lstat().st_size if path.exists() else 0
        if self._limit is not None and self._total - replaced + len(data) > self._limit:
            raise MemoryFull(
                f"client {client}'s memory of {len(data)} bytes does not fit the bound of "
                f"{self._limit}, of which {self._total} are used: raise memory-limit, or "
                "`engram memory forget` what is not needed"
            )
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, data)
        except OSError as error:
            raise MemoryFull(
                f"client {client}'s memory cannot be written ({error.strerror}); the old one "
                f"stays: make room in {self.folder}"
            ) from error
        self._total += len(data) - replaced
        versions = self.versions(client)
        # A resumed run needs every version after the durable round, and the newest up to it.
        floor = max((r for r in versions if r <= min(durable, server_round - 1)), default=0)
        for version, old in versions.items():
            if version < floor or version > server_round:
                self._total -= old.lstat().st_size
                old.unlink(missing_ok=True)

    def read(self, client: int, version: int) -> Params:
        """Returns the memory that a round made.

        Raises:
            MemoryMismatch: If it is damaged, encrypted with another key, or not encrypted although
                there is a key.
        """
        path = self._path(client, version)
        with _named(path):
            return tensors_from_bytes(unseal(read_file(path), _label(client, version), self._key))

    def unencrypted(self) -> dict[Path, str]:
        """Returns the files of memories that are not encrypted, each with its label.

        Raises:
            MemoryMismatch: If a memory is damaged, or encrypted with another key.
        """
        found = {}
        for client in self.clients():
            for version, path in self.versions(client).items():
                label = _label(client, version)
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
        files = _numbered(self.folder / f"client-{client}", "round-", ".memory")
        return dict(sorted(files.items()))

    def _path(self, client: int, version: int) -> Path:
        return self.folder / f"client-{client}" / f"round-{version}.memory"


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Adds the file's name, and what to do, to errors about an unusable memory."""
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
    """Returns a folder's entries by number; other names are ignored."""
    name = re.compile(rf"{prefix}(0|[1-9]\d{{0,17}}){re.escape(suffix)}", re.ASCII)
    found = ((name.fullmatch(path.name), path) for path in folder.glob(f"{prefix}*{suffix}"))
    return {int(match[1]): path for match, path in found if match}


def _label(client: int, version: int) -> str:
    return f"client {client}, round {version}"


def _newest(versions: Iterable[int], before: int) -> int:
    return max((version for version in versions if version < before), default=0)
