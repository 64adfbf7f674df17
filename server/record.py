"""A run's folder: its configuration, its metrics as they come, its checkpoints, its results.

``config.json`` (settings, engine, source), ``metrics.jsonl`` (one line a round),
``checkpoints/round-N/`` (the last one), ``results.json`` (once it is finished); on nodes, if the
run is private, ``clients-asked.txt`` (see ``server.ledger``).
"""

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from engram.types import Params
from federation.errors import Refused
from federation.experiment import Experiment
from federation.files import NEW, replace_file, sync
from federation.fingerprint import fingerprint

__all__ = ["Checkpoint", "Memories", "RunRecord"]

_log = getLogger("flwr.engram")

Row = dict[str, Any]

_LOCK = "lock"


class Memories(Protocol):
    """Clients' memories that live in the coordinator's process, and so in its checkpoints."""

    def dump(self, path: Path) -> None:
        """Writes them to a file."""

    def restore(self, path: Path) -> None:
        """Replaces them by those of such a file."""


class Checkpoint(NamedTuple):
    """All that a run needs to go on after a round.

    Attributes:
        server_round: The round; 0 before the first.
        model: The model after it.
        state: What the aggregate remembers.
        folder: Where it is kept.
    """

    server_round: int
    model: Params
    state: Params
    folder: Path

    @property
    def memories(self) -> Path:
        """The file of the clients' memories, if they are kept here."""
        return self.folder / "memory.safetensors"


