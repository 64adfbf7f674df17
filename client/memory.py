"""A client's memory: arrays that it keeps between its rounds.

It belongs to the client and never leaves its machine. It is tied to the round that wrote it, so
that a round that is repeated after a crash starts from the same memory and gives the same numbers.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

from engram.core.types import Params
from engram.settings.errors import EngramError


class MemoryMismatch(EngramError):
    """A stored memory is damaged, cannot be decrypted, or belongs to another model."""


class MemoryStore(Protocol):
    """Memories of the clients that a node hosts."""

    def load(self, client: int, *, before: int) -> Params | None:
        """Returns the client's newest memory of a round before this one; None if it has none.

        Raises:
            MemoryMismatch: If it cannot be read.
        """

    def newest(self, client: int, *, before: int) -> int:
        """Returns the round of the memory that ``load`` returns; 0 if there is none yet."""

    def save(self, client: int, memory: Params, *, server_round: int, durable: int) -> None:
        """Stores the memory that a round has made.

        ``durable`` is the round of the coordinator's oldest checkpoint, 0 for none: a resumed run
        may start after it, so memories since then are kept.
        """


class RamStore:
    """Memories in this process. A resumed run gets them back by ``restore``."""

    def __init__(self) -> None:
        self._versions: dict[int, dict[int, Params]] = defaultdict(dict)

    def load(self, client: int, *, before: int) -> Params | None:
        """As ``MemoryStore.load``."""
        versions = self._versions.get(client, {})
        found = newest_of(versions, before)
        return versions[found] if found else None

    def newest(self, client: int, *, before: int) -> int:
        """As ``MemoryStore.newest``."""
        return newest_of(self._versions.get(client, {}), before)

    def save(self, client: int, memory: Params, *, server_round: int, durable: int) -> None:
        """As ``MemoryStore.save``, but keeps one older version, for any ``durable``.

        Nothing in RAM outlives the process, so only a round that this process repeats can ask for
        an older version.
        """
        del durable
        versions = self._versions[client]
        last = newest_of(versions, server_round)
        kept = {last: versions[last]} if last else {}
        self._versions[client] = kept | {server_round: memory}

    def dump(self) -> bytes:
        """Serializes the newest memory of every client."""
        from engram.wire.tensors import tensors_to_bytes  # noqa: PLC0415 - trainers do without

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
        from engram.wire.tensors import tensors_from_bytes  # noqa: PLC0415 - trainers do without

        versions: dict[int, dict[int, Params]] = defaultdict(dict)
        try:
            for key, leaf in tensors_from_bytes(data).items():
                client, version, name = key.split("/", 2)
                versions[int(client)].setdefault(int(version), {})[name] = leaf
        except ValueError as error:
            raise MemoryMismatch(f"the checkpoint holds no memories: {error}") from error
        self._versions = versions


def newest_of(versions: Iterable[int], before: int) -> int:
    """Returns the newest of rounds before the given one; 0 if there is none."""
    return max((version for version in versions if version < before), default=0)
