"""Runs the batches of a bandit between sites, one round each, and records them."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from engram.types import Params
from federation.estimates import read_parameters
from federation.experiment import Experiment
from federation.policy import parameters_of, policy_of
from federation.wire import TRAINING, to_params, to_record
from server.coordinator import train_round
from server.grid import PatientGrid
from server.opening import open_run
from server.record import Checkpoint, Memories, RunRecord
from strategies.bandits import BanditExchange

__all__ = ["play_batches"]

_TOTALS = ("turns", "reward", "regret")


def play_batches(
    grid: Grid,
    experiment: Experiment,
    folder: Path,
    *,
    engine: str,
    memories: Memories | None = None,
    on_round: Callable[[dict[str, Any]], None] = lambda row: None,
) -> dict[str, Any]:
    """Plays the batches that are left: sites choose, send estimates, and get what all have learned.

    A run that was killed and resumed repeats the batches after its last checkpoint, and gives the
    same numbers: a site's state is tied to the batch that made it.

    Args:
        grid: The nodes.
        experiment: What to run. If it says ``resume``, ``folder`` holds the run to go on with.
        folder: Where the run is recorded.
        engine: Name of the engine, for the record.
        memories: The sites' states, if they live in this process.
        on_round: Called with each batch's metrics.

    Returns:
        What ``results.json`` holds: regret and reward of each site, and the shared coefficients.

    Raises:
        Refused: The folder is not free, or not of a run that could go on so.
        RunStopped: Too few sites can take part.
    """
    e = experiment
    record, training, sites, absent = open_run(grid, e, folder, engine=engine)
    strategy = BanditExchange(
        sites,
        policy_of(e),
        parameters=parameters_of(e),
        first_batch=e.first_batch,
        least=e.min_clients,
    )
    with record.hold():
        if e.resume:
            record.write_config(e, engine=engine, training=training)
        checkpoint = _opened(record, memories)
        arrays, totals = to_record(checkpoint.model), checkpoint.state
        config = ConfigRecord({TRAINING: training})
        for number in range(checkpoint.server_round + 1, e.rounds + 1):
            start = time.perf_counter()
            config["durable"] = checkpoint.server_round
            done = train_round(grid, strategy, number, arrays, config, timeout=e.timeout)
            arrays = done.arrays
            for client, outcome in strategy.outcomes.items():
                for name, value in outcome._asdict().items():
                    totals[name][client] += value
            left_out = absent | strategy.left_out
            row = {
                "round": number,
                **done.metrics,
                "cohort": sorted({*strategy.cohort, *left_out}),
                "left-out": len(left_out),
                "absent": {str(client): left_out[client] for client in sorted(left_out)},
                "regret": _mean_regret(totals),
                "columns": sites.columns,
                "ms": (time.perf_counter() - start) * 1000,
            }
            if isinstance(grid, PatientGrid):
                row |= grid.last.summary()
            record.append(row)
            on_round(row)
            if number == e.rounds or number % e.checkpoint_every == 0:
                checkpoint = record.save_checkpoint(number, to_params(arrays), totals, memories)
        config["durable"] = checkpoint.server_round
        messages = strategy.configure_evaluate(e.rounds, arrays, config, grid)
        replies = grid.send_and_receive(messages, timeout=e.timeout)
        strategy.aggregate_evaluate(e.rounds, replies)
        found = _results(e, sites.columns, arrays, totals, record.rows())
        record.finish(found)
    return found


def _opened(record: RunRecord, memories: Memories | None) -> Checkpoint:
    """Returns the checkpoint to go on from: the last one, or one of nothing."""
    checkpoint = record.load_checkpoint()
    if checkpoint is None:
        record.forget_after(0)
        size = record.config["settings"]["num-clients"]
        totals = {name: torch.zeros(size, dtype=torch.float64) for name in _TOTALS}
        return record.save_checkpoint(0, {}, totals, memories)
    if memories is not None:
        memories.restore(checkpoint.memories)
    record.forget_after(checkpoint.server_round)
    return checkpoint


def _mean_regret(totals: Params) -> float:
    """Returns the mean over the sites that have told of some turns."""
    some = totals["turns"] > 0
    return float(totals["regret"][some].mean()) if some.any() else 0.0


def _results(
    experiment: Experiment,
    columns: list[str],
    arrays: ArrayRecord,
    totals: Params,
    rows: list[dict[str, Any]],
) -> dict[str, Any]:
    shared = read_parameters(arrays, parameters_of(experiment))
    return {
        "algorithm": experiment.algorithm,
        "rounds": experiment.rounds,
        "turns": experiment.horizon,
        "sites": rows[-1]["sites"],
        "left-out": rows[-1]["absent"],
        "regret": _mean_regret(totals),
        "ms-per-round": float(np.median([row["ms"] for row in rows])),
        "shared": {
            "names": columns,
            "coef": [None if one is None else one.coef.tolist() for one in shared],
        },
        "clients": {name: total.tolist() for name, total in totals.items()},
    }
