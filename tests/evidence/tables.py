"""Regressions for tables with tasks: every reference and MOLAR, on simulated and on real tables.

``python -m tests.evidence.tables`` prints held-out losses as ratios to the best reference's (a
constant, pooling with one or with own intercepts, each task's ridge, LASSO or plain regression, a
mixed model, RM), with paired intervals; then, coverage and length of intervals by how far a
coefficient is from the others'. ``--pisa pisa2003.npz`` adds real tables. Constants are
chosen without the rows that are scored.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.table import Table as Printed
from threadpoolctl import threadpool_limits

from engram.data.readers.npz import read_npz
from engram.data.tables.tables import Table
from engram.scoring.intervals import crossed
from engram.tables.borrowing_intervals import honest_interval, suggest
from engram.tables.families import FAMILIES, FamilyName
from engram.tables.intervals import Intervals, own_interval, shared_half_width, site_interval
from engram.tables.shrinkage import combine
from engram.tables.site import Rows, estimate_site
from engram.tables.studies.comparison import Shares, SplitScore, compare_once

OURS: Final = ("MOLAR, hard", "MOLAR, soft", "MOLAR, adaptive")
GAPS: Final = (0, 1, 2, 3, 4, 6, 10, 20)
SHARES: Final = Shares(0.4, 0.1)
_COUNTRY: Final = "DEU"  # of schools
_PUPILS: Final = 25  # of a school, at least


class Design(NamedTuple):
    """A simulated table: tasks' coefficients scatter, or differ in few places, or do not differ."""

    tasks: int
    dim: int  # d
    size: int  # rows of a task to learn from and to choose constants by
    differing: int = 0  # coefficients of a task that differ from the shared ones, by ``gap``
    gap: float = 0.0
    scatter: float = 0.0  # standard deviation of all coefficients over tasks
    strength: float = 1.0  # of the shared coefficients
    family: FamilyName = "linear"
    base: float = 0.0  # mean of the intercepts, whose standard deviation is 1, or 1/2 for classes
    correlation: float = 0.0  # of any two columns

    def draw(self, rng: np.random.Generator) -> Table:
        """Draws coefficients, and twice as many rows: half of them are for scoring."""
        shared = self.strength * rng.normal(size=self.dim)
        beta = shared + self.scatter * rng.normal(size=(self.tasks, self.dim))
        for own in beta:
            places = rng.choice(self.dim, self.differing, replace=False)
            own[places] += self.gap * rng.choice([-1, 1], self.differing)
        linear = self.family == "linear"
        intercepts = self.base + (1.0 if linear else 0.5) * rng.normal(size=self.tasks)
        task = np.repeat(np.arange(self.tasks), 2 * self.size)
        own, common = (rng.normal(size=(len(task), k)) for k in (self.dim, 1))
        x = np.sqrt(1 - self.correlation) * own + np.sqrt(self.correlation) * common
        eta = (x * beta[task]).sum(axis=1) + intercepts[task]
        if linear:
            y = eta + rng.normal(size=len(task))
        else:
            y = (rng.random(len(task)) < FAMILIES["logistic"].mean(eta)).astype(np.float64)
        return Table(x, y, task, [f"x{k}" for k in range(self.dim)])


SIMULATED: Final[dict[str, Design]] = {
    "n = d / 2, 1 of 12 differs": Design(20, 12, 6, differing=1, gap=1.0),
    "n = 2 d, 1 of 8 differs": Design(20, 8, 16, differing=1, gap=1.5),
    "n = 3 d, all scatter": Design(20, 6, 18, scatter=0.3),
    "n = 4 d, all alike": Design(20, 5, 20),
    "n = 5 d, nothing shared": Design(20, 6, 30, scatter=1.0, strength=0.0),
    "n = 10 d, correlated, 1 of 8 differs": Design(
        20, 8, 80, differing=1, gap=1.0, correlation=0.5
    ),
    "n = 50 d, 1 of 6 differs": Design(20, 6, 300, differing=1, gap=1.0),
    "classes, 6 %, n = 7 d": Design(29, 6, 40, strength=0.4, family="logistic", base=-3.1),
    "classes, n = 20 d, 1 of 6 differs": Design(
        20, 6, 120, differing=1, gap=1.5, strength=0.5, family="logistic"
    ),
}


