"""Creates folders with secrets atomically: complete or not at all."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from engram.settings import files
from engram.settings.errors import Refused
from engram.settings.files import locked, refusing, sync


def make_folder(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Makes a folder with all its files, given by name.

    It is written under a temporary name beside its place and then renamed. What a killed call
    left is removed by the next one. Whatever the umask, only the owner can enter folders and read
    ``*.key`` files; everybody can read the others.

    Raises:
        Refused: If the folder is in use, or cannot be made.
    """
    folder = folder.resolve()
    with refusing(f"{folder} cannot be made"):
        if folder == Path.cwd():  # a shell would stay behind in the folder that is replaced
            raise Refused(f"{folder} is the working directory: name a folder in it")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise Refused(f"{folder} is in use already: name a new folder, or an empty one")
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with _beside(folder) as new:
            for path, data in contents.items():
                _enter(new, Path(path).parent)
                _write(new / path, data, _mode(path))
            new.rename(folder)
            sync(folder.parent)


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file atomically, with the mode that ``make_folder`` gives it.

    Raises:
        Refused: If it cannot be written.
    """
    with refusing(f"{path} cannot be written"):
        files.replace_file(path, data, mode=_mode(path.name))


@contextlib.contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Has commands that change a server's folder take turns; a missing one is not locked."""
    there = folder.resolve()  # it may be a link
    with locked(there, folder=True, wait=True) if there.is_dir() else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """Yields a new, locked folder; removes it afterwards unless it was renamed."""
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".new", dir=folder.parent))
    try:
        new.chmod(0o700)
        with locked(new, folder=True):
            yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Removes folders of killed calls; calls still running hold a lock on theirs."""
    for left in folder.parent.glob(f".{folder.name}.*.new"):
        with contextlib.suppress(OSError), locked(left, folder=True):
            shutil.rmtree(left)


def _enter(root: Path, path: Path) -> None:
    for part in (*reversed(path.parents[:-1]), path):
        folder = root / part
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)


def _mode(name: str) -> int:
    return 0o600 if name.endswith(".key") else 0o644


def _write(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(data)
        file.flush()
        os.fsync(descriptor)
