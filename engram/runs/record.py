"""A run's folder: its configuration, metrics, checkpoints and results.

``config.json`` (settings, engine, source), ``metrics.jsonl`` (one line a round), ``scores.jsonl``
(each client's, one line an evaluation), ``checkpoints/round-N/`` (the last two), ``results.json``
(once it is finished), ``exports.jsonl`` (one line an exported model). These have checksums. A run
on nodes also has ``progress.json`` (see ``engram.runs.progress``), and a private one
``clients-asked.txt`` (see ``engram.guards.accounting.accountant``).
"""

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from logging import getLogger
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from engram.runs.checkpoints import (
    DamagedCheckpoint,
    OtherModel,
    checkpoints_in,
    drop_checkpoint,
    read_checkpoint,
    tensors_of,
    write_checkpoint,
)
from engram.runs.folder_records import ExportRow, MetricsRow, Results, ScoresRow
from engram.runs.run_folder import RunFolder
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import selected_by
from engram.settings.base import Method
from engram.settings.errors import Refused
from engram.settings.experiment import FORMER, Experiment, without_former
from engram.settings.families import METHODS
from engram.settings.network import NetworkMethod
from engram.wire.checksums import Journal, Row, summed

if TYPE_CHECKING:
    from engram.core.types import Params


_log = getLogger("flwr.engram")

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


