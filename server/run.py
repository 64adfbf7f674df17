"""Runs an experiment on any grid: in one process, on Ray, or over a network."""

import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import Any, Final

import numpy as np

from engram.core.checks import must
from engram.core.types import Params
from engram.data.readers.digests import rows_of
from engram.data.schema.columns import Kind
from engram.guards.accounting.accountant import PrivacyAccountant
from engram.guards.accounting.client_epsilon import ASKED
from engram.guards.accounting.guarantee import guarantee, is_weak
from engram.guards.noise import Noise, secret_noise
from engram.networks.registry import differs_by_client
from engram.runs.checkpoints import Checkpoint
from engram.runs.run import Run
from engram.runs.writer import Memories, RunWriter
from engram.server.engine import Engine
from engram.server.roster import Attendance, Waiting, attendance_of
from engram.server.run_start import first_arrays, former_run, strategy_of
from engram.settings.errors import Refused, RunStopped
from engram.settings.experiment import Experiment
from engram.strategies.running.base import Row, RunStrategy
from engram.strategies.running.reply_border import noised_by
from engram.strategies.running.rounds import Step, rounds
from engram.wire.messages import Reply
from engram.wire.roster import Roster
from engram.wire.wire import RELEASE, TRAINING

_log = getLogger("flwr.engram")

_ASKED: Final = "ended {}, as `engram stop` asked for; to go on, start the run in {} again"


def run(
    grid: Engine,
    experiment: Experiment,
    folder: Path,
    *,
    engine: str,
    memories: Memories | None = None,
    noise: Noise = secret_noise,
    on_round: Callable[[Row], None] | None = None,
) -> Row:
    """Runs the experiment, or its remaining rounds, and records it.

    Each round is trained, merged, evaluated if due, recorded, and checkpointed if due. Since
    randomness depends on the seed, the round and the client alone, a run that is killed and resumed
    repeats the rounds after its last checkpoint, and gives the same numbers as one that is not.

    Args:
        grid: The nodes.
        experiment: The experiment. If it has ``resume``, ``folder`` holds the run to resume.
        folder: Where the run is recorded.
        engine: Its name, for the record.
        memories: The clients' memories, if they live in this process.
        noise: Source of the noise of central privacy. With secret noise, a private run that is
            resumed does not repeat its numbers.
        on_round: Called with each round's metrics.

    Returns:
        The contents of ``results.json``: ``method``, ``rounds``, ``ms-per-round`` (the median),
        the strategy's results, and the privacy spent.

    Raises:
        Refused: The folder is not empty, or its run cannot be resumed with these settings.
        RunStopped: Too few clients can take part, the run diverged, or a round had too few usable
            replies.
    """
    if experiment.participation and not grid.replays:
        raise Refused(must("participation", experiment.participation, "empty on nodes"))
    e, kind, training, way, open_ = experiment, grid.kind, secrets.token_hex(8), "", None
    if e.clock and grid.joins:
        raise Refused(must("clock", e.clock, "empty on nodes, whose time passes by itself"))
    if e.elsewhere and engine == "flower":
        raise Refused(must("elsewhere", e.elsewhere, "0 on nodes, whose rows stay where they are"))
    if differs_by_client(e.model) and engine == "flower":
        raise Refused(must("model", e.model, "the same for all clients on nodes"))
    if e.buffer_size and not e.clock and not grid.joins:
        expected = "drawn, or a CSV file, for buffered rounds of a simulation"
        raise Refused(must("clock", e.clock, expected))
    if e.buffer_size and grid.joins and e.resume:
        _log.info("what clients were at work on is dropped: they are asked anew")
    with ExitStack() as stack:
        if e.resume:
            record = RunWriter.open(folder)
            stack.enter_context(record.hold())
            record.check_resumable(e, engine=engine)
            training, rows = record.config["training"], record.rows()
            kind, way = Kind.from_row(record.first_row), _way_of(rows)
            open_ = "members" in rows[0] if rows else None
        if e.is_private:
            _log.log(WARNING if is_weak(e) else INFO, "%s", guarantee(e))
        begun = e.resume and record.checkpoints()
        former = former_run(e) if e.start_from and not begun else None
        if former is not None and kind is None:  # whose units its models are in
            kind = Kind.from_row(former.first_row)
        attendance = attendance_of(grid, e, training=training, kind=kind, open_=open_)
        everyone = grid.joins and not e.min_clients and not e.resume
        attendance.wait(e.least_clients, everyone=everyone)
        strategy = strategy_of(e, attendance.roster(), noise)
        first_arrays(strategy, former)  # refused before anything is written
        if not e.resume:
            read = None if grid.joins else rows_of(e.own.sources(e))
            record = RunWriter.create(folder, e, engine=engine, training=training, rows=read)
            stack.enter_context(record.hold())
        grid.begin(e, folder)
        what = grid, strategy, e, record, training, way, memories
        found = _Run(*what, on_round, attendance, noise, former).whole(engine)
        if why := record.other_rows:
            _log.warning("%s", why)
        return found


