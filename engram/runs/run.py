"""A run's folder, read: its configuration, metrics, checkpoints and results.

``config.json`` (settings, engine, source), ``metrics.jsonl`` (one line a round), ``scores.jsonl``
(each client's, one line an evaluation), ``checkpoints/round-N/`` (the last two), ``results.json``
(once it is finished), ``exports.jsonl`` (one line an exported model). These have checksums. A run
on nodes also has ``progress.json`` (see ``engram.runs.progress``), and a private one
``clients-asked.txt`` (see ``engram.guards.accounting.accountant``).
"""

import contextlib
from collections.abc import Callable, Mapping
from logging import getLogger
from pathlib import Path
from typing import Any, Final, Self

from engram.data.file_models import of_kind, read_stored
from engram.data.readers.digests import read_rows
from engram.runs.checkpoints import Checkpoint, DamagedCheckpoint, Like, OtherModel, checkpoints_in
from engram.runs.folder_records import Config, ExportRow, MetricsRow, Progress, Results, ScoresRow
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import selected_by
from engram.settings.base import Method
from engram.settings.errors import Refused, brief, few_names, one_line
from engram.settings.experiment import FORMER, Experiment, without_former
from engram.settings.families import METHODS
from engram.settings.files import is_locked, open_file, read_json
from engram.wire.checksums import Journal, Row, checked

_log = getLogger("flwr.engram")