class RunRecord(RunFolder):
    """One run's folder, with its rounds. Get one from ``create`` or ``open``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._metrics = Journal(folder / "metrics.jsonl", MetricsRow)
        self._scores = Journal(folder / "scores.jsonl", ScoresRow)
        self.append = self._metrics.append  # of a round's metrics
        self.exports = Journal(folder / "exports.jsonl", ExportRow)
        self._told = 0  # number of lost rounds that was warned of

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
        results, known = self._contents(path.name, Results, "--resume makes it again")
        if (last := known.last_client) >= self.clients:
            raise Refused(f"{path} is damaged: client {last} is none of this run's")
        return results

    @property
    def method(self) -> type[Method]:
        """The settings of its method, which name its family."""
        return METHODS[self.config["settings"]["method"]]

    @property
    def trains_network(self) -> bool:
        """Whether it is a run of a method that trains networks."""
        return issubclass(self.method, NetworkMethod)

    @property
    def is_evaluated(self) -> bool:
        """Whether a round has the main metric; of a method without one, none has."""
        return any(metric.name in row for metric in self.metrics[:1] for row in self.rows())

    def picked(self, which: str = "") -> dict[str, Any] | None:
        """Returns scores at a model's best round.

        The global model has the best round of the models that serve clients. None if the run is
        not finished, or has no validation rows.
        """
        results = self.results or {}
        return results.get(selected_by(which), results.get(selected_by("")))

    def check_resumable(self, experiment: Experiment, *, engine: str) -> None:
        """Checks that the run can be resumed with these settings.

        Raises:
            Refused: If a setting that affects results or the data's rows differ, fewer rounds are
                asked for than are done, or the run's memories are kept by another kind of engine.
        """
        settings, now = without_former(self.config["settings"]), experiment.identity()
        gone = settings.keys() & FORMER.keys()
        changed = sorted({key for key in now if now[key] != settings.get(key)} | gone)
        if changed:
            details = "; ".join(f"{k} was {settings.get(k)!r}, not {now.get(k)!r}" for k in changed)
            raise Refused(f"{self.folder} cannot go on with other settings: {details}")
        self.check_rows()
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

    def check_rows(self) -> None:
        """Refuses to go on with other rows than those that the run has learned from."""
        if why := self.other_rows:
            raise Refused(
                f"{why}: put them back, or begin a new run, as with --from {self.folder} from its "
                "models"
            )

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
    def members(self) -> int:
        """Number of clients that were members in the last round; all, if they do not change."""
        return len([*self.rows(), {}][-2:][0].get("members", ())) or self.clients

    @property
    def names(self) -> dict[int, str]:
        """The names that clients had when the run began; those without a name are left out."""
        first: Row = next(iter(self.rows()), {})
        return {int(client): name for client, name in first.get("names", {}).items()}

    def forget_after(self, server_round: int, damaged: Mapping[str, str] = _NONE) -> None:
        """Deletes the results, and metrics and checkpoints of later rounds, which are repeated.

        ``damaged`` is what is wrong with checkpoints, which is noted in the record.
        """
        vars(self).pop("durable", None)  # it is looked up again
        (self.folder / "results.json").unlink(missing_ok=True)
        if damaged:
            config = self.config
            noted = {"resumed-from": server_round, "checkpoints": dict(damaged)}
            self._write_config(config | {"damaged": [*config.get("damaged", []), noted]})
        for root in [self.folder / "checkpoints", *(self.folder / _PICKED).glob("*")]:
            for number, path in checkpoints_in(root).items():
                if number > server_round:
                    drop_checkpoint(path)
        for journal in (self._metrics, self._scores):
            if journal.path.exists():
                journal.replace(row for row in journal.rows() if row["round"] <= server_round)

    def forget_scores(
        self, server_round: int, unscored: Callable[[Row], Row] | None = None
    ) -> None:
        """Deletes each client's scores after a round.

        ``unscored`` returns its metrics without the evaluation, of which nothing stays then; None
        if they stay, since the evaluation is repeated.
        """
        if self._scores.path.exists():
            self._scores.replace(row for row in self.scores() if row["round"] != server_round)
        if unscored is None:
            return
        rows = self.rows()
        self._metrics.replace(
            unscored(row) if row["round"] == server_round else row for row in rows
        )
        for root in (self.folder / _PICKED).glob("*"):
            if picked := checkpoints_in(root).get(server_round):
                drop_checkpoint(picked)

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes the results, a key a line: those of many clients take no line for each number."""
        pairs = summed(results).items()
        lines = (f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in pairs)
        self._write("results.json", "{\n" + ",\n".join(lines) + "\n}")

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
        """Adds a checkpoint atomically, and keeps the last two; arguments are as in ``Checkpoint``.

        ``picked`` is what there was after rounds since the last checkpoint that validation rows
        pick, by key of the results. Of each key, the last two are kept, since a run may go on from
        the checkpoint before.
        """
        for key, pick in picked.items():
            write_checkpoint(self.folder / _PICKED / key, pick.server_round, _files(pick))
        kept = None if memories is None else memories.dump()
        checkpoint = Checkpoint(server_round, model, state, kept, clients)
        vars(self).pop("durable", None)  # it is looked up again
        write_checkpoint(self.folder / "checkpoints", server_round, _files(checkpoint))
        return checkpoint

    def load_pick(self, key: str) -> Checkpoint:
        """Returns the checkpoint of the round that validation rows pick in the end.

        ``key`` is that of the results, such as ``selected``.

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

        ``like`` returns what has the names, shapes and types that its model and the aggregate's
        state must have; None to take any.

        Raises:
            Refused: If all checkpoints are damaged, or of another model.
        """
        found, damaged, intact = self.checkpoints(), dict[str, str](), False
        for number in reversed(found):
            try:
                checkpoint = self._load(number, found[number], like)
            except DamagedCheckpoint as error:
                damaged[f"round-{number}"] = str(error)
                intact = intact or isinstance(error, OtherModel)
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
        if intact:
            raise Refused(
                f"{self.folder} was begun with another model than its settings and plug-ins make "
                f"now ({reasons}): resume it with the network that it was begun with, or begin a "
                "new run"
            )
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
        return checkpoints_in(self.folder / "checkpoints")

    @cached_property
    def durable(self) -> int:
        """The round of the oldest checkpoint, the earliest from which a run may be resumed."""
        return min(self.checkpoints(), default=0)


def _files(checkpoint: Checkpoint) -> "dict[str, bytes | Params]":
    found: dict[str, bytes | Params] = {_MODEL: checkpoint.model, _STATE: checkpoint.state}
    if checkpoint.clients is not None:
        found[_CLIENTS] = str(checkpoint.clients).encode()
    return found if checkpoint.memories is None else found | {_MEMORIES: checkpoint.memories}


def _elsewhere(outputs: object, targets: object) -> float:
    raise NotImplementedError("a record does not hold a metric's function")
