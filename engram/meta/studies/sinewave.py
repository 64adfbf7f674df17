"""Sinewave regression: Table 3 and Figures 1 to 3 of the MOML paper, with published values."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from rich.table import Table

from engram.meta.studies.jobs import MATCHED, Case, measure
from engram.meta.studies.published import SINEWAVE_PUBLISHED, SINEWAVE_STEPS, TABLE_3
from engram.meta.studies.report import by_name, cells, draw_convergence, figures_of, title_of
from engram.meta.studies.settings import SinewaveSettings
from engram.meta.studies.sinewave_tasks import ALPHA, UNSEEN, Sinewave
from engram.simulations.job_pool import Pool, Row
from engram.studies.figures import COLORS, finish, new_table, panels, plus_minus
from engram.studies.study import Report
from engram.studies.summaries import grouped

# Of eta: that of Sec. 6.1, and three smaller values, since all of its own may diverge with exact
# Hessians, or with a memory, where the authors' code multiplies by beta.
GRID: Final = (0.1, 0.05, 0.01, 0.005, 0.001, 0.0005, 0.0002, 0.0001)

_CAPTION: Final = """\
Squared error on 5 unseen tasks after 10 steps on 10 rows (mean over 20 draws
of these), mean ± s.d. over seeds, and the paper's; error on the training tasks;
milliseconds an iteration of one seed, of several at once, and the paper's"""


def work(settings: SinewaveSettings, pool: Pool) -> list[Row]:
    """Trains and tests all methods."""
    hessian = "first-order" if settings.curvature == "first-order" else "exact"
    steps = SINEWAVE_PUBLISHED if settings.published else SINEWAVE_STEPS[hessian]
    case = Case(Sinewave, settings.batch_sizes, ALPHA, steps, GRID)
    return measure(settings, case, pool)


def report(settings: SinewaveSettings, done: Sequence[Row]) -> Report:
    """Makes the table and the plots."""
    rows = summarize(done)
    pictures = {"convergence.png": draw_convergence(done, "training error (1)", log=True)}
    for size in settings.batch_sizes:
        runs = [run for run in done if run["batch-size"] == size]
        pictures[f"fits-k{size}.png"] = _draw_fits(runs)
    return Report([_CAPTION, _table(rows)], {"rows": rows}, pictures)


def summarize(done: Sequence[Row]) -> list[Row]:
    """Returns a row for each batch size and method, over its seeds.

    It has the entries of ``figures_of``, and ``test-error``, the mean squared error on unseen
    tasks, which is infinite if a run diverged. Published values are None where there are none.
    """
    return [_row(size, name, runs) for (size, name), runs in by_name(done).items()]


def _row(size: int, name: str, runs: Sequence[Row]) -> Row:
    tests = np.array([np.mean(run["tests"]) for run in runs], dtype=float)
    tests[~np.isfinite(tests)] = np.inf
    known = TABLE_3.get(name) if size in (1, 3) else None
    at = 0 if size == 1 else 1
    several = len(tests) > 1 and np.isfinite(tests).all()
    return {
        "batch-size": size,
        **figures_of(name, runs),
        "test-error": float(np.mean(tests)),
        "test-error-std": float(np.std(tests, ddof=1)) if several else None,
        "published": known and known.error[at],
        "published-std": known and known.deviation[at],
        "published-ms": known and known.ms[at],
    }


def _table(rows: Sequence[Row]) -> Table:
    found = new_table(["method"], ["beta", "eta", "test error", "paper", "train", "ms", "paper"])
    for (size,), some in grouped(rows, "batch-size").items():
        found.add_section()
        found.add_row(f"K = {size}")
        for row in some:
            found.add_row(
                *cells(row, plus_minus(row["test-error"], row["test-error-std"])),
                plus_minus(row["published"], row["published-std"]),
                "-" if row["diverged"] else f"{row['train-error']:.2f}",
                f"{row['ms']:.2f}",
                plus_minus(row["published-ms"], None, 1),
            )
    return found


def _draw_fits(runs: Sequence[Row]) -> bytes:
    """Plots the first seed's fits of the unseen tasks (Figures 2 and 3)."""
    figure, all_axes = panels(len(UNSEEN), size=(3.2 * len(UNSEEN), 3.4), sharex=True)
    x = np.linspace(-5, 5, len(runs[0]["fits"][0]))
    for task, axes in enumerate(all_axes):
        amplitude, phase = UNSEEN[task]
        axes.plot(x, amplitude * np.sin(x + phase), "k--", lw=2, label="truth")
        for color, ((_, name), found) in zip(COLORS, by_name(runs).items(), strict=False):
            if name != MATCHED:
                axes.plot(x, found[0]["fits"][task], color=color, lw=1.2, label=title_of(name))
        axes.set(title=f"{amplitude:.2f} sin(x + {phase:.2f})", xlabel="x", ylim=(-6.5, 6.5))
    figure.suptitle(f"K = {runs[0]['batch-size']}: after 10 steps on 10 rows of an unseen task")
    return finish(figure, all_axes[0])
