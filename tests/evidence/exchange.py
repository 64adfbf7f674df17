"""Coverage of the intervals that adaptive sites share.

``python -m tests.evidence.exchange`` draws tables of 3 and of 5 sites, whose coefficients are the
same or scatter, with columns in usual units (age 62 +- 12, pressure 130 +- 18) and centered, runs
the exchange of ``engram.tables.exchange``, and prints how often intervals of level 0.95 hold the
coefficient that the sites' ones scatter around, beside pooled least squares or likelihood. With
``--part equality`` it counts the tables on which sites fit what the library fits on all rows.
"""

from collections import Counter
from itertools import product
from typing import Annotated, Final, NamedTuple

import numpy as np
import typer

from engram.core.arrays import Array, Bools
from engram.tables.adaptive import adapt, stacked
from engram.tables.exchange import STILL, Answer, answer, personal, tell
from engram.tables.families import FAMILIES, FamilyName
from engram.tables.heterogeneity import REACH
from engram.tables.intervals import own_interval, quantile
from engram.tables.site import Rows, pool
from engram.tables.tables import Scaling

CENTER: Final = np.array([62.0, 130.0])
UNIT: Final = np.array([12.0, 18.0])
MEAN: Final = np.array([0.5, -0.3])  # slopes of standardized columns


class Cell(NamedTuple):
    """One design of sites' tables."""

    family: FamilyName
    sites: int
    raw: bool  # whether columns are in usual units, and not centered
    scatter: float = 0.0  # standard deviation of the sites' slopes
    apart: float = 0.0  # of their intercepts, at the columns' means
    rows: int = 150  # of a site; it has from half as many to twice as many
    odd: float = 0.0  # what the first site's slope of age has more

    def draw(self, rng: np.random.Generator) -> tuple[list[Rows], Array]:
        """Draws the sites' rows, with ones; and the shared coefficients, in the columns' units."""
        center = CENTER * self.raw
        found = []
        for site in range(self.sites):
            count = int(self.rows * 2 ** rng.uniform(-1, 1))
            z = rng.normal(size=(count, 2)) + 0.3 * rng.normal(size=2)
            slopes = MEAN + self.scatter * rng.normal(size=2) + [self.odd * (site == 0), 0]
            eta = z @ slopes + self.apart * rng.normal()
            y = eta + rng.normal(size=count)
            if self.family == "logistic":
                y = (rng.random(count) < FAMILIES["logistic"].mean(eta)).astype(float)
            found.append(Rows(center + UNIT * z, y).with_ones())
        slopes = MEAN / UNIT
        return found, np.append(slopes, -slopes @ center)


def exchanged(sites: list[Rows], family: FamilyName, exchanges: int = 30) -> Answer:
    """Returns the last answer."""
    told = None
    for _ in range(exchanges):
        each = [tell(rows, told, family=family, reach=REACH) for rows in sites]
        found = answer(each, told, family=family, reach=REACH)
        told = found.told
        if family == "linear" or told.change <= STILL:
            break
    return found


def covered(cell: Cell, draw: int, level: float = 0.95) -> tuple[Bools, Bools, bool]:
    """Returns the coverage of shared and of pooled intervals by coefficient; if it converged."""
    sites, truth = cell.draw(np.random.default_rng([17, draw]))
    found = exchanged(sites, cell.family)
    low, high = own_interval(pool(sites, family=cell.family), level=level)
    shared: Bools = (
        np.abs(found.coef - truth) <= quantile((1 + level) / 2, found.freedom) * found.error
    )
    return shared, (low <= truth) & (truth <= high), found.told.change <= STILL


def in_one_place(tasks: list[Rows], family: FamilyName) -> tuple[Array, Array, Array, bool]:
    """Fits all rows by the library: coefficients, center, its standard errors; if it converged."""
    x, _, counts = stacked(tasks).counted()
    scaling = Scaling.of(x, counts)
    scaling.center[-1] = 0
    plain = [scaling.of_rows(rows) for rows in tasks]
    found = adapt(plain, family=family, c=REACH, accuracy=STILL / 10)
    full = scaling.unscaled(np.vstack([found.coefs, found.center]))
    error = np.sqrt(np.diag(found.covariance)) / scaling.scale
    return full[:-1], full[-1], error, found.change <= STILL / 10


def equal(sites: list[Rows], family: FamilyName) -> str:
    """Compares sites' fit with the library's on the same rows, in standard errors."""
    coefs, center, error, settled = in_one_place(sites, family)
    found = exchanged(sites, family, 100)
    if not settled or found.told.change > STILL:
        return "not converged"
    own = [personal(rows, found.told, family=family, reach=REACH) for rows in sites]
    apart = np.max(np.abs(np.vstack([own - coefs, found.coef - center])) / error)
    return "equal" if apart <= STILL else "different"


def show_equality(families: tuple[FamilyName, ...]) -> None:
    """Prints how many tables of each family are fitted alike."""
    designs = [(0.0, 0.0, 0.0), (0.0, 0.3, 0.0), (0.15, 0.3, 0.0), (0.0, 0.3, 1.5)]
    for family in families:
        counts = Counter[str]()
        for (scatter, apart, odd), sites in product(designs, (3, 5, 10)):
            cell = Cell(family, sites, True, scatter, apart, odd=odd)
            draws = (cell.draw(np.random.default_rng([3, i]))[0] for i in range(4))
            found = Counter(equal(each, family) for each in draws)
            print(f"{family} {scatter} {apart} {odd} {sites} sites: {found}", flush=True)
            counts.update(found)
        print(f"{family}: {dict(counts)}", flush=True)


def main(
    part: Annotated[str, typer.Option(help="coverage or equality.")] = "coverage",
    draws: Annotated[int, typer.Option(help="Draws of each cell.")] = 1000,
    family: Annotated[str, typer.Option(help="linear, logistic or both.")] = "both",
) -> None:
    """Prints the coverage of every cell, or how many fits are equal."""
    families = ("linear", "logistic") if family == "both" else (family,)
    if part == "equality":
        show_equality(families)
        return
    print("family sites columns slopes intercepts: age pressure intercept, pooled age, converged")
    spreads = ((0.0, 0.3), (0.0, 0.0), (0.15, 0.3))
    for name, (scatter, apart), sites, raw in product(families, spreads, (3, 5), (True, False)):
        cell = Cell(name, sites, raw, scatter, apart)
        each = [covered(cell, draw) for draw in range(draws)]
        own, pooled, still = (np.mean(part, axis=0) for part in zip(*each, strict=True))
        print(
            f"{name} {sites} {'raw' if raw else 'centered'} {scatter} {apart}:",
            f"{own[0]:.3f} {own[1]:.3f} {own[2]:.3f}, {pooled[0]:.3f}, {still:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    typer.run(main)
