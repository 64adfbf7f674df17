"""A run's folder: its configuration, metrics, checkpoints and results.

``config.json`` (settings, engine, source), ``metrics.jsonl`` (one line a round), ``scores.jsonl``
(each client's, one line an evaluation), ``checkpoints/round-N/`` (the last two), ``results.json``
(once it is finished). These have checksums. A run on nodes also has ``progress.json`` (see
``server.progress``), and a private one ``clients-asked.txt`` (see ``server.accountant``).
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import version
from logging import getLogger
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from engram.metrics import Metric
from federation.checksums import Journal, Row, checked, summed
from federation.errors import Refused, brief
from federation.experiment import Experiment
from federation.files import NEW, is_locked, locked, read_json, replace_file
from federation.fingerprint import fingerprint
from federation.methods import METHODS
from federation.plugins import plugins
from federation.stored import of_kind
from server.checkpoints import (
    DamagedCheckpoint,
    drop_checkpoint,
    read_checkpoint,
    tensors_of,
    there,
    write_checkpoint,
)
from server.contents import Config, MetricsRow, Results, ScoresRow

if TYPE_CHECKING:
    from engram.types import Params


_log = getLogger("flwr.engram")

_FORMAT = 2  # of run folders; raised when columns or checkpoints change their meaning
_CONFIG, _LOCK = "config.json", "lock"
_NONE: Mapping[str, str] = MappingProxyType({})
_PICKED = "picked"  # folder of the checkpoints of picked rounds, in a folder for each key
_MODEL, _STATE, _MEMORIES = (f"{part}.safetensors" for part in ("model", "state", "memory"))
_CLIENTS = "clients"  # a checkpoint's file of their number

Like = Callable[[int | None], tuple["Params | None", "Params | None"]]
"""Model and state of a run, by its number of clients, whose names, shapes and types are wanted."""


class Memories(Protocol):
    """Clients' memories that live in the coordinator's process, and so in its checkpoints."""

    def dump(self) -> bytes:
        """Serializes them."""

    def restore(self, data: bytes) -> None:
        """Replaces them by those that ``dump`` serialized."""


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


_NOTHING: Mapping[str, Checkpoint] = MappingProxyType({})


class RunRecord:
    """One run's folder. Get one from ``create`` or ``open``.

    Attributes:
        folder: The folder.
        append: Adds a round's metrics.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._metrics = Journal(folder / "metrics.jsonl", MetricsRow)
        self._scores = Journal(folder / "scores.jsonl", ScoresRow)
        self.append = self._metrics.append
        self._told = 0  # number of lost rounds that was warned of

    @classmethod
    def create(
        cls, folder: Path, experiment: Experiment, *, engine: str, training: str
    ) -> "RunRecord":
        """Starts a new run's folder; ``training`` is the name that clients keep memories under.

        Raises:
            Refused: If the folder is not empty, or cannot be made; or another process begins a run
                in it.
        """
        record = cls(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            record._refuse_used()  # before a lock is left in a folder that is none of ours
            with record.hold():
                record._refuse_used()
                record.write_config(experiment, engine=engine, training=training)
        except OSError as error:
            raise Refused(f"{folder} cannot be made: {error.strerror}") from error
        return record

    def _refuse_used(self) -> None:
        """Refuses a folder in which there is anything but what a killed process may leave."""
        if any(p.name != _LOCK and not p.name.startswith(NEW) for p in self.folder.iterdir()):
            raise Refused(
                f"{self.folder} is not empty: name another folder, or resume the run in it"
            )

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Opens the folder of an existing run.

        Raises:
            Refused: If it is not the folder of a run, or is one of another version.
        """
        if not (folder / _CONFIG).is_file():
            for inside in sorted(folder.glob(f"*/{_CONFIG}")):
                raise Refused(
                    f"{folder} is not the folder of a run, but of several, as of a comparison: "
                    f"name one of them, such as {inside.parent}"
                )
            raise Refused(f"{folder} is not the folder of a run: it has no config.json")
        if read_json(folder / _CONFIG).get("format") != _FORMAT:
            raise Refused(
                f"{folder} was written by another version of Engram, whose runs this one neither "
                "shows nor goes on with: run it again, or use that version"
            )
        return cls(folder)

    def write_config(self, experiment: Experiment, *, engine: str, training: str) -> None:
        """Writes ``config.json``: the present settings, and the engine and source that run them."""
        config = {
            "format": _FORMAT,
            "settings": experiment.to_config() | {"resume": ""},
            "engine": engine,
            "training": training,
            "sources": self._sources(),
            "plug-ins": [plugin.rpartition("/")[2] for plugin in plugins()],
            "versions": {name: version(name) for name in ("flwr", "torch", "numpy")},
            "metrics": {m.name: m.to_config() for m in experiment.own.metrics(experiment)},
            "damaged": self._before("damaged"),
        }
        clients = self.clients if (self.folder / _CONFIG).is_file() else 0
        if clients > experiment.num_clients:
            config["clients"] = clients
        self._write_config(config)

    def admit(self, clients: int) -> None:
        """Notes that the run has so many clients from now on; never fewer than before."""
        if clients > self.clients:
            self._write_config(self.config | {"clients": clients})

    @property
    def clients(self) -> int:
        """Number of clients that have been in the run, as far as it has come."""
        config = self.config
        return max(int(config["settings"]["num-clients"]), int(config.get("clients", 0)))

    def _sources(self) -> list[str]:
        """Returns the fingerprints of all sources that have executed the run, the present last."""
        before = self._before("sources")
        if before and before[-1] != fingerprint():
            _log.warning(
                "%s was begun by source %s and goes on with %s, whose numbers may differ",
                self.folder,
                before[-1],
                fingerprint(),
            )
        return before if before[-1:] == [fingerprint()] else [*before, fingerprint()]

    def _before(self, key: str) -> list[Any]:
        """Returns a list in ``config.json``; empty if there is no such file yet."""
        there = (self.folder / _CONFIG).is_file()
        return list(self.config.get(key, [])) if there else []

    def _write_config(self, config: Row) -> None:
        self._write(_CONFIG, json.dumps(summed(config), indent=2))

    @property
    def config(self) -> dict[str, Any]:
        """The contents of ``config.json``.

        Raises:
            Refused: If they are damaged, or of an unknown method.
        """
        path = self.folder / _CONFIG
        config = checked(read_json(path))
        if config is None:
            raise Refused(
                f"{path} is damaged: its checksum is missing or wrong; settings are changed by "
                "--set, not here"
            )
        of_kind(Config, config, path)
        method = config["settings"]["method"]
        if method not in METHODS:
            raise Refused(
                f"{self.folder} is a run of {brief(method)}, which is no method known here: name "
                "the plug-in that has it, engram --plugin NAME"
            )
        return config

    @property
    def metrics(self) -> list[Metric]:
        """The metrics of the run, the main one first; their functions are not recorded."""
        return [Metric(name, _elsewhere, **known) for name, known in self.config["metrics"].items()]

    @property
    def results(self) -> dict[str, Any] | None:
        """The contents of ``results.json``, or None while the run is not finished.

        Raises:
            Refused: If they are damaged.
        """
        path = self.folder / "results.json"
        if not path.exists():
            return None
        results = checked(read_json(path))
        if results is None:
            raise Refused(
                f"{path} is damaged: its checksum is missing or wrong; --resume makes it again"
            )
        last = of_kind(Results, results, path).last_client
        if last >= self.clients:
            raise Refused(f"{path} is damaged: client {last} is none of this run's")
        return results

    def check_resumable(self, experiment: Experiment, *, engine: str) -> None:
        """Checks that the run can be resumed with these settings.

        Raises:
            Refused: If a setting that affects results differs, fewer rounds are asked for than
                are done, or the run's memories are kept by another kind of engine.
        """
        settings, now = self.config["settings"], experiment.identity()
        changed = sorted(key for key in now if now[key] != settings.get(key))
        if changed:
            details = "; ".join(f"{k} was {settings.get(k)!r}, not {now[k]!r}" for k in changed)
            raise Refused(f"{self.folder} cannot go on with other settings: {details}")
        done = max(self.checkpoints(), default=0)
        if done > experiment.num_rounds:
            raise Refused(
                f"num-rounds must be at least {done}, the rounds that {self.folder} already has, "
                f"got {experiment.num_rounds}"
            )
        before = self.config["engine"]
        if (before == "flower") != (engine == "flower"):
            how = "flwr run" if before == "flower" else "engram run"
            raise Refused(
                f"{self.folder} was run by `{how}`, which keeps its memories: resume it by that"
            )

    @contextlib.contextmanager
    def hold(self, *, patience: float = 2.0) -> Iterator[None]:
        """Locks the run, so that no other process runs it at the same time.

        Args:
            patience: Seconds to try: whoever reads ``held`` locks the run for a moment, too.

        Raises:
            Refused: If another process runs it.
        """
        end = time.monotonic() + patience
        with contextlib.ExitStack() as stack:
            while True:
                with contextlib.suppress(BlockingIOError):
                    stack.enter_context(locked(self.folder / _LOCK))
                    break
                if time.monotonic() >= end:
                    raise Refused(f"{self.folder} is being run by another process at this moment")
                time.sleep(0.02)
            yield

    @property
    def held(self) -> bool:
        """Whether a living process runs this run."""
        return is_locked(self.folder / _LOCK)

    # --- Metrics ---------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """Returns the metrics of all rounds so far; warns if there are checkpoints of later ones.

        Raises:
            Refused: If they cannot be read.
        """
        newest = max(self.checkpoints(), default=0)  # first, since rows are written before them
        rows = self._metrics.rows()
        lost = newest - (rows[-1]["round"] if rows else 0)
        if lost > 0 and lost != self._told:
            _log.warning(
                "%s is damaged: it lacks the last %d of %d rounds; --resume repeats them if an "
                "earlier checkpoint is left",
                self._metrics.path,
                lost,
                newest,
            )
        self._told = lost
        return rows

    def append_scores(self, server_round: int, scores: Mapping[str, Any]) -> None:
        """Adds the clients' scores after a round, in columns."""
        self._scores.append({"round": server_round, **scores})

    def scores(self) -> list[Row]:
        """Returns the clients' scores of all evaluations so far, in columns.

        Raises:
            Refused: If they cannot be read.
        """
        return self._scores.rows()

    @property
    def names(self) -> dict[int, str]:
        """The names that clients had when the run began; those without a name are left out."""
        first: Row = next(iter(self.rows()), {})
        return {int(client): name for client, name in first.get("names", {}).items()}

    def forget_after(self, server_round: int, damaged: Mapping[str, str] = _NONE) -> None:
        """Deletes the results, and metrics and checkpoints of later rounds, which are repeated.

        Args:
            server_round: The last round that stays.
            damaged: What is wrong with damaged checkpoints, which is noted in the record.
        """
        vars(self).pop("durable", None)  # it is looked up again
        (self.folder / "results.json").unlink(missing_ok=True)
        if damaged:
            config = self.config
            noted = {"resumed-from": server_round, "checkpoints": dict(damaged)}
            self._write_config(config | {"damaged": [*config.get("damaged", []), noted]})
        for root in [self.folder / "checkpoints", *(self.folder / _PICKED).glob("*")]:
            for number, path in there(root).items():
                if number > server_round:
                    drop_checkpoint(path)
        for journal in (self._metrics, self._scores):
            if journal.path.exists():
                journal.replace(row for row in journal.rows() if row["round"] <= server_round)

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes the results."""
        self._write("results.json", json.dumps(summed(results), indent=2, allow_nan=False))

    # --- Checkpoints -----------------------------------------------------------------------

    def save_checkpoint(
        self,
        server_round: int,
        model: "Params",
        state: "Params",
        memories: Memories | None,
        picked: Mapping[str, Checkpoint] = _NOTHING,
        *,
        clients: int | None = None,
    ) -> Checkpoint:
        """Adds a checkpoint atomically, and keeps the last two.

        Args:
            server_round: The round that it follows.
            model: The model after it.
            state: The aggregate's state.
            memories: The clients' memories, if they live in this process.
            picked: What there was after rounds since the last checkpoint that validation rows pick,
                by key of the results. Of each key, the last two are kept, since a run may go on
                from the checkpoint before.
            clients: As in ``Checkpoint``.
        """
        for key, pick in picked.items():
            write_checkpoint(self.folder / _PICKED / key, pick.server_round, _files(pick))
        kept = None if memories is None else memories.dump()
        checkpoint = Checkpoint(server_round, model, state, kept, clients)
        vars(self).pop("durable", None)  # it is looked up again
        write_checkpoint(self.folder / "checkpoints", server_round, _files(checkpoint))
        return checkpoint

    def load_pick(self, key: str) -> Checkpoint:
        """Returns what there was after the round that validation rows pick in the end.

        Args:
            key: The key of the results that says which, such as ``selected``.

        Raises:
            Refused: The run is not finished, picks no round, or its checkpoint is damaged.
        """
        if (results := self.results) is None:
            raise Refused(f"{self.folder} is not finished: resume it first")
        if key not in results:
            raise Refused(f"{self.folder} picks no round: it has no validation rows")
        server_round = int(results[key]["round"])
        folder = self.folder / _PICKED / key / f"round-{server_round}"
        try:
            return self._load(server_round, folder, lambda clients: (None, None))
        except DamagedCheckpoint as error:
            raise Refused(f"{folder} is damaged, or missing: {error}") from error

    def load_checkpoint(self, like: "Like" = lambda clients: (None, None)) -> Checkpoint | None:
        """Returns the newest intact checkpoint, or None if there is no checkpoint yet.

        Args:
            like: Returns what has the names, shapes and types that its model and the aggregate's
                state must have; None to take any.

        Raises:
            Refused: If all checkpoints are damaged.
        """
        found, damaged = self.checkpoints(), {}
        for number in reversed(found):
            try:
                checkpoint = self._load(number, found[number], like)
            except DamagedCheckpoint as error:
                damaged[f"round-{number}"] = str(error)
                continue
            for name, reason in damaged.items():
                _log.warning("%s: checkpoint %s is damaged: %s", self.folder, name, reason)
            if damaged:
                _log.warning("%s: that of round %d is used instead", self.folder, number)
            return checkpoint._replace(damaged=damaged)
        if not damaged:
            return None
        reasons = "; ".join(f"{name}: {reason}" for name, reason in damaged.items())
        root = self.folder / "checkpoints"
        raise Refused(
            f"each checkpoint in {root} is damaged ({reasons}): restore one from a backup, or "
            f"remove {root}, and the run begins anew when it is resumed"
        )

    def _load(self, server_round: int, folder: Path, like: Like) -> Checkpoint:
        files = read_checkpoint(folder, server_round)
        clients = int(files[_CLIENTS]) if _CLIENTS in files else None
        model, state = like(clients)
        found = tensors_of(files, _MODEL, model), tensors_of(files, _STATE, state)
        if server_round and not any(row["round"] == server_round for row in self._metrics.rows()):
            raise DamagedCheckpoint("metrics.jsonl lacks its round")
        return Checkpoint(server_round, *found, files.get(_MEMORIES), clients)

    def checkpoints(self) -> dict[int, Path]:
        """Returns the checkpoints' folders, by round in ascending order."""
        return there(self.folder / "checkpoints")

    @cached_property
    def durable(self) -> int:
        """The round of the oldest checkpoint, the earliest from which a run may be resumed."""
        return min(self.checkpoints(), default=0)

    def _write(self, name: str, text: str) -> None:
        replace_file(self.folder / name, text.encode())


def _files(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Returns the contents of a checkpoint's files, by name."""
    from federation.tensors import tensors_to_bytes  # noqa: PLC0415 - loads torch

    files = {_MODEL: checkpoint.model, _STATE: checkpoint.state}
    found = {name: tensors_to_bytes(params) for name, params in files.items()}
    if checkpoint.clients is not None:
        found[_CLIENTS] = str(checkpoint.clients).encode()
    return found if checkpoint.memories is None else found | {_MEMORIES: checkpoint.memories}


def _elsewhere(outputs: object, targets: object) -> float:
    raise NotImplementedError("a record does not hold a metric's function")
