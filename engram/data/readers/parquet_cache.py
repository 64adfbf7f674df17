"""The cache of unpacked Parquet, without files of refused runs."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from engram.data.source import Source

CACHE: Final = "huggingface"  # in the folder of data sets, where the library keeps what it unpacks


@contextlib.contextmanager
def unless_refused(source: Source, data_dir: Path) -> Iterator[None]:
    """Removes unpacked files of a block that fails, and the folder if it is new.

    What is downloaded stays.
    """
    if source.kind != "parquet":
        yield
        return
    cache = data_dir / CACHE
    made = [path for path in (cache, *cache.parents) if not path.exists()]
    try:
        cache.mkdir(parents=True, exist_ok=True)
        before = set(cache.rglob("*"))
        handle = os.open(cache, os.O_RDONLY)
    except OSError:  # whoever unpacks says why
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in sorted(set(cache.rglob("*")) - before, reverse=True):  # contents first
                path.rmdir() if path.is_dir() else path.unlink()
            for path in made:
                path.rmdir()
        raise
    finally:
        os.close(handle)
