"""Runs an experiment on whatever grid it is given: in one process, on Ray, or over a network."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from federation.data.federated import model_for
from federation.errors import RunStopped
from federation.experiment import Experiment
from federation.noise import Noise, secret_noise
from federation.streams import Stream, torch_generator
from federation.wire import to_params, to_record
from server.ledger import Ledger
from server.record import Memories, RunRecord
from server.results import results, summary
from server.roster import query_roster
from strategies.federated import Federated

__all__ = ["Round", "coordinate", "train_round"]

_TIMEOUT = 3600.0  # seconds that a round may take


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
        The results, as ``server.results.results`` and ``server.ledger.Ledger.spent`` have them.

    Raises:
        Refused: The folder is not free, or not of a run that could go on so.
        RunStopped: The nodes cannot serve, the run diverged, or a round had no usable reply.
    """
    if experiment.resume:
        RunRecord.open(folder).check_resumable(experiment, engine=engine)
    roster = query_roster(grid, experiment.num_clients)
    network = model_for(experiment, roster.input_shape, roster.num_classes)
    strategy = Federated(
        experiment.aggregate(noise),
        roster,
        clients_per_round=experiment.clients_per_round,
        seed=experiment.seed,
        shards=experiment.shards,
    )
    if experiment.resume:
        record = RunRecord.open(folder)
        record.write_config(experiment, engine=engine)  # it may have more rounds to go now
    else:
        record = RunRecord.create(folder, experiment, engine=engine)
    checkpoint = record.load_checkpoint()
    if checkpoint is None:
        model = network.init(torch_generator(experiment.seed, Stream.MODEL))
        strategy.state = strategy.aggregate.init(model)
        record.forget_after(-1)
        scores = _evaluate(grid, strategy, 0, to_record(model))
        on_round(_record_round(record, 0, {}, scores))
        checkpoint = record.save_checkpoint(0, model, strategy.state, memories)
    else:
        strategy.state = checkpoint.state
        if memories is not None:
            memories.restore(checkpoint.memories)
        record.forget_after(checkpoint.server_round)
    arrays = to_record(checkpoint.model)
    begun = folder / "rounds-begun.txt" if noise is secret_noise else None
    ledger = Ledger(experiment, checkpoint.server_round, begun)
    for server_round in range(checkpoint.server_round + 1, experiment.num_rounds + 1):
        ledger.begin(server_round)
        start = time.perf_counter()
        try:
            arrays, metrics = train_round(
                grid, strategy, server_round, arrays, checkpoint.server_round
            )
        except RunStopped as error:
            raise RunStopped(
                f"{error} (the last good checkpoint, of round {checkpoint.server_round}, is in "
                f"{folder})"
            ) from error
        metrics |= {"ms": (time.perf_counter() - start) * 1000, **ledger.spent}
        final = server_round == experiment.num_rounds
        due = final or server_round % experiment.eval_every == 0
        scores = _evaluate(grid, strategy, server_round, arrays) if due else {}
        on_round(_record_round(record, server_round, metrics, scores))
        if final or server_round % experiment.checkpoint_every == 0:
            checkpoint = record.save_checkpoint(
                server_round, to_params(arrays), strategy.state or {}, memories
            )
    if strategy.evaluation is None:  # no round was left to run, or nobody could be scored
        _evaluate(grid, strategy, checkpoint.server_round, arrays)
    if strategy.evaluation is None:
        raise RunStopped(f"no client could be scored; resume {folder} to try again")
    found = results(experiment.algorithm, strategy.evaluation, record.rows()) | ledger.spent
    record.finish(found)
    return found


def _record_round(
    record: RunRecord, server_round: int, metrics: dict[str, Any], scores: dict[str, Any]
) -> dict[str, Any]:
    row = {"round": server_round, **metrics, **scores}
    record.append(row)
    return row


def train_round(
    grid: Grid, strategy: Strategy, server_round: int, arrays: ArrayRecord, durable: int
) -> Round:
    """Trains one round: no evaluation, no record.

    Args:
        grid: The nodes.
        strategy: Whom to ask, and what to do with the replies.
        server_round: The round, >= 1.
        arrays: The model that it starts from.
        durable: The last round that there is a checkpoint of; 0 for none.

    Raises:
        RunStopped: No reply was usable, or the run diverged.
    """
    messages = strategy.configure_train(
        server_round, arrays, ConfigRecord({"durable": durable}), grid
    )
    replies = grid.send_and_receive(messages, timeout=_TIMEOUT)
    merged, metrics = strategy.aggregate_train(server_round, replies)
    if merged is None:
        raise RunStopped(f"round {server_round}: the strategy made no model")
    return Round(merged, dict(metrics or {}))


def _evaluate(
    grid: Grid, strategy: Federated, server_round: int, arrays: ArrayRecord
) -> dict[str, Any]:
    messages = strategy.configure_evaluate(server_round, arrays, ConfigRecord(), grid)
    replies = grid.send_and_receive(messages, timeout=_TIMEOUT)
    if strategy.aggregate_evaluate(server_round, replies) is None or strategy.evaluation is None:
        return {}
    return summary(strategy.evaluation)
