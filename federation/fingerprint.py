"""Which source is running: a digest that two processes can compare."""

import hashlib
from functools import lru_cache
from pathlib import Path

__all__ = ["ROOMS", "fingerprint", "source_root"]

# What server and clients both execute. simulations and benchmarks do not travel in a FAB.
ROOMS = ("engram", "federation", "client", "strategies", "server")


def source_root() -> Path:
    """Returns the folder that this source was imported from."""
    return Path(__file__).resolve().parents[1]


@lru_cache(maxsize=1)
def fingerprint() -> str:
    """Returns 16 hex digits that change when any module of the platform does.

    Computed once, so that a long-lived process describes the source it has loaded and not
    what an editor has done to the files since.
    """
    root = source_root()
    digest = hashlib.sha256()
    for path in sorted(file for room in ROOMS for file in (root / room).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
