"""Lists the trainings that a node has memories of, and removes old ones."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from client.memory import DiskStore

__all__ = ["Kept", "kept", "prune"]


class Kept(NamedTuple):
    """A client's newest memory in one training.

    Attributes:
        training: The training's name.
        client: The client.
        server_round: The round that made it.
        size: Its bytes on the disk.
        written: When it was written, in seconds since 1970.
    """

    training: str
    client: int
    server_round: int
    size: int
    written: float


def kept(root: Path) -> Iterator[Kept]:
    """Yields every client's newest memory in every training under a folder."""
    for folder in sorted(path for path in root.glob("*") if path.is_dir()):
        store = DiskStore(folder)
        for client in store.clients():
            versions = store.versions(client)
            if versions:
                newest = max(versions)
                stat = versions[newest].lstat()
                yield Kept(folder.name, client, newest, stat.st_size, stat.st_mtime)


def prune(folder: Path, *, days: float | None) -> None:
    """Removes the memories of other trainings that have not changed for ``days`` days.

    Args:
        folder: The present training's folder, which stays.
        days: Number of days; None to keep all.
    """
    if days is None or not folder.parent.is_dir():
        return
    oldest = time.time() - days * 86400
    for other in folder.parent.iterdir():
        if other == folder or not other.is_dir():
            continue
        files = [path.lstat().st_mtime for path in other.rglob("*")]
        if max([other.stat().st_mtime, *files]) < oldest:
            shutil.rmtree(other, ignore_errors=True)
