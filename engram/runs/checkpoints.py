"""A run's checkpoints on disk: folders of files, each with a manifest of checksums.

``round-N/`` holds the files and ``manifest.json``: the round, and each file's size and SHA-256. The
last two are kept, so that a run whose newest checkpoint is damaged resumes from the one before.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engram.data.file_models import Count, Stored, fits
from engram.settings.errors import EngramError, Refused, one_line
from engram.settings.files import read_file, read_json, sync

if TYPE_CHECKING:
    from engram.core.types import Params

_MANIFEST: Final = "manifest.json"
_KEPT: Final = 2
_NAME: Final = re.compile(r"round-(0|[1-9]\d{0,17})", re.ASCII)


class _File(Stored):
    bytes: Count
    sha256: str


class _Manifest(Stored):
    round: Count
    files: dict[str, _File]


class DamagedCheckpoint(EngramError):
    """A checkpoint was altered, or does not belong to this run."""


class OtherModel(DamagedCheckpoint):
    """An intact checkpoint of another model than the run's settings make now."""


def checkpoints_in(root: Path) -> dict[int, Path]:
    """Returns the checkpoints in a folder, by round in ascending order."""
    found = ((_NAME.fullmatch(path.name), path) for path in root.glob("round-*"))
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def write_checkpoint(root: Path, server_round: int, files: "Mapping[str, bytes | Params]") -> None:
    """Adds a checkpoint, and removes all but the last two.

    It gets its name only once all of it is on the disk, and older ones are removed only after that:
    a crash at any instant leaves either the previous checkpoints or the new one.

    Args:
        root: Folder of the checkpoints; made if missing.
        server_round: The round that it follows; later than those of all existing checkpoints.
        files: Contents by name: bytes, or tensors, of which no copy is made.
    """
    new = root / "new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    described = {name: _put(new / name, data) for name, data in files.items()}
    _put(new / _MANIFEST, json.dumps({"round": server_round, "files": described}).encode())
    sync(new)
    new.rename(root / f"round-{server_round}")
    sync(root)
    for old in list(checkpoints_in(root).values())[:-_KEPT]:
        drop_checkpoint(old)


def drop_checkpoint(folder: Path) -> None:
    """Removes a checkpoint; a crash leaves it whole or under a name that is ignored."""
    old = folder.with_name("old")
    shutil.rmtree(old, ignore_errors=True)
    folder.rename(old)
    shutil.rmtree(old)


def read_checkpoint(folder: Path, server_round: int) -> dict[str, bytes]:
    """Returns a checkpoint's files by name, verified against its manifest.

    Raises:
        DamagedCheckpoint: If a file is missing, unexpected, or not as it was written.
    """
    wanted = _manifest(folder, server_round)
    try:
        names = sorted(path.name for path in folder.iterdir() if path.name != _MANIFEST)
        if names != sorted(wanted):
            raise DamagedCheckpoint(f"it holds {names} instead of {sorted(wanted)}")
        sizes = {name: wanted[name]["bytes"] for name in names}
        files = {n: read_file(folder / n, most=size, links=False) for n, size in sizes.items()}
    except OSError as error:
        raise DamagedCheckpoint(f"it cannot be read: {error.strerror}") from error
    for name, described in wanted.items():
        if _described(files[name]) != described:
            raise DamagedCheckpoint(f"the checksum of {name} is wrong")
    return files


def _manifest(folder: Path, server_round: int) -> dict[str, Any]:
    try:
        found = read_json(folder / _MANIFEST)
    except Refused as error:
        raise DamagedCheckpoint(f"its {_MANIFEST} cannot be read") from error
    if not fits(_Manifest, found) or found["round"] != server_round:
        raise DamagedCheckpoint(f"its {_MANIFEST} does not describe it")
    files: dict[str, Any] = found["files"]
    return files


def _described(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _put(path: Path, data: "bytes | Params") -> dict[str, Any]:
    if isinstance(data, bytes):
        path.touch(0o600)
        path.write_bytes(data)
        sync(path)
        return _described(data)
    from engram.wire.tensors import tensors_to_file  # noqa: PLC0415 - loads torch

    tensors_to_file(path, data)
    sync(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def tensors_of(files: Mapping[str, bytes], name: str, like: "Params | None") -> "Params":
    """Returns a checkpoint's tensors; names, shapes and types must be those of ``like``.

    Raises:
        OtherModel: They are others.
        DamagedCheckpoint: It holds none.
    """
    from engram.wire.tensors import difference, tensors_from_bytes  # noqa: PLC0415 - loads torch

    try:
        found = tensors_from_bytes(files[name])
    except KeyError as error:
        raise DamagedCheckpoint(f"it lacks {name}") from error
    except ValueError as error:
        raise DamagedCheckpoint(f"{name}: {one_line(str(error))}") from error
    wrong = None if like is None else difference(found, like)
    if wrong is not None:
        raise OtherModel(f"{name}: {one_line(wrong)}")
    return found
