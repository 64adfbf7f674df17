"""Runs an experiment on whatever grid it is given: in one process, on Ray, or over a network."""

import secrets
import time
from collections.abc import Callable
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from engram.types import Params
from federation.data.federated import model_for
from federation.errors import RunStopped
from federation.experiment import Experiment
from federation.noise import Noise, secret_noise
from federation.roster import Kind
from federation.server_steps import server_step_notes
from federation.streams import Stream, torch_generator
from federation.wire import TRAINING, to_params, to_record
from server.accountant import PrivacyAccountant
from server.grid import PatientGrid
from server.record import Checkpoint, Memories, RunRecord
from server.results import results, summary
from server.roster import Attendance, attendance_of
from strategies.federated import Federated

__all__ = ["Round", "coordinate", "train_round"]

_log = getLogger("flwr.engram")


class Round(NamedTuple):
    """The model that a round made, and the metrics, as ``Strategy.aggregate_train`` has them."""

    arrays: ArrayRecord
    metrics: dict[str, Any]


def coordinate(
    grid: Grid,
    experiment: Experiment,
    folder: Path,
    *,
    engine: str,
    memories: Memories | None = None,
    noise: Noise = secret_noise,
    on_round: Callable[[dict[str, Any]], None] = lambda row: None,
) -> dict[str, Any]:
    """Runs the experiment, or what is left of it, and records it.

    A round is trained, merged, evaluated where its turn has come, recorded, and checkpointed
    where its turn has come. Since all that is random depends on the seed, the round and the
    client alone, a run that was killed and resumed repeats the rounds after its last checkpoint
    and gives the same numbers as one that was not.

    Args:
        grid: The nodes.
        experiment: What to run. If it says ``resume``, ``folder`` holds the run to go on with.
        folder: Where the run is recorded.
        engine: Name of the engine, for the record.
        memories: The clients' memories, if they live in this process.
        noise: Where the noise of central privacy comes from. With secret noise a private run that
            is resumed does not repeat its numbers.
        on_round: Called with each round's metrics.

    Returns:
        The results, as ``server.results.results``, ``server.accountant.PrivacyAccountant.spent``
        and ``federation.server_steps.server_step_notes`` have them.

    Raises:
        Refused: The folder is not free, or not of a run that could go on so.
        RunStopped: Too few clients can take part, the run diverged, or a round had too few usable
            replies.
    """
    training, kind = secrets.token_hex(8), None
    if experiment.resume:
        record = RunRecord.open(folder)
        record.check_resumable(experiment, engine=engine)
        training, kind = record.config["training"], _kind(record)
    attendance = attendance_of(grid, experiment, training=training, kind=kind)
    # A simulation's nodes are not waited for later, if one of them does not serve.
    least = experiment.num_clients if attendance.fixed else experiment.min_clients
    attendance.wait(least)
    roster = attendance.roster()
    network = model_for(experiment, roster.input_shape, roster.num_classes)
    strategy = Federated(
        experiment.aggregate(noise),
        roster,
        clients_per_round=experiment.clients_per_round,
        seed=experiment.seed,
        shards=experiment.shards,
        least=experiment.min_clients,
        max_weight=experiment.max_weight,
    )
    if not experiment.resume:
        record = RunRecord.create(folder, experiment, engine=engine, training=training)
    model = network.init(torch_generator(experiment.seed, Stream.MODEL))
    parameters = sum(leaf.numel() for leaf in model.values())
    notes = server_step_notes(experiment, parameters)
    if notes and not notes["exp-concave"]:
        _log.warning(
            "%d parameters are too many for the ensemble to learn from exp-concave losses, too",
            parameters,
        )
    with record.hold():
        if experiment.resume:  # it may have more rounds to go now
            record.write_config(experiment, engine=engine, training=training)
        course = _Course(
            grid,
            strategy,
            experiment,
            record,
            training,
            memories,
            on_round,
            attendance,
        )
        checkpoint = course.open(model)
        asked = folder / "clients-asked.txt" if noise is secret_noise else None
        accountant = PrivacyAccountant(experiment, checkpoint.server_round, asked)
        course.run(checkpoint, accountant)
    if strategy.evaluation is None:
        raise RunStopped(f"no client could be scored; resume {folder} to try again")
    found = results(experiment.algorithm, strategy.evaluation, record.rows())
    found |= accountant.spent | notes
    record.finish(found)
    return found


