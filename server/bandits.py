"""Runs the rounds of a bandit between sites, and records them."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid

from federation.estimates import read_parameters
from federation.experiment import Experiment
from federation.methods.meta_ban import MetaBan
from federation.methods.molar_bandit import MolarBandit
from federation.roster import Sites
from federation.wire import TRAINING, to_params, to_record
from server.coordinator import train_round
from server.grid import PatientGrid
from server.opening import open_run
from server.record import Checkpoint, Memories, RunRecord
from strategies.bandits import BanditExchange
from strategies.meta_ban import TOTALS, MetaBanTurns

__all__ = ["BANDITS", "Bandit", "play"]

Strategy = BanditExchange | MetaBanTurns
Row = dict[str, Any]


class Bandit(NamedTuple):
    """A bandit between sites.

    Attributes:
        strategy: What asks the sites, given the settings.
        turns: How many there are in all rounds.
        results: What ``results.json`` holds beside what it holds of all: from the settings, the
            strategy after the last round, what it shares, and what sites say in the end.
    """

    strategy: Callable[[Experiment, Sites], Strategy]
    turns: Callable[[Experiment], int]
    results: Callable[[Experiment, Any, ArrayRecord, Mapping[str, Any]], Row]


def play(
    grid: Grid,
    experiment: Experiment,
    folder: Path,
    *,
    engine: str,
    memories: Memories | None = None,
    on_round: Callable[[Row], None] = lambda row: None,
) -> Row:
    """Plays the rounds that are left: sites choose, or are told what to choose, and learn.

    A run that was killed and resumed repeats the rounds after its last checkpoint, and gives the
    same numbers: a site's state is tied to the round that made it.

    Args:
        grid: The nodes.
        experiment: What to run. If it says ``resume``, ``folder`` holds the run to go on with.
        folder: Where the run is recorded.
        engine: Name of the engine, for the record.
        memories: The sites' states, if they live in this process.
        on_round: Called with each round's metrics.

    Returns:
        What ``results.json`` holds: among it regret and reward of each site.

    Raises:
        Refused: The folder is not free, or not of a run that could go on so.
        RunStopped: Too few sites can take part.
    """
    e, bandit = experiment, BANDITS[experiment.method]
    record, training, attendance = open_run(grid, e, folder, engine=engine)
    strategy = bandit.strategy(e, attendance.sites())
    with record.hold():
        if e.resume:
            record.write_config(e, engine=engine, training=training)
        checkpoint = _opened(record, strategy, memories)
        arrays = to_record(checkpoint.model)
        config = ConfigRecord({TRAINING: training})
        for number in range(checkpoint.server_round + 1, e.rounds + 1):
            start, spent = time.perf_counter(), _spent(grid)
            config["durable"] = record.durable
            if attendance.look():  # who comes late has a state from now on
                strategy.sites = attendance.sites()
            done = train_round(grid, strategy, number, arrays, config, timeout=e.timeout)
            arrays = done.arrays
            left_out = attendance.left_out(strategy.cohort, strategy.left_out)
            row = {
                "round": number,
                **done.metrics,
                "cohort": sorted({*strategy.cohort, *left_out}),
                "left-out": len(left_out),
                "absent": {str(client): reason for client, reason in left_out.items()},
                "ms": (time.perf_counter() - start) * 1000,
                **{name: total - spent.get(name, 0.0) for name, total in _spent(grid).items()},
            }
            if isinstance(grid, PatientGrid):
                row |= grid.last.notes()
            if number == 1:
                row["columns"] = strategy.sites.columns
            record.append(row)
            on_round(row)
            if number == e.rounds or number % e.checkpoint_every == 0:
                model = to_params(arrays)
                checkpoint = record.save_checkpoint(number, model, strategy.state, memories)
        config["durable"] = record.durable
        messages = strategy.configure_evaluate(e.rounds, arrays, config, grid)
        replies = grid.send_and_receive(messages, timeout=e.timeout)
        last = strategy.aggregate_evaluate(e.rounds, replies) or MetricRecord()
        rows = record.rows()
        found = {
            "method": e.method,
            "rounds": e.rounds,
            "turns": bandit.turns(e),
            "sites": rows[-1]["sites"],
            "left-out": rows[-1]["absent"],
            "ms-per-round": float(np.median([row["ms"] for row in rows])),
            "clients": {name: strategy.state[name].tolist() for name in TOTALS},
            **bandit.results(e, strategy, arrays, last),
        }
        record.finish(found)
    return found


def _opened(record: RunRecord, strategy: Strategy, memories: Memories | None) -> Checkpoint:
    """Returns the checkpoint to go on from: the last one, or one of the beginning."""
    # What molar-bandit shares has no form yet in the beginning.
    model = to_params(strategy.init(record.config["settings"]["num-clients"])) or None
    checkpoint = record.load_checkpoint(model=model, state=strategy.state)
    if checkpoint is None:
        record.forget_after(0)
        return record.save_checkpoint(0, model or {}, strategy.state, memories)
    strategy.state = checkpoint.state
    if memories is not None:
        memories.restore(checkpoint.memories or b"")
    record.forget_after(checkpoint.server_round, checkpoint.damaged)
    return checkpoint


def _spent(grid: Grid) -> Mapping[str, float]:
    return dict(grid.spent) if isinstance(grid, PatientGrid) else {}


# --- The bandits -----------------------------------------------------------------------------


def _batches(e: Experiment, sites: Sites) -> BanditExchange:
    own = e.of(MolarBandit)
    return BanditExchange(
        sites,
        own.policy(e),
        parameters=own.parameters,
        first_batch=own.first_batch,
        least=e.min_clients,
        max_weight=e.max_weight,
    )


def _of_batches(
    e: Experiment, strategy: BanditExchange, arrays: ArrayRecord, last: Mapping[str, Any]
) -> Row:
    """Returns mean and median regret of sites, and the shared coefficients."""
    del last
    shared = read_parameters(arrays, e.of(MolarBandit).parameters)
    coef = [None if one is None else one.coef.tolist() for one in shared]
    return {
        **strategy.regret,
        "shared": {"names": strategy.sites.columns, "coef": coef},
    }


def _turns(e: Experiment, sites: Sites) -> MetaBanTurns:
    policy = e.of(MetaBan).policy(e, len(sites.columns))
    return MetaBanTurns(sites, policy, seed=e.seed, timeout=e.timeout, least=e.min_clients)


def _of_turns(
    e: Experiment, strategy: MetaBanTurns, arrays: ArrayRecord, last: Mapping[str, Any]
) -> Row:
    """Returns sums over all sites of what they told, in the end of what was left, too."""
    del e, arrays
    sums = {name: float(strategy.state[name].sum() + last[name]) for name in TOTALS}
    return {"told": sums["turns"], "reward": sums["reward"], "regret": sums["regret"]}


BANDITS: Final[dict[str, Bandit]] = {
    "molar-bandit": Bandit(_batches, lambda e: e.of(MolarBandit).horizon(e), _of_batches),
    "meta-ban": Bandit(_turns, lambda e: e.of(MetaBan).horizon(e), _of_turns),
}
"""By algorithm."""