class RunRecord:
    """One run's folder. Get one from ``create`` or ``open``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(
        cls, folder: Path, experiment: Experiment, *, engine: str, training: str
    ) -> "RunRecord":
        """Starts a new run's folder; ``training`` is the name that clients keep memories under.

        Raises:
            Refused: The folder is there and not empty, or cannot be made.
        """
        try:
            # A kill may have left a file of ours that was not yet in its place.
            if folder.exists() and any(not p.name.startswith(NEW) for p in folder.iterdir()):
                raise Refused(
                    f"{folder} is not empty: name another folder, or resume the run in it"
                )
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refused(f"{folder} cannot be made: {error.strerror}") from error
        record = cls(folder)
        record.write_config(experiment, engine=engine, training=training)
        return record

    @classmethod
    def open(cls, folder: Path) -> "RunRecord":
        """Opens the folder of a run that was started.

        Raises:
            Refused: It is none.
        """
        if not (folder / "config.json").is_file():
            raise Refused(f"{folder} is not the folder of a run: it has no config.json")
        return cls(folder)

    def write_config(self, experiment: Experiment, *, engine: str, training: str) -> None:
        """Writes ``config.json``: the settings as they are now, and what runs them."""
        config = {
            "settings": experiment.to_config() | {"resume": ""},
            "engine": engine,
            "training": training,
            "sources": self._sources(),
            "versions": {name: version(name) for name in ("flwr", "torch", "numpy")},
        }
        self._write("config.json", json.dumps(config, indent=2))

    def _sources(self) -> list[str]:
        """Returns the fingerprints of all sources that have run this, the present one last."""
        there = (self.folder / "config.json").is_file()
        before: list[str] = self.config.get("sources", []) if there else []
        if before and before[-1] != fingerprint():
            _log.warning(
                "%s was begun by source %s and goes on with %s, whose numbers may differ",
                self.folder,
                before[-1],
                fingerprint(),
            )
        return before if before[-1:] == [fingerprint()] else [*before, fingerprint()]

    @property
    def config(self) -> dict[str, Any]:
        """The contents of ``config.json``.

        Raises:
            Refused: They are damaged.
        """
        config = self._read_json("config.json")
        missing = {"settings", "engine", "training"} - config.keys()
        if missing:
            raise Refused(f"{self.folder / 'config.json'} is damaged: it lacks {min(missing)}")
        return config

    @property
    def results(self) -> dict[str, Any] | None:
        """The contents of ``results.json``, or None while the run is not finished.

        Raises:
            Refused: They are damaged.
        """
        there = (self.folder / "results.json").is_file()
        return self._read_json("results.json") if there else None

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        try:
            contents = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise Refused(f"{path} is damaged: {error}") from error
        if not isinstance(contents, dict):
            raise Refused(f"{path} is damaged: it holds no object")
        return contents

    def check_resumable(self, experiment: Experiment, *, engine: str) -> None:
        """Refuses settings with which the run could not go on as it began.

        Raises:
            Refused: A setting differs that bears on the numbers, fewer rounds are asked for than
                there were, or the run's memories are kept by another kind of engine.
        """
        settings, now = self.config["settings"], experiment.identity()
        changed = sorted(key for key in now if now[key] != settings.get(key))
        if changed:
            details = "; ".join(f"{k} was {settings.get(k)!r}, not {now[k]!r}" for k in changed)
            raise Refused(f"{self.folder} cannot go on with other settings: {details}")
        done = max(self.checkpoints(), default=0)
        if done > experiment.num_rounds:
            raise Refused(
                f"num-rounds must be at least {done}, the rounds that {self.folder} has already, "
                f"got {experiment.num_rounds}"
            )
        before = self.config["engine"]
        if (before == "flower") != (engine == "flower"):
            how = "flwr run" if before == "flower" else "engram run"
            raise Refused(
                f"{self.folder} was run by `{how}`, which keeps its memories: resume it so"
            )

    @contextlib.contextmanager
    def hold(self, *, patience: float = 2.0) -> Iterator[None]:
        """Keeps other processes from running this run at the same time.

        Args:
            patience: Seconds to try; whoever only looks at ``held`` holds it for a moment.

        Raises:
            Refused: One does.
        """
        handle = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            end = time.monotonic() + patience
            while not _lock(handle):
                if time.monotonic() >= end:
                    raise Refused(f"{self.folder} is being run by another process at this moment")
                time.sleep(0.02)
            yield
        finally:
            os.close(handle)

    @property
    def held(self) -> bool:
        """Whether some process runs this run, and is alive."""
        try:
            with self.hold(patience=0.0):
                return False
        except Refused:
            return True

    # --- Metrics ---------------------------------------------------------------------------

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a round's metrics."""
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> list[Row]:
        """Returns the metrics of all rounds so far; a line that a crash cut off is left out."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        rows = []
        for line in lines:
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    def forget_after(self, server_round: int) -> None:
        """Drops the results, and the metrics of later rounds: a resumed run finds them anew."""
        (self.folder / "results.json").unlink(missing_ok=True)
        rows = [row for row in self.rows() if row["round"] <= server_round]
        self._write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes the results."""
        self._write("results.json", json.dumps(results, indent=2, allow_nan=False))

    # --- Checkpoints -----------------------------------------------------------------------

    def save_checkpoint(
        self, server_round: int, model: Params, state: Params, memories: Memories | None
    ) -> Checkpoint:
        """Replaces the checkpoint; a crash at any instant leaves the old one or the new one.

        Args:
            server_round: The round that it follows.
            model: The model after it.
            state: What the aggregate remembers.
            memories: The clients' memories, if they live in this process.
        """
        root = self.folder / "checkpoints"
        new, final = root / "new", root / f"round-{server_round}"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        checkpoint = Checkpoint(server_round, model, state, new)
        save_file(_contiguous(model), new / "model.safetensors")
        save_file(_contiguous(state), new / "state.safetensors")
        if memories is not None:
            memories.dump(checkpoint.memories)
        for path in new.iterdir():
            sync(path)
        new.rename(final)
        sync(root)
        for other, path in self.checkpoints().items():
            if other != server_round:
                shutil.rmtree(path)
        return checkpoint._replace(folder=final)

    def load_checkpoint(self) -> Checkpoint | None:
        """Returns the newest checkpoint, or None if there is none yet.

        Raises:
            Refused: It is damaged.
        """
        checkpoints = self.checkpoints()
        if not checkpoints:
            return None
        newest = max(checkpoints)
        folder = checkpoints[newest]
        try:
            model = load_file(folder / "model.safetensors")
            state = load_file(folder / "state.safetensors")
        except (OSError, SafetensorError) as error:
            raise Refused(f"{folder} is damaged: {error}") from error
        return Checkpoint(newest, model, state, folder)

    def checkpoints(self) -> dict[int, Path]:
        """Returns the checkpoints' folders, by their rounds."""
        folders = (self.folder / "checkpoints").glob("round-*")
        return {int(path.name.removeprefix("round-")): path for path in folders}

    def _write(self, name: str, text: str) -> None:
        replace_file(self.folder / name, text.encode())


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _contiguous(params: Params) -> Params:
    return {name: leaf.detach().cpu().contiguous() for name, leaf in params.items()}