def simulated(design: Design, trials: int) -> Iterator[dict[str, SplitScore]]:
    """Yields the scores of all methods in every trial, each with a table of its own."""
    for trial in range(trials):
        rng = np.random.default_rng([11, trial])
        yield compare_once(design.draw(rng), design.family, SHARES, rng)


def pisa(path: Path) -> dict[str, tuple[Table, FamilyName, Shares]]:
    """Returns real tables: countries, and the schools of one, with scores and with few low ones."""
    data = read_npz(path)
    x, y = np.asarray(data["x"], float), np.asarray(data["y"], float)[:, 0]
    names = [str(name) for name in data["x_names"]]
    labels = np.asarray(data["task_names"])[data["task"]]
    countries = _few(labels, 100, np.random.default_rng(0))
    school = np.asarray(data["school"])
    own = np.flatnonzero(labels == _COUNTRY)
    some, counts = np.unique(school[own], return_counts=True)
    own = own[np.isin(school[own], some[counts >= _PUPILS][:40])]
    low = (y < np.quantile(y[own], 0.06)).astype(np.float64)
    return {
        "PISA, 41 countries": (
            Table(x[countries], y[countries], labels[countries], names),
            "linear",
            SHARES,
        ),
        "PISA, 40 schools": (Table(x[own], y[own], school[own], names), "linear", Shares(0.6, 0.2)),
        "PISA, 40 schools, lowest 6 %": (
            Table(x[own], low[own], school[own], names),
            "logistic",
            Shares(0.6, 0.2),
        ),
    }


def _few(labels: Any, most: int, rng: np.random.Generator) -> Any:
    """Returns at most so many rows of each task."""
    each = [rng.permutation(np.flatnonzero(labels == one))[:most] for one in np.unique(labels)]
    return np.sort(np.concatenate(each))


class Verdict(NamedTuple):
    """A table's result: losses as ratios to that of the best reference."""

    reference: str  # the best reference
    ratios: dict[str, float]  # every method's loss, as a ratio to it
    low: float  # limits of adaptive MOLAR's ratio, by paired differences
    high: float
    reasons: dict[str, str]  # why some methods could not be fitted


def verdict(trials: Sequence[Mapping[str, SplitScore]], ratio: float) -> Verdict:
    """Summarizes a table's trials; ``ratio`` as for ``crossed``, 0 if they share no rows."""
    reasons = {name: s.reason for trial in trials for name, s in trial.items() if s.reason}
    names = [name for name in trials[0] if name not in reasons]
    each = {name: np.array([trial[name].tasks for trial in trials]) for name in names}
    losses = {name: float(values.mean()) for name, values in each.items()}
    best = min((name for name in losses if name not in OURS), key=lambda name: losses[name])
    _, low, high = crossed(each[OURS[-1]] - each[best], ratio)
    ratios = {name: loss / losses[best] for name, loss in losses.items()}
    return Verdict(best, ratios, 1 + low / losses[best], 1 + high / losses[best], reasons)


def coverage(family: FamilyName, *, trials: int, tasks: int = 10, dim: int = 4) -> list[Any]:
    """Returns coverage and mean length, as a ratio to a task's own, of intervals of level 0.95.

    One task's first coefficient is some standard errors away from that of the others. A task has
    60 rows, and 300 if it is of classes.

    Returns:
        A row for each gap: ``gap``, and by kind of interval, coverage and length.
    """
    size = 60 if family == "linear" else 300
    found = []
    for gap in GAPS:
        hits: dict[str, list[tuple[bool, float]]] = {}
        for trial in range(trials):
            rng = np.random.default_rng([12, gap, trial])
            for kind, (low, high, truth, own) in _intervals(rng, family, gap, size, tasks, dim):
                hits.setdefault(kind, []).append((low <= truth <= high, (high - low) / own))
        means = {kind: np.mean(np.array(values, float), axis=0) for kind, values in hits.items()}
        found.append({"gap": gap, **{kind: values.tolist() for kind, values in means.items()}})
    return found


