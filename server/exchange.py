"""Runs one exchange of estimates between sites on whatever grid it is given, and records it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from engram.molar.shrinkage import Shared
from engram.molar.site import INTERCEPT
from engram.shares import bounded
from federation.errors import RunStopped
from federation.estimates import SharedEstimate, read_shared, shared_record
from federation.experiment import Experiment
from federation.methods.molar import Molar
from federation.wire import TRAINING, to_params, to_record
from server.coordinator import train_round
from server.grid import PatientGrid
from server.opening import open_run
from server.record import Memories
from server.roster import Attendance
from strategies.exchange import Exchange, Scores

__all__ = ["exchange"]

_FAR = 100  # sites' losses differ by less


def exchange(
    grid: Grid,
    experiment: Experiment,
    folder: Path,
    *,
    engine: str,
    memories: Memories | None = None,
    on_round: Callable[[dict[str, Any]], None] = lambda row: None,
) -> dict[str, Any]:
    """Asks all sites for their estimates, answers with the shared one, and gathers their scores.

    Its checkpoint is the shared estimate. A run that was killed before it does it again, and gives
    the same numbers; one that is resumed after it sends the same estimate to the sites anew, so
    that those who were away have it, too.

    Args:
        grid: The nodes.
        experiment: What to run. If it says ``resume``, ``folder`` holds the run to go on with.
        folder: Where the run is recorded.
        engine: Name of the engine, for the record.
        memories: The sites' coefficients, if they live in this process.
        on_round: Called with the metrics.

    Returns:
        What ``results.json`` holds: the shared coefficients with their intervals, who was left out
        and why, and each site's held-out losses.

    Raises:
        Refused: The folder is not free, or not of a run that could go on so.
        RunStopped: Too few sites can take part.
    """
    own = experiment.of(Molar)
    record, training, attendance = open_run(grid, experiment, folder, engine=engine)
    strategy = Exchange(
        attendance.sites(),
        intercept=own.intercept,
        family=own.family,
        weights=own.site_weights,
        level=own.level,
        least=experiment.min_clients,
        max_weight=experiment.max_weight,
    )
    config = ConfigRecord({TRAINING: training})
    with record.hold():
        if experiment.resume:
            record.write_config(experiment, engine=engine, training=training)
        dim = len(strategy.sites.columns) + own.intercept
        like = SharedEstimate(Shared(np.ones(dim), 1.0), np.ones(dim))
        checkpoint = record.load_checkpoint(model=to_params(shared_record(like)), state={})
        before = record.rows()
        if checkpoint is None:
            record.forget_after(0)
            row, arrays = _estimate(grid, strategy, config, experiment.timeout, attendance)
        else:
            row, arrays = before[-1], to_record(checkpoint.model)
        if attendance.look():  # who comes after the estimates gets what is shared all the same
            strategy.sites = attendance.sites()
        messages = strategy.configure_evaluate(1, arrays, config, grid)
        strategy.aggregate_evaluate(1, grid.send_and_receive(messages, timeout=experiment.timeout))
        if strategy.scores is None:
            raise RunStopped("no site has taken what is shared: see the warnings")
        row |= _losses(strategy.scores)
        if checkpoint is None:
            record.append(row)
            record.save_checkpoint(1, to_params(arrays), {}, memories)
        on_round(row)
        found = _results(experiment, strategy.sites.columns, arrays, strategy.scores, row)
        record.finish(found)
    return found


def _estimate(
    grid: Grid, strategy: Exchange, config: ConfigRecord, timeout: float, attendance: Attendance
) -> tuple[dict[str, Any], ArrayRecord]:
    """Returns the metrics of the exchange, and what is shared."""
    start = time.perf_counter()
    done = train_round(grid, strategy, 1, ArrayRecord(), config, timeout=timeout)
    left_out = attendance.left_out(strategy.cohort, strategy.left_out)
    row: dict[str, Any] = {
        "round": 1,
        **done.metrics,
        "cohort": sorted({*strategy.cohort, *left_out}),
        "left-out": len(left_out),
        "ms": (time.perf_counter() - start) * 1000,
        "absent": {str(client): reason for client, reason in left_out.items()},
        "lacking": {str(client): note for client, note in sorted(strategy.notes.items())},
        "columns": strategy.sites.columns,
    }
    if isinstance(grid, PatientGrid):
        row |= grid.last.summary()
    return row, done.arrays


def _losses(scores: Scores) -> dict[str, Any]:
    """Returns mean and median over sites of their held-out losses, and how many have them.

    Sites count that have all three, so that these are about the same ones. Losses are what sites
    say: in the mean, a site's counts up to a hundred times the median.
    """
    columns = np.stack([scores.own, scores.shared, scores.personal])
    some = (scores.rows > 0) & np.isfinite(columns).all(axis=0)
    found: dict[str, Any] = {"scored": int(some.sum())}
    for kind, column in zip(("own", "shared", "personal"), columns[:, some], strict=True):
        found[f"loss-{kind}"] = float(bounded(column, _FAR).mean()) if some.any() else None
        found[f"loss-{kind}-median"] = float(np.median(column)) if some.any() else None
    return found


def _results(
    experiment: Experiment,
    columns: list[str],
    arrays: ArrayRecord,
    scores: Scores,
    row: dict[str, Any],
) -> dict[str, Any]:
    own = experiment.of(Molar)
    names = [*columns, *([INTERCEPT] if own.intercept else [])]
    (coef, size), half = read_shared(arrays, len(names))
    return {
        "method": experiment.method,
        "rounds": 1,
        "sites": row["sites"],
        "left-out": row["absent"],
        "lacking": row["lacking"],
        "rows": size,
        **_losses(scores),
        "ms-per-round": row["ms"],
        "shared": {
            "names": names,
            "coef": coef.tolist(),
            "low": [_finite(value) for value in coef - half],
            "high": [_finite(value) for value in coef + half],
        },
        "clients": {
            "ids": scores.clients,
            "rows": scores.rows.astype(int).tolist(),
            **{
                name: [_finite(value) for value in column]
                for name, column in scores._asdict().items()
                if name not in ("clients", "rows")
            },
        },
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
