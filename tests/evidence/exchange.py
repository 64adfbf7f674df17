"""Coverage of the intervals that adaptive sites share.

``python -m tests.evidence.exchange`` draws tables of 3 and of 5 sites, whose coefficients are the
same or scatter, with columns in usual units (age 62 +- 12, pressure 130 +- 18) and centered, runs
the exchange of ``engram.molar.exchange``, and prints how often intervals of level 0.95 hold the
coefficient that the sites' ones scatter around, beside pooled least squares or likelihood.
"""

from typing import Annotated, Final, NamedTuple

import numpy as np
import typer

from engram.arrays import Array, Bools
from engram.molar.exchange import STILL, Answer, answer, tell
from engram.molar.families import FAMILIES, FamilyName
from engram.molar.heterogeneity import REACH
from engram.molar.intervals import own_interval, quantile
from engram.molar.pooled import pool
from engram.molar.site import Rows

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

    def draw(self, rng: np.random.Generator) -> tuple[list[Rows], Array]:
        """Draws the sites' rows, with ones; and the shared coefficients, in the columns' units."""
        center = CENTER * self.raw
        found = []
        for _ in range(self.sites):
            count = int(self.rows * 2 ** rng.uniform(-1, 1))
            z = rng.normal(size=(count, 2)) + 0.3 * rng.normal(size=2)
            slopes = MEAN + self.scatter * rng.normal(size=2)
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
    """Returns which coefficients their shared intervals hold, pooled ones do; if it converged."""
    sites, truth = cell.draw(np.random.default_rng([17, draw]))
    found = exchanged(sites, cell.family)
    low, high = own_interval(pool(sites, family=cell.family), level=level)
    shared: Bools = (
        np.abs(found.coef - truth) <= quantile((1 + level) / 2, found.freedom) * found.error
    )
    return shared, (low <= truth) & (truth <= high), found.told.change <= STILL


def main(
    draws: Annotated[int, typer.Option(help="Draws of each cell.")] = 1000,
    family: Annotated[str, typer.Option(help="linear, logistic or both.")] = "both",
) -> None:
    """Prints the coverage of every cell."""
    print("family    sites columns  scatter  age   pressure intercept (pooled: age) converged")
    for name in ("linear", "logistic") if family == "both" else (family,):
        for scatter, apart in ((0.0, 0.3), (0.0, 0.0), (0.15, 0.3)):
            for sites in (3, 5):
                for raw in (True, False):
                    cell = Cell(name, sites, raw, scatter, apart)
                    each = [covered(cell, draw) for draw in range(draws)]
                    own, pooled, still = (np.mean(part, axis=0) for part in zip(*each, strict=True))
                    print(
                        f"{name:<9} {sites:<5} {'raw' if raw else 'centered':<8} "
                        f"{scatter:<4} {apart:<4} {own[0]:.3f} {own[1]:.3f}    {own[2]:.3f}     "
                        f"{pooled[0]:.3f}         {still:.3f}",
                        flush=True,
                    )


if __name__ == "__main__":
    typer.run(main)