@dataclass
class _Run:
    grid: Engine
    strategy: RunStrategy
    experiment: Experiment
    record: RunWriter
    training: str
    way: str
    memories: Memories | None
    on_round: Callable[[Row], None] | None
    attendance: Attendance
    noise: Noise
    former: Run | None

    def __post_init__(self) -> None:
        self.clients = self.attendance.clients
        self.members = self.attendance.members
        self.releasing = self.attendance.releasing
        self.accountant: PrivacyAccountant | None = None
        self.unpaid: list[list[int]] = []  # clients with noise on scores, before there is one
        self.scores = self.strategy.scored_from is not None  # whether rounds are scored
        self.config: dict[str, Any] = {TRAINING: self.training, "way": self.way}
        self.model: Params = {}  # from which the next round starts
        self.saved = 0  # the round of the last checkpoint
        self.picked: dict[str, Checkpoint] = {}  # the best since then, by model

    def whole(self, engine: str) -> Row:
        """Runs the remaining rounds, and records and returns the results.

        There is a last evaluation unless the last round had one.
        """
        self.begin(engine)
        last, rows = self.saved, self.record.rows()
        self._account(last, rows)
        if self.grid.still:
            self._await_clients(last + 1)
        e, over = self.experiment, lambda: self.strategy.over
        for step, metrics in rounds(e, self._train, done=last, over=over):
            last, strategy = step.number, self.strategy
            # A run that goes on from its last round has not been scored there.
            state = strategy.state if step.final and not step.usual else None
            due = self.scores and (step.due or strategy.over)  # and clients learn from it
            rows.append(self._report(last, metrics, scored=due))
            if ways := rows[-1].get("ways"):  # as in a resumed run, whose questions are the same
                self.config["way"] = "" if len(ways) > 1 else next(iter(ways))
            ends = step.final or strategy.over
            stopping = not (ends or self.grid.still) and self.grid.stopping
            # Sites take part in a secure round once: a resumed run goes on after the last one.
            if ends or stopping or last % e.checkpoint_every == 0 or strategy.masks:
                self._save(last, strategy.state if state is None else state)
            if stopping:
                raise RunStopped(_ASKED.format(f"after round {last}", self.record.folder))
        if not self.strategy.evaluated:
            self._evaluate(last)
        times = [row["ms"] for row in rows if "ms" in row]
        found = {
            "method": e.method,
            "rounds": rows[-1]["round"],
            **({"over": True} if self.strategy.over else {}),
            "ms-per-round": float(np.median(times)),
            **_named(self.strategy.results(self.model, rows[-1]), self._roster()),
            **(self.accountant.claim if self.accountant else {}),
            **self.attendance.notes(),
        }
        self.record.finish(found)
        return found

    def begin(self, engine: str) -> None:
        """Starts from the last checkpoint, or makes one of round 0."""
        record = self.record
        checkpoint = record.load_checkpoint(self._like)
        strategy = self.strategy
        if self.experiment.resume:  # num-rounds may be larger than before
            record.scores()  # refused, where they cannot be read, before anything changes
            record.write_config(self.experiment, engine=engine, training=self.training)
        if checkpoint is None:
            self._begin_anew()
            return
        strategy.state = checkpoint.state
        if self.members is not None:  # those of its round may have left since
            told = (row for row in record.rows() if row["round"] <= checkpoint.server_round)
            self.members = {*(deque(told, maxlen=1) or [{}])[0].get("members", self.members)}
        if self.memories is not None:
            self.memories.restore(checkpoint.memories or b"")
        record.forget_after(last := checkpoint.server_round, checkpoint.damaged)
        if strategy.over or last >= self.experiment.rounds:
            record.forget_scores(last)  # it is scored again
        elif last % self.experiment.eval_every:  # scored, if at all, since the run ended there
            record.forget_scores(last, strategy.unscored)
        if checkpoint.server_round == 0 and strategy.scored_from == 0 and not record.rows():
            self._begin_anew()  # the scores of the initial model were lost
            return
        self.saved, self.model = last, checkpoint.model

    def _like(self, clients: int | None) -> tuple[Params | None, Params]:
        """Returns a model and state of so many clients, as the strategy's are from then on."""
        if clients is not None and clients != self.clients:
            self.clients = clients
            self.strategy = strategy_of(self.experiment, self._roster(), self.noise)
        # If the initial model is empty, the shapes of later ones are unknown: any is accepted.
        return self.strategy.init() or None, self.strategy.state

    def _begin_anew(self) -> None:
        self.model = first_arrays(self.strategy, self.former)
        self.record.forget_after(-1)
        self.record.admit(self.clients)
        if self.strategy.scored_from == 0:
            self._report(0, {}, scored=True)
        self._save(0, self.strategy.state)

    def _save(self, number: int, state: Params) -> None:
        clients = None if self.members is None else self.clients
        self.record.save_checkpoint(
            number, self.model, state, self.memories, self.picked, clients=clients
        )
        self.saved, self.picked = number, {}

    def _account(self, last: int, rows: list[Row]) -> None:
        e = self.experiment
        if not e.is_private:
            return
        asked = self.record.folder / ASKED if self.noise is secret_noise else None
        self.accountant = PrivacyAccountant(e, last, asked, rows, lambda: self._roster().examples)
        for clients in self.unpaid:
            self.accountant.note(clients)

    def _pick(self, number: int) -> None:
        """Holds a round for each model of which it is the best so far."""
        if keys := [key for key, at in self.strategy.picks.items() if at == number]:
            memories = None if self.memories is None else self.memories.dump()
            clients = None if self.members is None else self.clients
            pick = Checkpoint(number, self.model, self.strategy.state, memories, clients)
            self.picked |= dict.fromkeys(keys, pick)

    def _train(self, step: Step) -> Row:
        """Trains a round; returns its metrics, but for scores."""
        start = time.perf_counter()
        try:
            if not self.grid.still:
                self._await_clients(step.number)
            strategy, accountant = self.strategy, self.accountant
            self.model, metrics = (self.grid.trains or self.grid.train)(
                strategy,
                step.number,
                self.model,
                self.config | {"durable": self.record.durable, "losses": step.due and self.scores},
                (lambda: accountant.note(strategy.cohort)) if accountant else None,
                timeout=self.experiment.timeout,
            )
        except RunStopped as error:
            where = f"the last good checkpoint, of round {self.saved}, is in {self.record.folder}"
            raise RunStopped(f"{error} ({where})") from error
        away = {c: why for c, why in self.attendance.away.items() if c not in strategy.cohort}
        absent = dict(sorted({**away, **strategy.left_out}.items()))
        return {
            **metrics,
            **strategy.row(absent),
            "absent": {str(client): reason for client, reason in absent.items()},
            "ms": (time.perf_counter() - start) * 1000,
            **(accountant.row(strategy.cohort) if accountant else {}),
            **self.grid.costs,
        }

    def _await_clients(self, number: int) -> None:
        self.grid.stage(number, training=True)
        least = self.experiment.least_clients
        end, waiting = time.monotonic() + self.experiment.timeout, Waiting()
        while True:
            self._look()
            self._admit()
            there = {*self.attendance.counted} - self.attendance.away.keys()
            if len(there - self.strategy.unseen) >= least:
                self._note_members()
                return
            if time.monotonic() > end:
                raise RunStopped(self.attendance.too_few(least))
            if self.grid.stopping:
                raise RunStopped(_ASKED.format("while it waited for clients", self.record.folder))
            waiting.tell(self.attendance.whom)
            time.sleep(0.5)

    def _note_members(self) -> None:
        now = self.attendance.members
        if now is not None and self.members is not None and (gone := self.members - now):
            self.strategy.forget(sorted(gone))
        self.members = now

    def _look(self) -> None:
        if self.attendance.look():
            self.releasing = self.attendance.releasing
            self.strategy.meet(self._roster())

    def _roster(self) -> Roster:
        return self.attendance.roster(self.clients)

    def _admit(self) -> None:
        if self.attendance.clients == self.clients:
            return
        self.clients, before = self.attendance.clients, self.strategy
        self.record.admit(self.clients)
        self.strategy = strategy_of(self.experiment, self._roster(), self.noise)
        self.strategy.init()
        self.model = self.strategy.succeed(before, self.model)

    def _evaluate(self, number: int) -> Row:
        self.grid.stage(number, training=False)
        self._look()
        e, strategy = self.experiment, self.strategy
        before = self._note_noise if e.covers_clients else None
        evaluate = self.grid.evaluates or self.grid.evaluate
        config = self.config | {"durable": self.record.durable}
        evaluate(strategy, number, self.model, config, before, timeout=e.timeout)
        if not self.strategy.evaluated:
            return {}
        if each := self.strategy.client_scores():
            self.record.append_scores(number, each)
        return self.strategy.scores()

    def _note_noise(self, replies: Sequence[Reply]) -> None:
        if noised := noised_by(replies, self.clients):
            (self.accountant.note if self.accountant else self.unpaid.append)(noised)

    def _report(self, number: int, metrics: Row, *, scored: bool) -> Row:
        """Scores a round's models, if they are to be, and records it; returns its row."""
        row = {"round": number, **metrics, **(self._evaluate(number) if scored else {})}
        if number == (0 if self.strategy.scored_from == 0 else 1):  # the run's first row
            row |= self._roster().to_row()
        if self.members is not None:
            row["members"] = sorted(self.members)
        if self.releasing:
            row[RELEASE] = self.releasing
        self.record.append(row)
        if self.on_round is not None:
            self.on_round(row)
        if scored:
            self._pick(number)
        return row


def _named(results: Row, roster: Roster) -> Row:
    if roster.kind.classes:
        results = {**results, "classes": list(roster.kind.classes)}
    if not roster.names or "clients" not in results:
        return results
    clients = results["clients"]
    ids = clients.get("ids", range(len(roster.nodes)))
    names = [roster.names.get(client, str(client)) for client in ids]
    return {**results, "clients": {"names": names, **clients}}


def _way_of(rows: Sequence[Row]) -> str:
    """Returns the way of training of all nodes; empty if they differ, or it is unknown."""
    ways: Row = next((row["ways"] for row in reversed(rows) if "ways" in row), {})
    return next(iter(ways)) if len(ways) == 1 else ""
