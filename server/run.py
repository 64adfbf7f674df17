"""Runs an experiment on any grid: in one process, on Ray, or over a network."""

import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from engram.types import Params
from federation.errors import RunStopped
from federation.experiment import Experiment
from federation.noise import Noise, secret_noise
from federation.roster import Kind, Roster
from federation.wire import TRAINING, to_params, to_record
from server.accountant import PrivacyAccountant
from server.grid import PatientGrid
from server.progress import PROGRESS, RunProgress
from server.record import Checkpoint, Memories, RunRecord
from server.roster import Attendance, attendance_of
from strategies import STRATEGIES, Row, RunStrategy


class Round(NamedTuple):
    """A round's arrays and metrics, as ``Strategy.aggregate_train`` returns them."""

    arrays: ArrayRecord
    metrics: Row


Directly = Callable[..., Round]
"""``train_round`` of ``(strategy, server_round, arrays, config, grid, before)``, in process."""


def run(
    grid: Grid,
    experiment: Experiment,
    folder: Path,
    *,
    engine: str,
    memories: Memories | None = None,
    noise: Noise = secret_noise,
    on_round: Callable[[Row], None] = lambda row: None,
    directly: Directly | None = None,
) -> Row:
    """Runs the experiment, or its remaining rounds, and records it.

    Each round is trained, merged, evaluated if due, recorded, and checkpointed if due. Since
    randomness depends on the seed, the round and the client alone, a run that is killed and resumed
    repeats the rounds after its last checkpoint, and gives the same numbers as one that is not.

    Args:
        grid: The nodes.
        experiment: The experiment. If it has ``resume``, ``folder`` holds the run to resume.
        folder: Where the run is recorded.
        engine: Name of the engine, for the record.
        memories: The clients' memories, if they live in this process.
        noise: Source of the noise of central privacy. With secret noise, a private run that is
            resumed does not repeat its numbers.
        on_round: Called with each round's metrics.
        directly: Trains the clients of a round, if they live in this process; None to send messages
            to them.

    Returns:
        The contents of ``results.json``: ``method``, ``rounds``, ``ms-per-round`` (the median),
        the strategy's results, and the privacy spent.

    Raises:
        Refused: The folder is not empty, or its run cannot be resumed with these settings.
        RunStopped: Too few clients can take part, the run diverged, or a round had too few usable
            replies.
    """
    e, training, kind = experiment, secrets.token_hex(8), None
    with ExitStack() as stack:
        if e.resume:
            record = RunRecord.open(folder)
            stack.enter_context(record.hold())
            record.check_resumable(e, engine=engine)
            training, kind = record.config["training"], _kind(record)
        attendance = attendance_of(grid, e, training=training, kind=kind)
        attendance.wait(e.min_clients)
        strategy = STRATEGIES[e.own.plug_in].build(e, attendance.roster(), noise)
        if not e.resume:
            record = RunRecord.create(folder, e, engine=engine, training=training)
            stack.enter_context(record.hold())
        if isinstance(grid, PatientGrid):
            grid.progress = RunProgress(folder / PROGRESS)
        course = _Run(grid, strategy, e, record, training, memories, on_round, attendance, directly)
        return course.whole(noise, engine)