def _intervals(
    rng: np.random.Generator, family: FamilyName, gap: int, size: int, tasks: int, dim: int
) -> Iterator[tuple[str, tuple[float, float, float, float]]]:
    """Yields by kind: limits, the truth, and the length of the task's own interval."""
    beta = np.tile(rng.normal(size=dim) * (1.0 if family == "linear" else 0.4), (tasks, 1))
    error = (1.0 if family == "linear" else 2.2) / np.sqrt(size)  # about a standard error
    beta[0, 0] += gap * error * rng.choice([-1, 1])
    sites = []
    for own in beta:
        x = rng.normal(size=(size, dim))
        eta = x @ own
        y = eta + rng.normal(size=size)
        if family == "logistic":
            y = (rng.random(size) < FAMILIES["logistic"].mean(eta)).astype(np.float64)
        sites.append(estimate_site(Rows(x, y), family=family))
    shared = combine(sites)
    alone = own_interval(sites[0])
    kinds: dict[str, Intervals] = {
        "own": alone,
        "honest": honest_interval(sites[0], suggest(sites[1:])),
        "shared": site_interval(sites[0], shared, shared_half_width(sites, shared)),
    }
    length = float(alone.high[0] - alone.low[0])
    for kind, (low, high) in kinds.items():
        yield kind, (float(low[0]), float(high[0]), float(beta[0, 0]), length)


def _losses_table(found: Mapping[str, Verdict]) -> Printed:
    printed = Printed(title="Held-out loss, as a ratio to the best reference's")
    for heading in ("table", "best reference", *OURS, "interval of the last"):
        printed.add_column(heading, justify="left" if heading == "table" else "right")
    for name, of in found.items():
        ours = [f"{of.ratios[own]:.3f}" if own in of.ratios else "-" for own in OURS]
        printed.add_row(name, of.reference, *ours, f"{of.low:.3f} .. {of.high:.3f}")
    return printed


def _coverage_table(family: str, rows: Sequence[Mapping[str, Any]]) -> Printed:
    printed = Printed(title=f"Coverage (length / own) of intervals of level 0.95, {family}")
    for heading in ("standard errors away", "own", "honest", "shared"):
        printed.add_column(heading, justify="right")
    for row in rows:
        cells = [f"{row[kind][0]:.3f} ({row[kind][1]:.2f})" for kind in ("own", "honest", "shared")]
        printed.add_row(str(row["gap"]), *cells)
    return printed


def _of_design(design: Design, trials: int) -> tuple[list[dict[str, SplitScore]], float]:
    return list(simulated(design, trials)), 0.0


def _of_rows(
    table: Table, family: FamilyName, shares: Shares, trials: int
) -> tuple[list[dict[str, SplitScore]], float]:
    """Scores splits of real rows; they overlap, so that the ratio of test to other rows counts."""
    rngs = (np.random.default_rng([13, k]) for k in range(trials))
    ratio = (1 - sum(shares)) / sum(shares)
    return [compare_once(table, family, shares, rng) for rng in rngs], ratio


def main(
    trials: Annotated[int, typer.Option(min=2, help="Trials, or splits, of each table.")] = 10,
    replications: Annotated[int, typer.Option(min=1, help="Of each gap of coverage.")] = 400,
    pisa_file: Annotated[Path | None, typer.Option("--pisa", help="pisa2003.npz.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for all figures, as JSON.")] = None,
) -> None:
    """Compares methods on tables, and intervals at every distance."""
    console, found = Console(), dict[str, Verdict]()
    with threadpool_limits(1):
        work: dict[str, Callable[[], tuple[Any, float]]] = {
            name: partial(_of_design, design, trials) for name, design in SIMULATED.items()
        }
        for name, (table, family, shares) in (pisa(pisa_file) if pisa_file else {}).items():
            work[name] = partial(_of_rows, table, family, shares, trials)
        for name, run in work.items():
            found[name] = verdict(*run())
            of = found[name]
            console.print(f"{name}: adaptive {of.ratios[OURS[-1]]:.3f} of {of.reference}'s")
        covers = {f: coverage(f, trials=replications) for f in ("linear", "logistic")}
    console.print(_losses_table(found))
    for kind, rows in covers.items():
        console.print(_coverage_table(kind, rows))
    if out is not None:
        figures = {"losses": {name: of._asdict() for name, of in found.items()}, "coverage": covers}
        out.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
