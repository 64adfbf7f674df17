"""Regret of servers of federated streams, in a table and a plot."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, NamedTuple

import numpy as np
from rich.table import Table

from engram.core.arrays import Array
from engram.online.studies.server_steps import STEPS
from engram.online.studies.settings import UniversalStreamSettings
from engram.online.studies.streams import (
    SHARES,
    Course,
    best_fixed,
    courses,
    read_stream,
    stream_of,
)
from engram.settings.experiment import Experiment
from engram.simulations.job_pool import Pool, Row, Tell
from engram.studies.figures import COLORS, finish, new_table, panels
from engram.studies.study import Report

_RUNS: Final = 11  # of the initial grid
_CAPTION: Final = """\
Sum over rounds of the mean loss (nats) of the round's rows at the round's
model, less that of the best fixed model of all, and of the best within the
default radius of the first model. Tuned: the best step size in hindsight, on
a grid of factors of 2; of the ensemble nothing is tuned."""


class StreamResults(NamedTuple):
    """The results of all servers."""

    experiment: Experiment  # the federation's settings
    courses: list[Course]  # each server's losses
    best: Array  # losses of the best fixed model, by rounds
    best_in_ball: Array  # those of the best model within the default radius of the first one


def work(settings: UniversalStreamSettings, pool: Pool) -> StreamResults:
    """Plays all servers."""
    e, data = read_stream(f"npz:{settings.path}", settings.rounds)
    stream = stream_of(e, data)
    fixed = [best_fixed(stream, radius) for radius in (float("inf"), e.server_radius)]
    best, best_in_ball = (stream.losses(model[None]) for model in fixed)
    found: list[Course] = []
    for name, step in STEPS.items():
        total = len(SHARES) if name == "universal" else _RUNS
        tell = _teller(pool.new_line(step.title, total), total, best)
        found += courses(name, e, data, stream, tell)
    return StreamResults(e, found, best, best_in_ball)


def _teller(line: Tell, total: int, best: Array) -> Callable[[Array], None]:
    """Returns a function that counts runs and shows their regret; grids may exceed ``total``."""
    counted = count(1)
    return lambda losses: line(min(next(counted), total), f"regret {(losses - best).sum():.1f}")


def report(settings: UniversalStreamSettings, found: StreamResults) -> Report:
    """Makes the table and the plot."""
    e, rows = found.experiment, summarize(found.courses, found.best, found.best_in_ball)
    told = f"{settings.path}: {e.num_rounds} rounds of {e.num_clients} rows"
    picture = _draw(found.courses, found.best)
    return Report([told, _CAPTION, _table(rows)], {"rows": rows}, {"regret.png": picture})


def summarize(courses: Sequence[Course], best: Array, best_in_ball: Array) -> list[Row]:
    """Returns a row for each course.

    Losses of the best fixed models are by rounds.

    Returns:
        ``server``, ``size`` (step size or radius), ``way`` (as ``Course`` has it), ``mean-loss``,
        ``regret``, ``regret-in-ball``, ``tried`` (sums of losses by size, None where it diverged).
    """
    return [
        {
            "server": course.name,
            "size": course.size,
            "way": course.way,
            "rounds": len(course.losses),
            "mean-loss": float(course.losses.mean()),
            "regret": float((course.losses - best).sum()),
            "regret-in-ball": float((course.losses - best_in_ball).sum()),
            "tried": {
                f"{size:g}": loss if np.isfinite(loss) else None
                for size, loss in course.tried.items()
            },
        }
        for course in courses
    ]


def _label(name: str, size: float, way: str) -> str:
    kind = "radius" if name == "universal" else "step"
    return f"{STEPS[name].title}, {kind} {size:g} ({way})"


def _table(rows: Sequence[Row]) -> Table:
    found = new_table(["server"], ["mean loss", "regret", "in the ball"])
    for row in rows:
        cells = (f"{row['mean-loss']:.4f}", f"{row['regret']:.1f}", f"{row['regret-in-ball']:.1f}")
        found.add_row(_label(row["server"], row["size"], row["way"]), *cells)
    return found


def _draw(courses: Sequence[Course], best: Array) -> bytes:
    """Plots regret against rounds."""
    figure, (axes,) = panels(1, size=(9, 4.5))
    colors = dict(zip(STEPS, COLORS, strict=False))
    styles = {"default": "-", "tuned": "--", "x 0.25": ":", "x 4": "-."}
    for course in courses:
        axes.plot(
            np.arange(1, len(best) + 1),
            np.cumsum(course.losses - best),
            styles[course.way],
            color=colors[course.name],
            label=_label(course.name, course.size, course.way),
        )
    axes.set(xlabel="round", ylabel="regret (nats), against the best fixed model of all")
    return finish(figure, axes)