class _Run(NamedTuple):
    """A run in progress: the arguments of ``run``, and what it built from them."""

    grid: Grid
    strategy: RunStrategy
    experiment: Experiment
    record: RunRecord
    training: str
    memories: Memories | None
    on_round: Callable[[Row], None]
    attendance: Attendance
    directly: Directly | None

    def whole(self, noise: Noise, engine: str) -> Row:
        """Runs what is left, and records and returns the results."""
        record, checkpoint = self.record, self.begin(engine)
        asked = record.folder / "clients-asked.txt" if noise is secret_noise else None
        accountant = PrivacyAccountant(
            self.experiment, checkpoint.server_round, asked, record.rows()
        )
        arrays = self.rounds(checkpoint, accountant)
        rows = record.rows()
        times = [row["ms"] for row in rows if "ms" in row]
        found = {
            "method": self.experiment.method,
            "rounds": rows[-1]["round"],
            "ms-per-round": float(np.median(times)),
            **_named(self.strategy.results(arrays, rows[-1]), self.attendance.roster()),
            **accountant.spent,
            **self.attendance.notes(),
        }
        record.finish(found)
        return found

    def begin(self, engine: str) -> Checkpoint:
        """Returns the checkpoint to start from: the last one, or a new one of round 0."""
        strategy, record = self.strategy, self.record
        arrays = strategy.init()
        model = to_params(arrays)
        # If the initial model is empty, the shapes of later ones are unknown: any is accepted.
        checkpoint = record.load_checkpoint(model=model or None, state=strategy.state)
        if self.experiment.resume:  # num-rounds may be larger than before
            record.scores()  # refused, where they cannot be read, before anything changes
            record.write_config(self.experiment, engine=engine, training=self.training)
        if checkpoint is None:
            return self._begin_anew(arrays)
        strategy.state = checkpoint.state
        if self.memories is not None:
            self.memories.restore(checkpoint.memories or b"")
        record.forget_after(checkpoint.server_round, checkpoint.damaged)
        if checkpoint.server_round == 0 and strategy.scored_from == 0 and not record.rows():
            return self._begin_anew(arrays)  # the scores of the initial model were lost
        return checkpoint

    def _begin_anew(self, arrays: ArrayRecord) -> Checkpoint:
        self.record.forget_after(-1)
        if self.strategy.scored_from == 0:
            self._report(0, {}, self._evaluate(0, arrays))
        model = to_params(arrays)
        return self.record.save_checkpoint(
            0, model, self.strategy.state, self.memories, self._picked(0, model)
        )

    def rounds(self, checkpoint: Checkpoint, accountant: PrivacyAccountant) -> ArrayRecord:
        """Runs the remaining rounds, with a last evaluation unless the last round had one."""
        e, record, strategy = self.experiment, self.record, self.strategy
        arrays = to_record(checkpoint.model)
        last, picked = checkpoint.server_round, dict[str, Checkpoint]()
        for number in range(last + 1, e.rounds + 1):
            if strategy.over:
                break
            start, before = time.perf_counter(), self._spent()
            final, last = number == e.rounds, number
            usual = number % e.eval_every == 0
            due = strategy.scored_from is not None and (final or usual)
            arrays, metrics = self._train(number, arrays, checkpoint, accountant, losses=due)
            absent = self.attendance.left_out(strategy.cohort, strategy.left_out)
            metrics |= strategy.row(absent)
            metrics |= {
                "absent": {str(client): reason for client, reason in absent.items()},
                "ms": (time.perf_counter() - start) * 1000,
                **accountant.spent,
                **{name: total - before[name] for name, total in self._spent().items()},
            }
            if isinstance(self.grid, PatientGrid):
                metrics |= self.grid.last.notes()
            state = strategy.state
            self._report(number, metrics, self._evaluate(number, arrays) if due else {})
            if due:
                picked |= self._picked(number, to_params(arrays))
            if usual:  # a run that goes on from its last round has not been scored there
                state = strategy.state
            if final or strategy.over or number % e.checkpoint_every == 0:
                model = to_params(arrays)
                checkpoint = record.save_checkpoint(number, model, state, self.memories, picked)
                picked = {}
        if not strategy.evaluated:
            self._evaluate(last, arrays)
        return arrays

    def _picked(self, number: int, model: Params) -> dict[str, Checkpoint]:
        """Returns what there is after a round, for each model for which it is the best so far."""
        keys = [key for key, at in self.strategy.picks.items() if at == number]
        if not keys:
            return {}
        memories = None if self.memories is None else self.memories.dump()
        return dict.fromkeys(keys, Checkpoint(number, model, self.strategy.state, memories))

    def _train(
        self,
        number: int,
        arrays: ArrayRecord,
        checkpoint: Checkpoint,
        accountant: PrivacyAccountant,
        *,
        losses: bool,
    ) -> Round:
        try:
            self._await_clients()
            return train_round(
                self.grid,
                self.strategy,
                number,
                arrays,
                self._config(losses=losses),
                timeout=self.experiment.timeout,
                before=lambda: accountant.note(self.strategy.cohort),
                directly=self.directly,
            )
        except RunStopped as error:
            last = checkpoint.server_round
            where = f"the last good checkpoint, of round {last}, is in {self.record.folder}"
            raise RunStopped(f"{error} ({where})") from error

    def _await_clients(self) -> None:
        """Waits until at least ``min-clients`` clients can be asked."""
        least = self.experiment.min_clients
        end = time.monotonic() + self.experiment.timeout
        while True:
            self._look()
            if self.strategy.askable(self.grid) >= least:
                return
            if time.monotonic() > end:
                raise RunStopped(self.attendance.too_few(least))
            time.sleep(0.5)

    def _look(self) -> None:
        if self.attendance.look():
            self.strategy.meet(self.attendance.roster())

    def _evaluate(self, number: int, arrays: ArrayRecord) -> Row:
        self._look()
        messages = self.strategy.configure_evaluate(number, arrays, self._config(), self.grid)
        replies = self.grid.send_and_receive(messages, timeout=self.experiment.timeout)
        self.strategy.aggregate_evaluate(number, replies)
        if not self.strategy.evaluated:
            return {}
        if each := self.strategy.client_scores():
            self.record.append_scores(number, each)
        return self.strategy.scores()

    def _config(self, **more: bool) -> ConfigRecord:
        return ConfigRecord({TRAINING: self.training, "durable": self.record.durable, **more})

    def _spent(self) -> Counter[str]:
        return Counter(self.grid.spent) if isinstance(self.grid, PatientGrid) else Counter()

    def _report(self, number: int, metrics: Row, scores: Row) -> None:
        row = {"round": number, **metrics, **scores}
        if number == (0 if self.strategy.scored_from == 0 else 1):  # the run's first row
            row |= self.attendance.roster().to_row()
        self.record.append(row)
        self.on_round(row)


