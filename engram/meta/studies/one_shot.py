"""One-shot classification: Table 4 of the MOML paper, with the published values."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from rich.table import Table

from engram.meta.studies.few_shot import WAYS, load_few_shot
from engram.meta.studies.jobs import Case, measure
from engram.meta.studies.one_shot_tasks import OneShot
from engram.meta.studies.published import ONE_SHOT_PUBLISHED, ONE_SHOT_STEPS, SPLITS, TABLE_4
from engram.meta.studies.report import by_name, cells, draw_convergence, figures_of
from engram.meta.studies.settings import OneShotSettings
from engram.simulations.job_pool import Pool, Row
from engram.studies.figures import new_table, plus_minus
from engram.studies.study import Report
from engram.studies.summaries import mean_and_error

# Of eta, on which the paper is silent; below, nothing moves.
GRID: Final = (1.0, 0.3, 0.1, 0.05, 0.02)

_CAPTION: Final = """\
Accuracy in % after one image of each class of an unseen task, from a fresh copy
of the model in every episode: mean over episodes and seeds ± half the 95 %
interval over episodes; s.d. over seeds; the paper's, which is something else
(its model goes on learning from episode to episode); on training tasks"""


def work(settings: OneShotSettings, pool: Pool) -> list[Row]:
    """Trains and tests all methods."""
    # The authors' alpha and test step size; ours adapt more to a single shot.
    alpha, lr = (0.01, 0.05) if settings.published else (0.5, 0.5)
    name, size = settings.dataset, WAYS[settings.dataset]  # one row of each class
    steps = ONE_SHOT_PUBLISHED[name] if settings.published else ONE_SHOT_STEPS
    make = functools.partial(_tasks, name, settings.data_dir.absolute(), lr)
    return measure(settings, Case(make, (size,), alpha, {size: steps}, GRID), pool)


def _tasks(dataset: str, data_dir: Path, lr: float) -> OneShot:
    return OneShot(load_few_shot(dataset, data_dir), SPLITS[dataset], lr=lr)


def report(settings: OneShotSettings, done: Sequence[Row]) -> Report:
    """Makes the table and the plot."""
    rows = summarize(done, settings.dataset)
    picture = draw_convergence(done, "share of wrong answers", log=False)
    return Report([_CAPTION, _table(rows)], {"rows": rows}, {"convergence.png": picture})


def summarize(done: Sequence[Row], dataset: str) -> list[Row]:
    """Returns a row for each method, over its seeds.

    It has the entries of ``figures_of``, and ``accuracy``, the mean over episodes and seeds, with
    half the width of its 95 % interval, and the standard deviation over seeds. All seeds are tested
    in the same episodes, so an episode counts once, with its mean over seeds. They are None if a
    run diverged, and published values are None where there are none.
    """
    return [_row(dataset, name, runs) for (_, name), runs in by_name(done).items()]


def _row(dataset: str, name: str, runs: Sequence[Row]) -> Row:
    found = np.array([run["tests"] for run in runs], dtype=float)
    accuracy, width = mean_and_error(found.mean(0), 1.96)
    mean, deviation = TABLE_4[dataset].get(name, (None, None))
    figures = figures_of(name, runs)
    fine = not figures["diverged"]
    return {
        **figures,
        "accuracy": float(accuracy) if fine else None,
        "accuracy-interval": float(width) if fine and width is not None else None,
        "accuracy-std": float(found.mean(1).std(ddof=1)) if fine and len(runs) > 1 else None,
        "published": mean and mean / 100,
        "published-std": deviation and deviation / 100,
    }


def _table(rows: Sequence[Row]) -> Table:
    found = new_table(["method"], ["beta", "eta", "accuracy", "± seeds", "paper", "train", "ms"])
    for row in rows:
        found.add_row(
            *cells(row, _percent(row["accuracy"], row["accuracy-interval"])),
            _percent(row["accuracy-std"]),
            _percent(row["published"], row["published-std"]),
            "-" if row["diverged"] else _percent(1 - row["train-error"]),
            f"{row['ms']:.2f}",
        )
    return found


def _percent(share: float | None, error: float | None = None) -> str:
    return plus_minus(share and 100 * share, error and 100 * error, 1)
