"""MOLAR's errors on simulated tasks, compared with other estimators'.

``python -m tests.evidence.molar`` prints errors, means over trials and tasks, and their ratios to
those of each task's own estimate (OLS, or maximum likelihood), and coverage and length of
intervals.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from engram.core.arrays import Array
from engram.tables.families import FamilyName
from engram.tables.intervals import own_interval, shared_half_width, site_interval
from engram.tables.lasso import high_dim, lasso, transfer_bounds
from engram.tables.shrinkage import combine
from engram.tables.simulation import sparse_parameters
from engram.tables.site import Rows, condense, estimate_site
from engram.tables.studies.regression_trials import METHODS, errors, gather
from tests.tables.simulated import linear_rows, logistic_rows

_SIGMA: Final = 0.1  # of the noise of linear models (Sec. 4.1)


class Simulation(NamedTuple):
    """A simulation."""

    family: FamilyName  # linear, or logistic
    dim: int  # d
    tasks: int  # M
    size: int  # n
    differing: int  # s


PAPER: Final = Simulation("linear", 300, 30, 5000, 20)
ALIKE: Final = PAPER._replace(differing=0)
LOGISTIC: Final = Simulation("logistic", 20, 20, 1000, 2)
_LOGISTIC_METHODS: Final = ("ols", "pool", "molar-soft", "molar")


def compare(simulation: Simulation, methods: Sequence[str], *, trials: int) -> dict[str, Array]:
    """Returns each method's l1 error in every trial, a mean over tasks."""
    found: list[dict[str, float]] = []
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        truth = sparse_parameters(rng, simulation.tasks, simulation.dim, simulation.differing)
        if simulation.family == "linear":
            # Condensed one task at a time, since all rows would take much more memory.
            tasks = [condense(linear_rows(rng, beta, simulation.size, _SIGMA)) for beta in truth]
        else:
            tasks = [logistic_rows(rng, beta, simulation.size) for beta in truth]
        found.append(errors(gather(tasks, family=simulation.family), truth, methods))
    return {name: np.array([each[name] for each in found]) for name in methods}


def compare_high_dim(*, trials: int, dim: int = 200, size: int = 100) -> dict[str, dict[str, Any]]:
    """Compares Algorithm 3 with LASSOs: 10 tasks, 10 shared coefficients, 3 of each task's own.

    Returns:
        By method, ``error`` (l1, mean over tasks and trials) and ``seconds`` of a trial. The
        LASSOs' strengths are the best in hindsight of lambda_m times 1/4, 1/2, 1, 2, 4 and 8.
    """
    tried: dict[str, dict[float, list[tuple[float, float]]]] = {}
    for trial in range(trials):
        tasks, truth = _sparse_tasks(np.random.default_rng(trial), dim, size)
        for (name, scale), way in _ways(tasks, dim, size).items():
            begun = time.perf_counter()
            error = float(np.abs(way() - truth).sum(axis=1).mean())
            seconds = time.perf_counter() - begun
            tried.setdefault(name, {}).setdefault(scale, []).append((error, seconds))
    means = {name: [np.mean(each, axis=0) for each in of.values()] for name, of in tried.items()}
    best = {name: min(each, key=lambda mean: mean[0]) for name, each in means.items()}
    return {name: {"error": float(e), "seconds": float(s)} for name, (e, s) in best.items()}


def _ways(
    tasks: Sequence[Rows], dim: int, size: int
) -> dict[tuple[str, float], Callable[[], Array]]:
    """Returns functions that estimate all coefficients, by method and scale of its strength."""
    whole = Rows(np.concatenate([r.x for r in tasks]), np.concatenate([r.y for r in tasks]))
    ways: dict[tuple[str, float], Callable[[], Array]] = {
        ("Algorithm 3", 1): lambda: high_dim(tasks, _SIGMA)[0]
    }
    for scale in (0.25, 0.5, 1, 2, 4, 8):
        own, total = transfer_bounds(np.full(len(tasks), float(size)), dim, scale * _SIGMA)
        ways["a LASSO for each task", scale] = partial(_lassos, tasks, own[0])
        ways["one LASSO for all", scale] = partial(_lassos, [whole], total)
    return ways


def _lassos(tasks: Sequence[Rows], strength: float) -> Array:
    return np.stack([lasso(rows, strength) for rows in tasks])


