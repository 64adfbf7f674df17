"""Multitask linear regression of the MOLAR paper (Figures 2, 3, 7, 8, 9), on simulated tasks.

All estimators here depend on the rows only through their Gram products. So a trial draws each
task's rows once, keeps triangular matrices with the same products (``condense``), and takes all of
a figure's points from them: with n rows, the first n; with d columns, the first d. Each point has
the same distribution as if drawn alone; points of a trial are not independent of each other.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from engram.core.arrays import Array
from engram.simulations.job_pool import Progress, Row
from engram.tables.families import FamilyName
from engram.tables.lasso import DEBIASING_SCALE, LASSO_SCALE, debias
from engram.tables.median import trimmed_mean
from engram.tables.shrinkage import Option, Shared, combine, personalize
from engram.tables.simulation import disparate_sizes, sparse_parameters, spread_root
from engram.tables.site import Rows, SiteEstimate, condense, estimate_site, pool

SIGMA: Final = 0.1  # of the noise (Sec. 4.1)
_ROWS, _PARAMETERS, _SIZES = 201, 202, 203  # keys of random streams
_COMPARED: Final = ("ols", "lasso", "pool", "rm", "molar-soft", "molar")
_TRIMMED: Final = 0.1  # of the tasks, at either end (J.1)
SCALES: Final = (0.05, 0.35, 0.7, 1.0, 2.0)
"""Values of c_gamma / sigma in Figure 7: J.1's grid, since the text names none."""


class Evidence(NamedTuple):
    """The data that every method estimates coefficients from."""

    tasks: Sequence[Rows]  # their rows
    sites: Sequence[SiteEstimate]  # each task's own estimate
    shared: Shared  # their weighted median
    family: FamilyName  # the model

    @property
    def own(self) -> Array:
        """The tasks' own coefficients, shape (M, d)."""
        return np.stack([site.coef for site in self.sites])


class Estimator(NamedTuple):
    """A method."""

    title: str  # its name in the paper
    estimate: Callable[[Evidence], Array]  # returns all tasks' coefficients, shape (M, d)


def gather(tasks: Sequence[Rows], *, family: FamilyName = "linear") -> Evidence:
    """Fits each task alone, and takes the weighted median."""
    sites = [estimate_site(rows, family=family) for rows in tasks]
    return Evidence(tasks, sites, combine(sites), family)


def errors(evidence: Evidence, truth: Array, methods: Sequence[str]) -> dict[str, float]:
    """Returns, by method, the mean over tasks of the l1 error ``||b_m - beta_m||_1``.

    The tasks' parameters ``truth`` have shape (M, d). LASSO, RM and ML are only for linear models.
    """
    found = {name: METHODS[name].estimate(evidence) for name in methods}
    return {name: float(np.abs(b - truth).sum(axis=1).mean()) for name, b in found.items()}


def _pool(evidence: Evidence) -> Array:
    shared = pool(evidence.tasks, family=evidence.family).coef
    return np.tile(shared, (len(evidence.tasks), 1))


def _around(evidence: Evidence, center: Array, scale: float) -> Array:
    return debias(evidence.tasks, evidence.sites, center, scale)


def _molar(option: Option, c: float = 1.0) -> Callable[[Evidence], Array]:
    def estimate(evidence: Evidence) -> Array:
        shared = evidence.shared
        return np.stack([personalize(own, shared, option=option, c=c) for own in evidence.sites])

    return estimate


METHODS: Final = {
    "ols": Estimator("OLS", lambda e: e.own),
    "lasso": Estimator("LASSO", lambda e: _around(e, np.zeros(e.own.shape[1]), LASSO_SCALE)),
    "pool": Estimator("Pool", _pool),
    "rm": Estimator("RM", lambda e: _around(e, trimmed_mean(e.own, _TRIMMED), DEBIASING_SCALE)),
    "ml": Estimator("ML", lambda e: _around(e, e.shared.coef, DEBIASING_SCALE)),
    "molar-soft": Estimator("MOLAR, soft", _molar("soft")),
    "molar": Estimator("MOLAR", _molar("hard")),
} | {f"molar-{c:g}": Estimator(f"c = {c:g}", _molar("hard", c)) for c in SCALES}


class Point(NamedTuple):
    """A point of a figure."""

    panel: str  # the quantity that varies, or is fixed, in its panel
    series: str  # the curve that it is on; empty if every method has its own
    x: int  # its place on the axis
    size: int  # n, rows of a task, or their mean
    tasks: int  # M
    differing: int  # s
    dim: int  # d


