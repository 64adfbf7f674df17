"""Digest of the source that is running, which two processes can compare."""

import hashlib
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path

from engram.settings.plugins import plugins, source_of

# What server and clients both execute. simulations and benchmarks do not travel in a FAB.
ROOMS = ("engram", "federation", "client", "strategies", "server")


@cache
def source_root() -> Path:
    """Returns the folder that this source was imported from."""
    return Path(__file__).resolve().parents[1]


def fingerprint() -> str:
    """Returns 16 hex digits that change when any module in ``ROOMS`` does.

    Each plug-in's name and digits follow: "0123456789abcdef with plug-in hospitals
    89abcdef01234567". Computed once, so that a long-lived process describes the source it has
    loaded even if the files have been edited since.

    Raises:
        Refused: If a plug-in's source is not found.
    """
    return _fingerprint(plugins())


@lru_cache(maxsize=1)
def _fingerprint(named: tuple[str, ...]) -> str:
    sources = {plugin.rpartition("/")[2]: source_of(plugin) for plugin in named}
    ours = _digest(source_root() / room for room in ROOMS)
    return " with plug-in ".join([ours, *(f"{n} {_digest([sources[n]])}" for n in sorted(sources))])


def _digest(places: Iterable[Path]) -> str:
    """Returns 16 hex digits of files and of the modules in folders, independent of location."""
    digest = hashlib.sha256()
    for place in places:
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.relative_to(place.parent).as_posix().encode() + b"\0")
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
