"""Coverage of intervals of log hazard ratios between sites, and who is named as different.

``python -m tests.evidence.survival`` draws sites with the same number of events, three covariates
(two normal of deviation 1, one exposure) and proportional hazards, in a part of the tables with one
site whose coefficient is off, upward or downward, and prints

- ``--part own``: how often a site's own interval of level 0.95 holds its coefficient;
- ``--part shared``: how often the intervals of the shared coefficients hold: the hull of fits
  without a site that may be off, what the other sites share; that of the weighted mean, its limit;
  how often the site that is off is named, and how often another one.
"""

from collections.abc import Mapping
from itertools import product
from typing import Annotated, Final, NamedTuple

import numpy as np
import typer

from engram.core.arrays import Array
from engram.tables.intervals import Intervals
from engram.tables.site import Rows
from engram.tables.survival.naming import name_sites
from engram.tables.survival.newton import fit
from engram.tables.survival.own_intervals import own_intervals
from engram.tables.survival.shared_intervals import shared_intervals
from engram.tables.survival.site_effects import site_sums

COEF: Final = np.array([0.5, -0.3, 0.4])
EXPOSURE: Final = 2  # its column
ROWS: Final = 4  # rows for each event
SITES: Final = (3, 5, 10, 20)
# Events, share of exposed rows, what is off, and in which column.
DESIGNS: Final = (
    *((events, 0.5, 0.0, 0) for events in (10, 30, 100)),
    *((events, 0.5, 1.0, 0) for events in (10, 50)),
    *((events, 0.5, 1.0, EXPOSURE) for events in (10, 100)),
    *((events, 0.5, 0.5, 0) for events in (10, 50)),
    *((events, 0.1, 0.0, 0) for events in (10, 100)),
)
_STRATA: Final = 400  # of which the limit of the weighted mean is computed


class Cell(NamedTuple):
    """One design of sites' tables."""

    sites: int
    events: int  # of each site
    exposed: float = 0.5  # share of a site's rows
    off: float = 0.0  # what the first site's coefficient has more, or less
    column: int = 0

    def stratum(self, rng: np.random.Generator, coef: Array, weight: float = 1.0) -> Rows:
        """Draws a site: a third of its subjects is censored at random, the rest after the end."""
        size = ROWS * self.events
        x = rng.normal(size=(size, len(coef)))
        x[:, EXPOSURE] = rng.permutation(size) < self.exposed * size
        event_at, censored_at = rng.exponential(np.exp(-x @ coef)), rng.exponential(2.0, size)
        time, event = np.minimum(event_at, censored_at), event_at <= censored_at
        end = np.sort(time[event])[: self.events][-1]
        weights = np.full(size, weight)
        return Rows(x, np.minimum(time, end), weights, event & (time <= end))

    def coefs(self, sign: int) -> Array:
        """Returns each site's coefficients, shape (M, d)."""
        coefs = np.tile(COEF, (self.sites, 1))
        coefs[0, self.column] += sign * self.off
        return coefs


class Outcome(NamedTuple):
    """Intervals and names of one table of several sites."""

    hull: Array  # which coefficients that the other sites share are in it, shape (d,)
    mean: Array  # which limits of the weighted mean are in its interval
    ratio: Array  # the hull's length, in lengths of that
    right: bool  # whether the site that is off is named
    column: bool  # in its column
    wrong: bool  # whether another one is


def limit(cell: Cell, sign: int) -> Array:
    """Computes what the weighted mean estimates, of many such sites.

    The error of the same sites' fit if none were off, whose limit is known, is subtracted.
    """
    if not cell.off:
        return COEF
    coefs, seeds = cell.coefs(sign), [[23, *cell[:2], i] for i in range(2 * _STRATA)]
    alike = [
        cell.stratum(np.random.default_rng(seed), COEF, cell.sites - 1.0)
        for seed in seeds[:_STRATA]
    ]
    fits = [
        fit([*alike, *(cell.stratum(np.random.default_rng(s), coef) for s in seeds[_STRATA:])])
        for coef in (coefs[0], COEF)
    ]
    return COEF + fits[0].coef - fits[1].coef


def holds(limits: Intervals, truth: Array) -> Array:
    """Marks the intervals that hold."""
    return np.asarray((limits.low <= truth) & (truth <= limits.high), dtype=float)


def own_outcome(cell: Cell, draw: int) -> Array:
    """Marks the own intervals of a site that hold; NaN where its rows determine none."""
    rng = np.random.default_rng([21, cell.events, draw])
    found = own_intervals(cell.stratum(rng, COEF))
    return np.where(np.isnan(found.coef), np.nan, holds(found.limits, COEF))


def shared_outcome(cell: Cell, draw: int, limits: Mapping[int, Array]) -> Outcome:
    """Fits one table of several sites, and names who differs.

    Args:
        cell: The design.
        draw: Number of the table; every second site that is off is so downward.
        limits: What the weighted mean estimates, by the sign of what is off.
    """
    rng, sign = np.random.default_rng([22, *cell[:2], draw]), 1 if draw % 2 else -1
    strata = [cell.stratum(rng, coef) for coef in cell.coefs(sign)]
    found = name_sites(site_sums(strata), len(COEF))
    both = shared_intervals(found.shared)
    named = {(one.site, one.column) for one in found.differences}
    odd = {site for site, _ in named}
    length = [each.high - each.low for each in (both.all_but_one, both.weighted_mean)]
    return Outcome(
        holds(both.all_but_one, COEF),
        holds(both.weighted_mean, limits[sign]),
        length[0] / length[1],
        cell.off > 0 and 0 in odd,
        cell.off > 0 and (0, cell.column) in named,
        bool(odd - {0} if cell.off else odd),
    )


def show_own(draws: int) -> None:
    """Prints coverage by events and exposure."""
    print("exposed events: coverage by column, their mean")
    for events, exposed in product((10, 30, 100), (0.5, 0.1)):
        count = draws if events == 10 else draws // 2
        each = [own_outcome(Cell(1, events, exposed), draw) for draw in range(count)]
        held = np.nanmean(each, axis=0)
        print(f"{exposed} {events}: {in_words(held)}, {held.mean():.3f}", flush=True)


def show_shared(draws: int) -> None:
    """Prints what came of all tables with several sites."""
    print("sites events exposed off: hull, weighted mean, ratio of lengths; named, column, wrongly")
    for sites, (events, *design) in product(SITES, DESIGNS):
        cell = Cell(sites, events, *design)
        count = draws if events == 10 else draws // 2
        limits = {sign: limit(cell, sign) for sign in (-1, 1)}
        outcomes = [shared_outcome(cell, draw, limits) for draw in range(count)]
        hull, mean, ratio, *rates = (np.mean(part, axis=0) for part in zip(*outcomes, strict=True))
        where = f"{sites} {events} {cell.exposed} {cell.off} in column {cell.column}"
        print(
            f"{where}: {in_words(hull)}, {in_words(mean)}, {in_words(ratio)}; {in_words(rates)}",
            flush=True,
        )


def in_words(values: Array) -> str:
    """Writes numbers with three digits."""
    return " ".join(f"{value:.3f}" for value in values)


def main(
    part: Annotated[str, typer.Option(help="own or shared.")] = "shared",
    draws: Annotated[int, typer.Option(help="Draws at ten events; half as many at more.")] = 1000,
) -> None:
    """Prints the coverage of every cell."""
    (show_own if part == "own" else show_shared)(draws)


if __name__ == "__main__":
    typer.run(main)
