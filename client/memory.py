"""A client's memory: what a local rule remembers between the rounds it takes part in.

It belongs to the client and never leaves its machine. It is tied to the round that wrote it, so
that a round which is run again (its run was killed and resumed) starts from the memory that it
started from at first, and gives the same numbers.
"""

import os
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from engram.types import Params
from federation.errors import EngramError

__all__ = ["DiskStore", "MemoryMismatch", "MemoryStore", "RamStore"]


class MemoryMismatch(EngramError):
    """A stored memory belongs to another model. It is refused, not guessed at."""


class MemoryStore(Protocol):
    """Memories of the clients that a node hosts."""

    def load(self, client: int, like: Params, *, before: int) -> Params | None:
        """Returns the client's newest memory from a round before the given one.

        Args:
            client: The client.
            like: The current model; the memory must have its names and shapes, and is
                returned with its dtypes, on its device.
            before: Round; what this round or a later one wrote is not looked at.

        Returns:
            The memory, or None if the client has none yet.

        Raises:
            MemoryMismatch: The memory belongs to another model.
        """

    def save(self, client: int, memory: Params, *, server_round: int, durable: int) -> None:
        """Keeps what a round made of the client's memory.

        Args:
            client: The client.
            memory: Its new memory.
            server_round: The round that made it.
            durable: The last round that the coordinator has a checkpoint of; 0 for none. A
                resumed run starts after it, so a memory is kept for that long.
        """


class RamStore:
    """Memories in this process. A run that is resumed gets them back by ``restore``."""

    def __init__(self) -> None:
        self._versions: dict[int, dict[int, Params]] = defaultdict(dict)

    def load(self, client: int, like: Params, *, before: int) -> Params | None:
        """As ``MemoryStore.load``."""
        versions = self._versions.get(client, {})
        earlier = [version for version in versions if version < before]
        return _checked(client, versions[max(earlier)], like) if earlier else None

    def save(self, client: int, memory: Params, *, server_round: int, durable: int) -> None:
        """As ``MemoryStore.save``, with one version before this one, whatever is durable.

        Nothing in RAM outlives the process, so only a round that this process runs twice can
        ask for an older version.
        """
        del durable
        versions = self._versions[client]
        earlier = [version for version in versions if version < server_round]
        kept = {max(earlier): versions[max(earlier)]} if earlier else {}
        self._versions[client] = kept | {server_round: memory}

    def dump(self, path: Path) -> None:
        """Writes the newest memory of every client to one file."""
        tensors: Params = {}
        for client, versions in self._versions.items():
            newest = max(versions)
            for name, leaf in versions[newest].items():
                tensors[f"{client}/{newest}/{name}"] = leaf
        _write(path, tensors)

    def restore(self, path: Path) -> None:
        """Replaces all memories by those of a file that ``dump`` wrote.

        Raises:
            MemoryMismatch: It is none, or not there.
        """
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise MemoryMismatch(f"{path} is damaged or missing: {error}") from error
        self._versions.clear()
        for key, leaf in tensors.items():
            client, version, name = key.split("/", 2)
            self._versions[int(client)].setdefault(int(version), {})[name] = leaf


class DiskStore:
    """Memories in files, ``client-<id>/round-<round>.safetensors`` under a folder.

    A crash at any instant leaves every file as it was, or whole and new.

    Args:
        folder: Created when the first memory is saved.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, client: int, like: Params, *, before: int) -> Params | None:
        """As ``MemoryStore.load``."""
        earlier = {r: path for r, path in self._versions(client).items() if r < before}
        if not earlier:
            return None
        path = earlier[max(earlier)]
        try:
            memory = load_file(path)
        except SafetensorError as error:
            raise MemoryMismatch(f"{path} is damaged ({error}): remove it to go on") from error
        return _checked(client, memory, like)

    def save(self, client: int, memory: Params, *, server_round: int, durable: int) -> None:
        """As ``MemoryStore.save``."""
        folder = self._folder / f"client-{client}"
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / f"round-{server_round}.safetensors", memory)
        versions = self._versions(client)
        # Kept: every version after the durable round, and the newest up to it.
        floor = max((r for r in versions if r <= min(durable, server_round - 1)), default=0)
        for version, path in versions.items():
            if version < floor or version > server_round:
                path.unlink(missing_ok=True)

    def _versions(self, client: int) -> dict[int, Path]:
        files = (self._folder / f"client-{client}").glob("round-*.safetensors")
        return {int(path.stem.removeprefix("round-")): path for path in files}


def _checked(client: int, memory: Params, like: Params) -> Params:
    found = {name: tuple(leaf.shape) for name, leaf in memory.items()}
    wanted = {name: tuple(leaf.shape) for name, leaf in like.items()}
    if found != wanted:
        raise MemoryMismatch(
            f"client {client}'s memory has shapes {found}, but the model has {wanted}"
        )
    return {name: memory[name].to(leaf) for name, leaf in like.items()}


def _write(path: Path, tensors: Params) -> None:
    data = save({name: leaf.detach().cpu().contiguous() for name, leaf in tensors.items()})
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    Path(file.name).replace(path)