def _named(results: Row, roster: Roster) -> Row:
    """Adds names of classes, and of clients to the columns of the results, if there are some."""
    if roster.kind.classes:
        results = {**results, "classes": list(roster.kind.classes)}
    if not roster.names or "clients" not in results:
        return results
    clients = results["clients"]
    names = [
        roster.names.get(client, str(client))
        for client in clients.get("ids", range(len(roster.nodes)))
    ]
    return {**results, "clients": {"names": names, **clients}}


def _kind(record: RunRecord) -> Kind | None:
    """Returns the kind of the run's data from its first row; None if there is none."""
    return Kind.from_row(next(iter(record.rows()), {}))


def train_round(
    grid: Grid,
    strategy: Strategy,
    server_round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    *,
    timeout: float,
    before: Callable[[], None] = lambda: None,
    directly: Directly | None = None,
) -> Round:
    """Trains one round: no evaluation, no record.

    Args:
        grid: The nodes.
        strategy: Makes the messages, and merges the replies.
        server_round: The round, >= 1.
        arrays: The model to start from.
        config: Sent to every client: the training's name; ``durable``, the round of the oldest
            checkpoint that is kept, from which a run may be resumed; and ``losses``, whether
            training losses are wanted.
        timeout: Seconds to wait for replies.
        before: Called once the cohort is drawn, before anybody is asked.
        directly: As for ``run``.

    Raises:
        RunStopped: Too few replies were usable, or the run diverged.
    """
    if directly is not None:
        return directly(strategy, server_round, arrays, config, grid, before)
    messages = strategy.configure_train(server_round, arrays, config, grid)
    before()
    replies = grid.send_and_receive(messages, timeout=timeout)
    merged, metrics = strategy.aggregate_train(server_round, replies)
    if merged is None:
        raise RunStopped(f"round {server_round}: the strategy made no model")
    return Round(merged, dict(metrics or {}))