class _Course(NamedTuple):
    """A run under way: arguments of ``coordinate``, and what it made of them."""

    grid: Grid
    strategy: Federated
    experiment: Experiment
    record: RunRecord
    training: str
    memories: Memories | None
    on_round: Callable[[dict[str, Any]], None]
    attendance: Attendance

    def open(self, model: Params) -> Checkpoint:
        """Returns the checkpoint to start from: the last one, or that of the initial model."""
        strategy, record = self.strategy, self.record
        strategy.state = strategy.aggregate.init(model)
        checkpoint = record.load_checkpoint(model=model, state=strategy.state)
        if checkpoint is None:
            record.forget_after(-1)
            roster = strategy.roster
            kind = {"input-shape": list(roster.input_shape), "num-classes": roster.num_classes}
            self._report(0, kind, self._evaluate(0, to_record(model)))
            return record.save_checkpoint(0, model, strategy.state, self.memories)
        strategy.state = checkpoint.state
        if self.memories is not None:
            self.memories.restore(checkpoint.memories or b"")
        record.forget_after(checkpoint.server_round, checkpoint.damaged)
        return checkpoint

    def run(self, checkpoint: Checkpoint, accountant: PrivacyAccountant) -> None:
        """Runs the rounds that are left, and scores the last model."""
        e, record = self.experiment, self.record
        arrays = to_record(checkpoint.model)
        for server_round in range(checkpoint.server_round + 1, e.rounds + 1):
            start = time.perf_counter()
            arrays, metrics = self._train(server_round, arrays, checkpoint, accountant)
            metrics |= {"ms": (time.perf_counter() - start) * 1000, **accountant.spent}
            if absent := self.attendance.left_out(self.strategy.cohort, self.strategy.left_out):
                metrics["absent"] = absent
            if isinstance(self.grid, PatientGrid):
                metrics |= self.grid.last.summary()
            final = server_round == e.rounds
            due = final or server_round % e.eval_every == 0
            self._report(server_round, metrics, self._evaluate(server_round, arrays) if due else {})
            if final or server_round % e.checkpoint_every == 0:
                state = self.strategy.state or {}
                model = to_params(arrays)
                checkpoint = record.save_checkpoint(server_round, model, state, self.memories)
        if self.strategy.evaluation is None:  # no round was left to run, or nobody was scored
            self._evaluate(checkpoint.server_round, arrays)

    def _train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        checkpoint: Checkpoint,
        accountant: PrivacyAccountant,
    ) -> Round:
        config = ConfigRecord({TRAINING: self.training, "durable": self.record.durable})
        timeout = self.experiment.timeout
        try:
            self._await_clients()
            return train_round(
                self.grid,
                self.strategy,
                server_round,
                arrays,
                config,
                timeout=timeout,
                before=lambda: accountant.note(self.strategy.cohort),
            )
        except RunStopped as error:
            last = checkpoint.server_round
            where = f"the last good checkpoint, of round {last}, is in {self.record.folder}"
            raise RunStopped(f"{error} ({where})") from error

    def _await_clients(self) -> None:
        """Waits until so many clients can be asked as a round cannot do without."""
        least = self.experiment.min_clients
        end = time.monotonic() + self.experiment.timeout
        while True:
            if self.attendance.look():
                self.strategy.roster = self.attendance.roster()
            there = self.strategy.askable(self.grid)
            if there >= least:
                return
            if time.monotonic() > end:
                raise RunStopped(self.attendance.too_few(least))
            time.sleep(0.5)

    def _evaluate(self, server_round: int, arrays: ArrayRecord) -> dict[str, Any]:
        config = ConfigRecord({TRAINING: self.training})
        messages = self.strategy.configure_evaluate(server_round, arrays, config, self.grid)
        replies = self.grid.send_and_receive(messages, timeout=self.experiment.timeout)
        self.strategy.aggregate_evaluate(server_round, replies)
        return summary(self.strategy.evaluation) if self.strategy.evaluation else {}

    def _report(self, server_round: int, metrics: dict[str, Any], scores: dict[str, Any]) -> None:
        row = {"round": server_round, **metrics, **scores}
        self.record.append(row)
        self.on_round(row)


def _kind(record: RunRecord) -> Kind | None:
    """Returns what the run's data are, as its first row says; None if there is none."""
    row = next(iter(record.rows()), {})
    if "input-shape" not in row:
        return None
    return Kind(tuple(row["input-shape"]), row["num-classes"])


def train_round(
    grid: Grid,
    strategy: Strategy,
    server_round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    *,
    timeout: float,
    before: Callable[[], None] = lambda: None,
) -> Round:
    """Trains one round: no evaluation, no record.

    Args:
        grid: The nodes.
        strategy: Whom to ask, and what to do with the replies.
        server_round: The round, >= 1.
        arrays: The model that it starts from.
        config: What every client is told: the training's name, and ``durable``, the round of the
            oldest checkpoint that is kept, after which a resumed run may start.
        timeout: Seconds to wait for replies.
        before: Called when it is known whom to ask, and nobody has been asked yet.

    Raises:
        RunStopped: Too few replies were usable, or the run diverged.
    """
    messages = strategy.configure_train(server_round, arrays, config, grid)
    before()
    replies = grid.send_and_receive(messages, timeout=timeout)
    merged, metrics = strategy.aggregate_train(server_round, replies)
    if merged is None:
        raise RunStopped(f"round {server_round}: the strategy made no model")
    return Round(merged, dict(metrics or {}))
