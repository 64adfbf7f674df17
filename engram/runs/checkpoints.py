"""A run's checkpoints on disk: folders of files, each with a manifest of checksums.

``round-N/`` holds the files and ``manifest.json``: the round, and each file's size and SHA-256. The
last two are kept, so that a run whose newest checkpoint is damaged resumes from the one before.
"""

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from engram.data.file_models import Count, Stored, fits
from engram.settings.errors import EngramError, Refused, one_line
from engram.settings.files import read_file, read_json, sync

if TYPE_CHECKING:
    from engram.core.types import Params

_MANIFEST: Final = "manifest.json"
_KEPT: Final = 2
_MODEL, _STATE, _MEMORIES = (f"{part}.safetensors" for part in ("model", "state", "memory"))
_CLIENTS: Final = "clients"  # the file of their number
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
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


Written = dict[int, tuple["bytes | Params", Path, dict[str, Any]]]
"""Files that are on the disk: contents, by their identity, with place and description."""

Like = Callable[[int | None], tuple["Params | None", "Params | None"]]
"""Model and state of a run, by its number of clients, whose names, shapes and types are wanted."""


class Checkpoint(NamedTuple):
    """Everything that a run needs to continue after a round.

    Attributes:
        server_round: The round; 0 before the first.
        model: The model after it.
        state: The aggregate's state.
        memories: The clients' memories from ``Memories.dump``, if they are kept here.
        clients: Number of clients that the state is of, if clients come while the run goes on.
        damaged: What is wrong with later, damaged checkpoints, by name.
    """

    server_round: int
    model: "Params"
    state: "Params"
    memories: bytes | None = None
    clients: int | None = None
    damaged: Mapping[str, str] = _NONE

    @classmethod
    def read(cls, folder: Path, server_round: int, like: Like | None = None) -> Self:
        """Reads a checkpoint; its model and state must be like those of ``like``, if given.

        Raises:
            DamagedCheckpoint: It is damaged.
            OtherModel: It is of another model.
        """
        files = read_checkpoint(folder, server_round)
        clients = int(files[_CLIENTS]) if _CLIENTS in files else None
        model, state = like(clients) if like else (None, None)
        found = tensors_of(files, _MODEL, model), tensors_of(files, _STATE, state)
        return cls(server_round, *found, files.get(_MEMORIES), clients)

    def write(self, root: Path, written: "Written | None" = None) -> None:
        """Adds it to a folder of checkpoints; see ``write_checkpoint``."""
        files: dict[str, bytes | Params] = {_MODEL: self.model, _STATE: self.state}
        files |= {} if self.clients is None else {_CLIENTS: str(self.clients).encode()}
        files |= {} if self.memories is None else {_MEMORIES: self.memories}
        write_checkpoint(root, self.server_round, files, written)


def checkpoints_in(root: Path) -> dict[int, Path]:
    """Returns the checkpoints in a folder, by round in ascending order."""
    found = ((_NAME.fullmatch(path.name), path) for path in root.glob("round-*"))
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def write_checkpoint(
    root: Path,
    server_round: int,
    files: "Mapping[str, bytes | Params]",
    written: Written | None = None,
) -> None:
    """Adds a checkpoint, and removes all but the last two.

    It gets its name only once all of it is on the disk, and older ones are removed only after that:
    a crash at any instant leaves either the previous checkpoints or the new one.

    Args:
        root: Folder of the checkpoints; made if missing.
        server_round: The round that it follows; later than those of all existing checkpoints.
        files: Contents by name: bytes, or tensors, of which no copy is made.
        written: Files of other checkpoints, which are linked where contents are the same object;
            those of this one are added.
    """
    new, written = root / "new", {} if written is None else written
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    described = {name: _put(new / name, data, written) for name, data in files.items()}
    _put(new / _MANIFEST, json.dumps({"round": server_round, "files": described}).encode(), {})
    sync(new)
    place = new.rename(root / f"round-{server_round}")
    sync(root)
    written |= {id(data): (data, place / name, described[name]) for name, data in files.items()}
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


def file_digests(folder: Path, server_round: int) -> dict[str, str]:
    """Returns the SHA-256 of each file of a checkpoint, by name, verified as it is read.

    Raises:
        DamagedCheckpoint: As ``read_checkpoint``.
    """
    files = read_checkpoint(folder, server_round)
    return {name: _described(data)["sha256"] for name, data in files.items()}


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


def _put(path: Path, data: "bytes | Params", written: Written) -> dict[str, Any]:
    if id(data) in written:
        _, place, described = written[id(data)]
        with contextlib.suppress(OSError):  # of a file system without links
            path.hardlink_to(place)
            return described
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