CONFIG, RESULTS, PROGRESS = "config.json", "results.json", "progress.json"
LOCK, WATCHED = "lock", "federation"
FORMAT: Final = 2  # of run folders; raised when columns or checkpoints change their meaning
_LONGEST: Final = 2**12  # bytes of the path of a federation's folder


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run."""
    return (folder / CONFIG).is_file()


class Run:
    """One run's folder, from which files are read again only once they have changed.

    Args:
        folder: The folder; see ``open``.
        picks: Whether the rounds that validation rows pick count; else the last one does.
    """

    def __init__(self, folder: Path, *, picks: bool = True) -> None:
        self.folder, self.picks = folder, picks
        self._metrics = Journal(folder / "metrics.jsonl", MetricsRow)
        self._scores = Journal(folder / "scores.jsonl", ScoresRow)
        self.exports = Journal(folder / "exports.jsonl", ExportRow)
        self._read: dict[str, tuple[tuple[int, ...], Any]] = {}

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Opens the folder of an existing run.

        Raises:
            Refused: If it is not the folder of a run, or is one of another version.
        """
        if not is_run(folder):
            for inside in sorted(folder.glob(f"*/{CONFIG}")):
                raise Refused(
                    f"{folder} is not the folder of a run, but of several, as of a comparison: "
                    f"name one of them, such as {inside.parent}"
                )
            raise Refused(f"{folder} is not the folder of a run: it has no config.json")
        if read_json(folder / CONFIG).get("format") != FORMAT:
            raise Refused(
                f"{folder} was written by another version of Engram, whose runs this one neither "
                "shows nor goes on with: run it again, or use that version"
            )
        return cls(folder)

    def _once(self, path: Path, read: Callable[[], Any]) -> Any:
        """Reads a file, but only once until it changes; returns its contents."""
        try:
            now = path.stat()
        except OSError:
            return read()
        stamp = now.st_ino, now.st_mtime_ns, now.st_size
        if path.name not in self._read or self._read[path.name][0] != stamp:
            self._read[path.name] = stamp, read()
        return self._read[path.name][1]

    @property
    def config(self) -> dict[str, Any]:
        """The contents of ``config.json``.

        Raises:
            Refused: If they are damaged, or of an unknown method.
        """
        found: dict[str, Any] = self._once(self.folder / CONFIG, self._config)
        return found

    def _config(self) -> dict[str, Any]:
        path = self.folder / CONFIG
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
    def settings(self) -> dict[str, Any]:
        """The run's settings by key."""
        found: dict[str, Any] = self.config["settings"]
        return found

    @property
    def method(self) -> type[Method]:
        """The settings of its method, which name its family."""
        return METHODS[self.settings["method"]]

    @property
    def trains_network(self) -> bool:
        """Whether it is a run of a method that trains networks."""
        return self.method.trains_network

    @property
    def on_nodes(self) -> bool:
        """Whether clients were on Flower's nodes, with rows and memories of their own."""
        return bool(self.config["engine"] == "flower")

    @property
    def clients(self) -> int:
        """Number of clients that have been in the run, as far as it has come."""
        return max(int(self.settings["num-clients"]), int(self.config.get("clients", 0)))

    @property
    def metrics(self) -> list[Metric]:
        """The metrics of the run, the main one first; their functions are not recorded."""
        return [Metric(name, _elsewhere, **known) for name, known in self.config["metrics"].items()]

    @property
    def other_rows(self) -> str:
        """Sentence that data have changed since the run read them; "" if not, as far as is known.

        Files that are gone, or that nodes alone have, are not known.
        """
        rows = read_rows(self.config.get("rows"))
        if rows is None or rows.now().digest == rows.digest:
            return ""
        names = few_names(rows.sources)
        return f"{names} has other rows now than those that {self.folder} has learned from"

    def check_rows(self) -> None:
        """Refuses to go on with other rows than those that the run has learned from."""
        if why := self.other_rows:
            raise Refused(
                f"{why}: put them back, or begin a new run, as with --from {self.folder} from its "
                "models"
            )

    def check_resumable(self, experiment: Experiment, *, engine: str) -> None:
        """Checks that the run can be resumed with these settings.

        Raises:
            Refused: If a setting that affects results or the data's rows differ, fewer rounds are
                asked for than are done, or the run's memories are kept by another kind of engine.
        """
        settings, now = without_former(self.settings), experiment.identity()
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
        if self.on_nodes != (engine == "flower"):
            how = "flwr run" if self.on_nodes else "engram run"
            raise Refused(
                f"{self.folder} was run by `{how}`, which keeps its memories: resume it by that"
            )

    @property
    def held(self) -> bool:
        """Whether a living process runs this run."""
        return is_locked(self.folder / LOCK)

    @property
    def state(self) -> str:
        """State of an unfinished run: ``running``, ``waiting`` to be resumed, or ``stopped``."""
        if self.held:
            return "running"
        return "waiting" if is_locked(self.folder / WATCHED) else "stopped"

    @property
    def federation(self) -> str:
        """The folder of the federation that it ran on last; "" if on none, or if unknown."""
        with contextlib.suppress(OSError), open_file(self.folder / WATCHED, links=False) as file:
            return one_line(file.read(_LONGEST).decode(errors="replace"), longest=_LONGEST)
        return ""

    @property
    def progress(self) -> Mapping[str, Any]:
        """The contents of ``progress.json``; empty where there are none, or damaged ones."""
        path = self.folder / PROGRESS
        with contextlib.suppress(Refused):
            return read_stored(path, Progress) if path.is_file() else {}
        return {}

    def rows(self) -> list[Row]:
        """Returns the metrics of all rounds so far; warns if there are checkpoints of later ones.

        Raises:
            Refused: If they cannot be read.
        """
        return list(self._once(self._metrics.path, self._rows))

    def _rows(self) -> list[Row]:
        newest = max(self.checkpoints(), default=0)  # first, since rows are written before them
        rows = self._metrics.rows()
        lost = newest - (rows[-1]["round"] if rows else 0)
        if lost > 0:
            _log.warning(
                "%s is damaged: it lacks the last %d of %d rounds; --resume repeats them if an "
                "earlier checkpoint is left",
                self._metrics.path,
                lost,
                newest,
            )
        return rows

    @property
    def done(self) -> int:
        """The last round that is recorded; 0 before the first."""
        return int(self.last_row.get("round", 0))

    @property
    def first_row(self) -> Row:
        """The metrics of the first round, which tell the clients' names and kind; maybe none."""
        return next(iter(self.rows()), {})

    @property
    def last_row(self) -> Row:
        """The metrics of the last round so far; maybe none."""
        return next(reversed(self.rows()), {})

    @property
    def is_evaluated(self) -> bool:
        """Whether a round has the main metric; of a method without one, none has."""
        return any(metric.name in row for metric in self.metrics[:1] for row in self.rows())

    def scores(self) -> list[Row]:
        """Returns the clients' scores of all evaluations so far, in columns.

        Raises:
            Refused: If they cannot be read.
        """
        return list(self._once(self._scores.path, self._scores.rows))

    def scores_of(self, client: int, column: str) -> list[tuple[int, float]]:
        """Returns a client's scores in a column of all evaluations that have one, with rounds."""
        found = []
        for row in self.scores():
            if client in row["ids"] and column in row:
                value = row[column][row["ids"].index(client)]
                found += [] if value is None else [(int(row["round"]), float(value))]
        return found

    @property
    def members(self) -> int:
        """Number of clients that were members in the last round; all, if they do not change."""
        return len(self.last_row.get("members", ())) or self.clients

    @property
    def names(self) -> dict[int, str]:
        """The names that clients had when the run began; those without a name are left out."""
        return {int(client): name for client, name in self.first_row.get("names", {}).items()}

    @property
    def results(self) -> dict[str, Any] | None:
        """The contents of ``results.json``, or None while the run is not finished.

        Raises:
            Refused: If they are damaged.
        """
        path = self.folder / RESULTS
        found: dict[str, Any] | None = self._once(path, self._results) if path.exists() else None
        return found

    def _results(self) -> dict[str, Any]:
        path = self.folder / RESULTS
        results = checked(read_json(path))
        if results is None:
            raise Refused(
                f"{path} is damaged: its checksum is missing or wrong; --resume makes it again"
            )
        last = of_kind(Results, results, path).last_client
        if last >= self.clients:
            raise Refused(f"{path} is damaged: client {last} is none of this run's")
        return results

    @property
    def finished(self) -> dict[str, Any]:
        """The results.

        Raises:
            Refused: If the run is not finished, or they are damaged.
        """
        if (found := self.results) is None:
            raise Refused(f"{self.folder} is not finished: resume it first")
        return found

    def picked(self, which: str = "") -> dict[str, Any] | None:
        """Returns the results at a model's best round, by its suffix.

        The global model has the best round of the models that serve clients. None if the run is not
        finished, has no validation rows, or its last round counts.
        """
        results = self.results if self.picks else None
        return results and results.get(selected_by(which), results.get(selected_by("")))

    def checkpoints(self) -> dict[int, Path]:
        """Returns the checkpoints' folders, by round in ascending order."""
        return checkpoints_in(self.folder / "checkpoints")

    def picked_folders(self) -> list[Path]:
        """Returns the folders of the checkpoints of picked rounds, named by key of the results."""
        return sorted((self.folder / "picked").glob("*"))

    def load_pick(self, key: str) -> Checkpoint:
        """Returns the checkpoint of the round that validation rows pick in the end.

        ``key`` is that of the results, such as ``selected``.

        Raises:
            Refused: The run is not finished, picks no round, or its checkpoint is damaged.
        """
        if key not in self.finished:
            raise Refused(f"{self.folder} picks no round: it has no validation rows")
        server_round = int(self.finished[key]["round"])
        folder = self.folder / "picked" / key / f"round-{server_round}"
        try:
            return self._load(server_round, folder)
        except DamagedCheckpoint as error:
            raise Refused(f"{folder} is damaged, or missing: {error}") from error

    def load_checkpoint(self, like: Like | None = None) -> Checkpoint | None:
        """Returns the newest intact checkpoint, or None if there is no checkpoint yet.

        ``like`` returns what has the names, shapes and types that its model and the aggregate's
        state must have.

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

    def _load(self, server_round: int, folder: Path, like: Like | None = None) -> Checkpoint:
        found = Checkpoint.read(folder, server_round, like)
        if server_round and not any(row["round"] == server_round for row in self.rows()):
            raise DamagedCheckpoint("metrics.jsonl lacks its round")
        return found


def took_part(row: Mapping[str, Any]) -> set[int]:
    """Returns the clients that a round's model has learned from."""
    return {*row.get("cohort", ())} - {*map(int, row.get("absent", ()))}


def _elsewhere(outputs: object, targets: object) -> float:
    raise NotImplementedError("a record does not hold a metric's function")
