"""Sinewave regression: Table 3 and Figures 1 to 3 of the MOML paper, with published values."""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from engram.cli.console import new_table, plus_minus
from engram.cohort.dense_gradients import SQUARED_ERROR
from engram.cohort.stacked_models import Layout, dense_stacks, expand, outputs
from engram.compare.figures import COLORS, finish, panels
from engram.core.streams import Stream, torch_generator
from engram.core.types import Batch, Params
from engram.meta.meta_gradient import fine_tune
from engram.meta.studies.jobs import (
    MATCHED,
    Case,
    by_name,
    cells,
    draw_convergence,
    figures_of,
    measure,
    title_of,
)
from engram.meta.studies.published import SINEWAVE_PUBLISHED, SINEWAVE_STEPS, TABLE_3
from engram.meta.studies.settings import SinewaveSettings
from engram.meta.studies.sweep import Problem
from engram.networks.built_in import build_model
from engram.scoring.intervals import deviation
from engram.simulations.job_pool import Pool, Row
from engram.studies.study import Report
from engram.studies.summaries import grouped

# Of eta: that of Sec. 6.1, and three smaller values, since all of its own may diverge with exact
# Hessians, or with a memory, where the authors' code multiplies by beta.
GRID: Final = (0.1, 0.05, 0.01, 0.005, 0.001, 0.0005, 0.0002, 0.0001)
_CAPTION: Final = """\
Squared error on 5 unseen tasks after 10 steps on 10 rows (mean over 20 draws
of these), mean ± s.d. over seeds, and the paper's; error on the training tasks;
milliseconds an iteration of one seed, of several at once, and the paper's"""
ALPHA: Final = 0.01  # of every adaptation, in training and in testing
SHOTS: Final = 10
UNSEEN: Final = (
    # (A, phi): numpy.random.RandomState(i).uniform(1, 5), then uniform(pi/5, pi), for i = 0..4,
    # which are the paper's ("randomly sampled"), by its authors' code.
    (3.1952540157, 2.4257854582),
    (2.6680880188, 2.4386914402),
    (2.7439796086, 0.6934782583),
    (3.2031916103, 2.4080881285),
    (4.8681193561, 2.0036631818),
)
_SETS: Final = 20  # sets of shots, over which tests average to depend less on chance


class Sinewave(Problem):
    """The tasks y = A sin(x + phi), x in [-5, 5], and an MLP of two hidden layers of 40."""

    def __init__(self) -> None:
        """Draws the rows that errors are measured on, the same for all runs and methods."""
        amplitudes = torch.arange(1.0, 6.0).repeat_interleave(5)
        phases = (torch.arange(1.0, 6.0) * math.pi / 5).repeat(5)
        self._waves = torch.stack([amplitudes, phases], 1)
        self._unseen = torch.tensor(UNSEEN)
        self.tasks = len(self._waves)
        self.network = build_model("mlp", input_shape=(1,), outputs=1, hidden=(40, 40))
        self.layout = Layout.of(self.start(0))
        self.loss = dense_stacks(self.layout, SQUARED_ERROR)
        self._adapt = fine_tune(self.loss, lr=ALPHA, steps=1)
        self._adapt_to_unseen = fine_tune(self.loss, lr=ALPHA, steps=10)
        generator = torch_generator(0, Stream.EVALUATION)
        self._seen_points = torch.rand(self.tasks, 200, generator=generator)
        self._shots = torch.rand(_SETS * len(UNSEEN), SHOTS, generator=generator)
        self._points = torch.rand(_SETS * len(UNSEEN), 100, generator=generator)

    def batch(self, tasks: Tensor, uniforms: Tensor) -> Batch:
        """Returns rows of training tasks."""
        return _rows(self._waves[tasks], uniforms)

    def error(self, w: Params, method: str) -> Tensor:
        """Returns Eq. (1), with 100 rows of each task to adapt to and 100 others to score on."""
        del method
        runs = len(next(iter(w.values())))
        x, y = _rows(self._waves.expand(runs, -1, -1), self._seen_points.expand(runs, -1, -1))
        adapted = self._adapt(expand(w, self.tasks), (x[:, :, :100], y[:, :, :100]))
        return self.loss(adapted, (x[:, :, 100:], y[:, :, 100:])).mean(1)

    def measure(self, w: Params, method: str) -> list[dict[str, Any]]:
        """Returns each run's errors on the unseen tasks, and the curves fitted to them."""
        del method
        pairs = zip(*(part.tolist() for part in self.test(w)), strict=True)
        return [{"tests": errors, "fits": fits} for errors, fits in pairs]

    def test(self, w: Params) -> tuple[Tensor, Tensor]:
        """Adapts to each unseen task in 10 steps on 10 rows, and scores on 100 others.

        Returns:
            Mean squared errors (r, 5), averages over 20 such adaptations, each of the meta-model to
            other rows; and outputs of the first ones for 100 inputs from -5 to 5, (r, 5, 100).
        """
        runs, each = len(next(iter(w.values()))), len(UNSEEN)
        waves = self._unseen.repeat(_SETS, 1).expand(runs, -1, -1)
        shots = _rows(waves, self._shots.expand(runs, -1, -1))
        points = _rows(waves, self._points.expand(runs, -1, -1))
        adapted = self._adapt_to_unseen(expand(w, _SETS * each), shots)
        errors = self.loss(adapted, points).view(runs, _SETS, each).mean(1)
        x, _ = _rows(self._unseen.unsqueeze(0), torch.linspace(0, 1, 100).expand(1, each, -1))
        first = {name: leaf[:, :each] for name, leaf in adapted.items()}
        fits = outputs(self.layout, first, x.expand(runs, -1, -1, -1))
        return errors, fits[..., 0]


def _rows(waves: Tensor, uniforms: Tensor) -> Batch:
    """Returns inputs and targets (..., k, 1) of waves (..., 2), for uniforms (..., k) in [0, 1)."""
    x = 10 * uniforms - 5
    amplitude, phase = waves.unsqueeze(-2).unbind(-1)
    return x.unsqueeze(-1), (amplitude * torch.sin(x + phase)).unsqueeze(-1)


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
    return {
        "batch-size": size,
        **figures_of(name, runs),
        "test-error": float(np.mean(tests)),
        "test-error-std": deviation(tests) if np.isfinite(tests).all() else None,
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
