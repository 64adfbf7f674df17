"""Digest of the source that is running, which two processes can compare."""

import hashlib
import os
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path

from engram.settings.plugins import OURS, plugins, source_of

# No node runs them: commands, studies and views of runs may differ between both sides.
_ELSEWHERE = {(room,) for room in ("cli", "compare", "simulations", "studies", "studio", "tune")}


@cache
def source_root() -> Path:
    """Returns the folder that the package ``engram`` was imported from; links are not resolved."""
    return Path(OURS)


def modules() -> list[Path]:
    """Returns the files of the modules that a coordinator and its nodes both run.

    The rooms that a checkout has at its root are entered by their links in the package, so that a
    checkout and an installed wheel have the same names.
    """
    package = source_root() / "engram"
    return sorted(
        Path(folder, name)
        for folder, _, names in os.walk(package, followlinks=True)
        if Path(folder).relative_to(package).parts[:1] not in _ELSEWHERE
        for name in names
        if name.endswith(".py")
    )


def fingerprint() -> str:
    """Returns 16 hex digits that change when any module of ``modules`` does.

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
    ours = _digest(modules(), source_root())
    return " with plug-in ".join(
        [ours, *(f"{n} {_of_plugin(sources[n])}" for n in sorted(sources))]
    )


def _of_plugin(place: Path) -> str:
    return _digest(sorted(place.rglob("*.py")) if place.is_dir() else [place], place.parent)


def _digest(paths: Iterable[Path], root: Path) -> str:
    """Returns 16 hex digits of modules' names below a folder, and of their contents."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
