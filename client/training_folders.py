"""Lists the trainings that a node has memories of, and removes old ones."""

import shutil
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from rich.table import Table

from engram.client.disk_memory import DiskStore
from engram.settings.errors import Refused, one_line
from engram.settings.files import read_json
from engram.wire.checksums import checked

ABOUT: Final = "training.json"  # the file beside a training's memories that describes it

_NUMBERS: Final = ("client", "round", "KiB")  # columns of a table


class Kept(NamedTuple):
    """A client's newest memory in one training, or else the slots that serve it."""

    training: str
    run: int  # number of the training's last run here; 0 if that is not known
    method: str  # empty if that is not known
    client: int
    server_round: int
    size: int  # bytes on the disk
    written: float  # seconds since 1970


def kept(root: Path) -> list[Kept]:
    """Returns clients' newest memories under a folder, those of the latest training first."""
    trainings = [[*_memories(path)] for path in sorted(root.glob("*")) if path.is_dir()]
    trainings.sort(key=lambda own: max((each.written for each in own), default=0), reverse=True)
    return [*chain.from_iterable(trainings)]


def _memories(folder: Path) -> Iterator[Kept]:
    store, about = DiskStore(folder), _about(folder)
    for client in store.clients():
        versions = store.versions(client) or store.serving(client)
        if versions:
            newest = max(versions)
            stat = versions[newest].lstat()
            yield Kept(folder.name, *about, client, newest, stat.st_size, stat.st_mtime)


def _about(folder: Path) -> tuple[int, str]:
    try:
        match checked(read_json(folder / ABOUT)):
            case {"settings": {"method": str(method)}, "run": int(run)}:
                return run, method
    except Refused:  # of an earlier version, or damaged
        pass
    return 0, ""


def listed(found: Iterable[Kept]) -> Table:
    """Returns a table of memories."""
    table = Table()
    for heading in ("training", "client", "method", "round", "KiB", "written (UTC)", "run"):
        table.add_column(heading, justify="right" if heading in _NUMBERS else "left")
    for entry in found:
        memory = entry.training, entry.client, entry.method or "?", entry.server_round
        at = datetime.fromtimestamp(entry.written, UTC)
        cells = *memory, f"{entry.size / 1024:.1f}", f"{at:%Y-%m-%d %H:%M}", entry.run or "?"
        table.add_row(*(one_line(str(cell)) for cell in cells))
    return table


def prune(folder: Path, *, days: float | None) -> None:
    """Removes the memories of other trainings that have not changed for ``days`` days.

    The training of ``folder`` stays; None ``days`` keep all.
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