class Design(NamedTuple):
    """The specification of a figure."""

    points: tuple[Point, ...]  # its points
    methods: tuple[str, ...]  # names of ``METHODS``
    disparate: bool = False  # whether covariates are correlated and sizes unequal (J.3.2)


def _varied(differing: int, tasks: int = 30, size: int = 5000, dim: int = 300) -> tuple[Point, ...]:
    """Returns the points of Figures 2, 7, 8 and 9: n, M and s vary, each in its own panel."""
    point = Point("", "", 0, size, tasks, differing, dim)
    ns, ms = (1000, 2000, 3000, 5000, 7500, 10_000), (5, 10, 20, 30, 40, 50)
    ss = (5, 20, 40, 70, 100, 150, 200, 250, 300)
    return (
        *(point._replace(panel="n", x=n, size=n) for n in ns),
        *(point._replace(panel="M", x=m, tasks=m) for m in ms),
        *(point._replace(panel="s", x=s, differing=s) for s in ss),
    )


def _growing() -> tuple[Point, ...]:
    """Returns the points of Figure 3: d varies, with s = rho d."""
    dims, tasks, parts = (50, 100, 150, 200, 250, 300), (10, 30, 50), (10, 5)
    return tuple(
        Point(f"rho = {1 / part:g}", f"M = {m}", d, 10_000, m, d // part, d)
        for part in parts
        for m in tasks
        for d in dims
    )


FIGURES: Final = {
    2: Design(_varied(20), _COMPARED),
    3: Design(_growing(), ("ols", "molar")),
    7: Design(_varied(20), ("ols", *(f"molar-{c:g}" for c in SCALES))),
    8: Design(_varied(20), _COMPARED, disparate=True),
    9: Design(_varied(40), ("ols", "rm", "ml", "molar")),
}


def run_trial(figure: int, design: Design, number: int, report: Progress) -> list[Row]:
    """Draws tasks, and measures every method's error at every point of a figure.

    All randomness depends on the trial's number.

    Returns:
        A row for each point, with its fields, ``figure``, ``trial``, and ``errors`` by method: the
        mean over tasks of ``||b_m - beta_m||_1``.
    """
    sizes = [_sizes(design, point, number) for point in design.points]
    dim, count = max(p.dim for p in design.points), max(p.tasks for p in design.points)
    steps = count + len(design.points)
    drawn = []
    for m in range(count):
        rng = np.random.default_rng([_ROWS, number, m])
        root = spread_root(rng, dim) if design.disparate else np.eye(dim)
        wanted = {own[m] for own in sizes if m < len(own)}
        drawn.append({n: few._replace(x=few.x @ root) for n, few in _noise(rng, wanted, dim)})
        report(m + 1, steps)
    rows = []
    for i, (point, own) in enumerate(zip(design.points, sizes, strict=True)):
        generator = np.random.default_rng([_PARAMETERS, number, point.dim])
        truth = sparse_parameters(generator, point.tasks, point.dim, point.differing)
        tasks = [_task(drawn[m][n], truth[m]) for m, n in enumerate(own)]
        found = errors(gather(tasks), truth, design.methods)
        rows.append({"figure": figure, "trial": number, **point._asdict(), "errors": found})
        report(count + i + 1, steps)
    return rows


def _sizes(design: Design, point: Point, trial: int) -> list[int]:
    """Returns n_m, at least 2 d.

    With hardly more than d rows, as some tasks have in J.3.2, the error of OLS has no finite
    variance, and one task would dominate the mean.
    """
    if not design.disparate:
        return [point.size] * point.tasks
    rng = np.random.default_rng([_SIZES, trial, point.tasks])
    sizes: list[int] = disparate_sizes(rng, point.tasks, point.size, 2 * point.dim).tolist()
    return sizes


def _noise(rng: np.random.Generator, sizes: Iterable[int], dim: int) -> Iterable[tuple[int, Rows]]:
    """Yields rows of standard normal x and y, condensed: the first n, for each n."""
    few, seen = Rows(np.empty((0, dim)), np.empty(0), np.empty(0)), 0
    for size in sorted(sizes):
        (x, y, counts), new = few.counted(), rng.standard_normal((size - seen, dim + 1))
        x, y = np.vstack([x, new[:, :-1]]), np.append(y, new[:, -1])
        few, seen = condense(Rows(x, y, np.append(counts, np.ones(len(new))))), size
        yield size, few


def _task(noise: Rows, beta: Array) -> Rows:
    x = noise.x[:, : len(beta)]
    return noise._replace(x=x, y=x @ beta + SIGMA * noise.y)