def _sparse_tasks(rng: np.random.Generator, dim: int, size: int) -> tuple[list[Rows], Array]:
    """Draws tasks: ten coefficients of a unit vector, and for each three more, of norm 1/2."""
    shared = np.zeros(dim)
    shared[rng.choice(dim, 10, replace=False)] = rng.standard_normal(10)
    truth = np.tile(shared / np.linalg.norm(shared), (10, 1))
    for own in truth:
        more = rng.standard_normal(3)
        own[rng.choice(dim, 3, replace=False)] += more / (2 * np.linalg.norm(more))
    return [linear_rows(rng, beta, size, _SIGMA) for beta in truth], truth


class Coverage(NamedTuple):
    """Coverage and length of intervals of level 0.95."""

    shared: float  # coverage of coefficients that are shared
    differing: float  # coverage of those in which a task differs
    length: float  # sum of the lengths, relative to least squares'


def coverage(
    gap: float, *, trials: int, dim: int = 100, tasks: int = 100, size: int = 1000
) -> Coverage:
    """Simulates intervals of tasks that each differ in five coefficients.

    The difference is ``gap`` sigma / sqrt(n). ``dim``, ``tasks`` and ``size`` are d, M and n.
    """
    found = []
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        truth = np.tile(rng.standard_normal(dim), (tasks, 1))
        differs = np.zeros((tasks, dim), dtype=bool)
        for row in differs:
            row[rng.choice(dim, 5, replace=False)] = True
        signs = rng.choice([-1.0, 1.0], truth.shape)
        truth += differs * signs * gap * _SIGMA / np.sqrt(size)
        sites = [estimate_site(linear_rows(rng, beta, size, _SIGMA)) for beta in truth]
        shared = combine(sites)
        half = shared_half_width(sites, shared)
        low, high = np.stack([site_interval(site, shared, half) for site in sites], axis=1)
        own_low, own_high = np.stack([own_interval(site) for site in sites], axis=1)
        covered = (low <= truth) & (truth <= high)
        length = (high - low).sum() / (own_high - own_low).sum()
        found.append((covered[~differs].mean(), covered[differs].mean(), length))
    return Coverage(*np.mean(found, axis=0).tolist())


def _regression(trials: int) -> list[Table]:
    compared = ((PAPER, METHODS), (ALIKE, METHODS), (LOGISTIC, _LOGISTIC_METHODS))
    return [_errors(each, compare(each, tuple(names), trials=trials)) for each, names in compared]


def _errors(simulation: Simulation, found: Mapping[str, Array]) -> Table:
    fixed = ", ".join(f"{name} = {v}" for name, v in zip("dMns", simulation[1:], strict=True))
    own = "MLE" if simulation.family == "logistic" else "OLS"
    columns = ("method", "l1 error", "± s.e.", f"/ {own}", "MOLAR / it")
    table = Table(*columns, title=f"{simulation.family}, {fixed}, {len(found['ols'])} trials")
    for name, each in found.items():
        error, spread = each.mean(), each.std() / max(1, len(each) - 1) ** 0.5
        ratios = [f"{error / found['ols'].mean():.3f}", f"{found['molar'].mean() / error:.3f}"]
        title = own if name == "ols" else METHODS[name].title
        table.add_row(title, f"{error:.4f}", f"{spread:.4f}", *ratios)
    return table


def _high_dim(trials: int) -> list[Table]:
    table = Table(
        "method", "l1 error", "seconds", title=f"d = 200, M = 10, n = 100, {trials} trials"
    )
    for name, found in compare_high_dim(trials=trials).items():
        table.add_row(name, f"{found['error']:.3f}", f"{found['seconds']:.2f}")
    return [table]


def _intervals(trials: int) -> list[Table]:
    table = Table(
        "gap / (sigma / sqrt(n))",
        "coverage, shared",
        "coverage, differing",
        "length / OLS",
        title=f"intervals of level 0.95, d = 100, M = 100, n = 1000, s = 5, {trials} trials",
    )
    for gap in (20.0, 3.0):
        table.add_row(f"{gap:g}", *(f"{value:.3f}" for value in coverage(gap, trials=trials)))
    return [table]


_PARTS: Final = {"regression": _regression, "intervals": _intervals, "high-dim": _high_dim}


def main(
    part: Annotated[str, typer.Option(help=f"One of {', '.join(_PARTS)}; default all.")] = "",
    trials: Annotated[int, typer.Option(min=1, help="Of each.")] = 10,
) -> None:
    """Prints tables."""
    if part not in ("", *_PARTS):
        raise typer.BadParameter(f"must be one of {', '.join(_PARTS)}, got {part!r}")
    with threadpool_limits(1):
        for name in [part] if part else list(_PARTS):
            Console().print(*_PARTS[name](trials), sep="\n")


if __name__ == "__main__":
    typer.run(main)
