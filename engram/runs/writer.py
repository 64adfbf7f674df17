"""Writes a run's folder: settings, rounds, checkpoints and results; and holds its lock."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import version
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from engram.data.readers.digests import Rows, read_rows
from engram.runs.checkpoints import (
    Checkpoint,
    Written,
    checkpoints_in,
    drop_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from engram.runs.run import CONFIG, FORMAT, LOCK, RESULTS, WATCHED, Run
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.settings.files import NEW, locked, refusing, replace_file
from engram.settings.fingerprint import fingerprint
from engram.settings.plugins import plugins
from engram.wire.checksums import Journal, Row, summed

if TYPE_CHECKING:
    from engram.core.types import Params

_log = getLogger("flwr.engram")

_PATIENCE: Final = 2.0  # s; whoever reads ``held`` locks the run for a moment, too


class Taken(Refused):
    """A folder in which another process runs this run, or has begun it."""


class Memories(Protocol):
    """Clients' memories that live in the coordinator's process, and so in its checkpoints."""

    def dump(self) -> bytes:
        """Serializes them."""

    def restore(self, data: bytes) -> None:
        """Replaces them by those that ``dump`` serialized."""


class RunWriter(Run):
    """One run's folder, to be written. Get one from ``create`` or ``open``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.append = self._metrics.append  # of a round's metrics

    @classmethod
    def create(
        cls,
        folder: Path,
        experiment: Experiment,
        *,
        engine: str,
        training: str,
        rows: Rows | None = None,
    ) -> Self:
        """Starts a new run's folder; ``training`` is the name that clients keep memories under.

        For the other arguments see ``write_config``.

        Raises:
            Refused: If the folder is not empty, or cannot be made; or another process begins a run
                in it.
        """
        record = cls(folder)
        with refusing(f"{folder} cannot be made"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            record._refuse_used()  # before a lock is left in a folder that is none of ours
            with record.hold():
                record._refuse_used()
                record.write_config(experiment, engine=engine, training=training, rows=rows)
        return record

    def _refuse_used(self) -> None:
        """Refuses a folder that holds more than a killed process may leave."""
        if any(p.name != LOCK and not p.name.startswith(NEW) for p in self.folder.iterdir()):
            kind = Taken if (self.folder / CONFIG).is_file() else Refused
            raise kind(f"{self.folder} is not empty: name another folder, or resume the run in it")

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Locks the run, so that no other process runs it at the same time.

        Raises:
            Taken: If another process runs it.
        """
        end = time.monotonic() + _PATIENCE
        with contextlib.ExitStack() as stack:
            while True:
                with contextlib.suppress(BlockingIOError):
                    stack.enter_context(locked(self.folder / LOCK))
                    break
                if time.monotonic() >= end:
                    raise Taken(f"{self.folder} is being run by another process at this moment")
                time.sleep(0.02)
            yield

    @contextlib.contextmanager
    def watch(self, server: Path) -> Iterator[None]:
        """Marks the run as waiting to be resumed on the federation of the folder ``server``.

        Raises:
            BlockingIOError: If another process watches it.
        """
        with locked(self.folder / WATCHED):
            (self.folder / WATCHED).write_text(str(server), encoding="utf-8")
            yield

    def write_config(
        self, experiment: Experiment, *, engine: str, training: str, rows: Rows | None = None
    ) -> None:
        """Writes ``config.json``: the present settings, and the engine and source that run them.

        ``rows`` are the data sets as they are now, where this machine reads them; None for those
        that are written already.
        """
        before = self.config if (self.folder / CONFIG).is_file() else {}
        config = {
            "format": FORMAT,
            "settings": experiment.to_config() | {"resume": ""},
            "engine": engine,
            "training": training,
            "sources": self._sources(before.get("sources", [])),
            "plug-ins": [plugin.rpartition("/")[2] for plugin in plugins()],
            "versions": {name: version(name) for name in ("flwr", "torch", "numpy")},
            "metrics": {m.name: m.to_config() for m in experiment.own.metrics(experiment)},
            "damaged": before.get("damaged", []),
        }
        if known := rows or read_rows(before.get("rows", [])):
            config["rows"] = known._asdict()
        clients = self.clients if before else 0
        if clients > experiment.num_clients:
            config["clients"] = clients
        self._write_config(config)

    def _sources(self, before: list[str]) -> list[str]:
        """Returns the fingerprints of all sources that have executed the run, the present last."""
        if before and before[-1] != fingerprint():
            _log.warning(
                "%s was begun by source %s and goes on with %s, whose numbers may differ",
                self.folder,
                before[-1],
                fingerprint(),
            )
        return before if before[-1:] == [fingerprint()] else [*before, fingerprint()]

    def _write_config(self, config: Row) -> None:
        replace_file(self.folder / CONFIG, json.dumps(summed(config), indent=2).encode())

    def admit(self, clients: int) -> None:
        """Notes that the run has so many clients from now on; never fewer than before."""
        if clients > self.clients:
            self._write_config(self.config | {"clients": clients})

    def append_scores(self, server_round: int, scores: Mapping[str, Any]) -> None:
        """Adds the clients' scores after a round, in columns."""
        self._scores.append({"round": server_round, **scores})

    def append_export(self, server_round: int, folder: Path, what: str) -> None:
        """Notes a model of a round that is exported into a folder."""
        with refusing(f"{self.exports.path}, which names exports, cannot be written"):
            row = {"round": server_round, "folder": str(folder.absolute()), "what": what}
            self.exports.append(row)
            self.exports.sync()

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes the results, a key a line: those of many clients take no line for each number."""
        self._sync()
        pairs = summed(results).items()
        lines = (f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in pairs)
        replace_file(self.folder / RESULTS, ("{\n" + ",\n".join(lines) + "\n}").encode())

    def forget_after(self, server_round: int, damaged: Mapping[str, str] | None = None) -> None:
        """Deletes the results, and metrics and checkpoints of later rounds, which are repeated.

        ``damaged`` is what is wrong with checkpoints, which is noted in the record.
        """
        vars(self).pop("durable", None)  # it is looked up again
        self._read.clear()  # scores of many clients take room
        (self.folder / RESULTS).unlink(missing_ok=True)
        if damaged:
            config = self.config
            noted = {"resumed-from": server_round, "checkpoints": dict(damaged)}
            self._write_config(config | {"damaged": [*config.get("damaged", []), noted]})
        for root in [self.folder / "checkpoints", *self.picked_folders()]:
            for number, path in checkpoints_in(root).items():
                if number > server_round:
                    drop_checkpoint(path)
        for journal in (self._metrics, self._scores):
            _keep(journal, lambda row: row["round"] <= server_round)

    def forget_scores(
        self, server_round: int, unscored: Callable[[Row], Row] | None = None
    ) -> None:
        """Deletes each client's scores after a round.

        ``unscored`` returns its metrics without the evaluation, of which nothing stays then; None
        if they stay, since the evaluation is repeated.
        """
        _keep(self._scores, lambda row: row["round"] != server_round)
        if unscored is None:
            return
        rows = self.rows()
        self._metrics.replace(
            unscored(row) if row["round"] == server_round else row for row in rows
        )
        for root in self.picked_folders():
            if picked := checkpoints_in(root).get(server_round):
                drop_checkpoint(picked)

    @cached_property
    def durable(self) -> int:
        """The round of the oldest checkpoint, the earliest from which a run may be resumed."""
        return min(self.checkpoints(), default=0)

    def save_checkpoint(
        self,
        server_round: int,
        model: "Params",
        state: "Params",
        memories: Memories | None,
        picked: Mapping[str, Checkpoint] | None = None,
        *,
        clients: int | None = None,
    ) -> Checkpoint:
        """Adds a checkpoint atomically, and keeps the last two; arguments are as in ``Checkpoint``.

        ``picked`` is what there was after rounds since the last checkpoint that validation rows
        pick, by key of the results. Of each key, the last two are kept, since a run may go on from
        the checkpoint before.
        """
        self._sync()  # those after a checkpoint are written anew
        written, picked = Written(), picked or {}
        for key, pick in picked.items():
            pick.write(self.folder / "picked" / key, written)
        kept = [pick.memories for pick in picked.values() if pick.server_round == server_round]
        if not kept:
            kept = [None if memories is None else memories.dump()]
        checkpoint = Checkpoint(server_round, model, state, kept[0], clients)
        vars(self).pop("durable", None)  # it is looked up again
        checkpoint.write(self.folder / "checkpoints", written)
        return checkpoint

    def _sync(self) -> None:
        self._metrics.sync()
        self._scores.sync()

    def begin_as(self, other: Run, server_round: int) -> None:
        """Takes over the rounds of another run up to one that has a checkpoint."""
        for row in other.rows():
            if row["round"] <= server_round:
                self.append(row)
        for scores in other.scores():
            if scores["round"] <= server_round:
                self.append_scores(scores["round"], scores)
        self._sync()
        for root in [other.folder / "checkpoints", *other.picked_folders()]:
            for number, path in checkpoints_in(root).items():
                if number <= server_round:
                    place = self.folder / root.relative_to(other.folder)
                    write_checkpoint(place, number, read_checkpoint(path, number))


def _keep(journal: Journal, wanted: Callable[[Row], bool]) -> None:
    if journal.path.exists():
        journal.replace(filter(wanted, journal.rows()))
