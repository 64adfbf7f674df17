"""MOLAR's error against epsilon: what noise on sites' sufficient statistics costs.

``python -m benchmarks.private_molar`` simulates 20 sites with 10 columns of which 2 differ at each
(Section 4.1 of MOLAR's paper), and prints the mean Euclidean error of what sites share, and of what
each of them keeps, which is its own estimate without noise shrunk towards what is shared.
"""

from typing import Annotated, Final

import numpy as np
import typer
from scipy.optimize import brentq

from benchmarks.harness import numbers_table, start
from engram.cli.console import out
from engram.guards.gaussian import epsilon
from engram.tables.private import estimate_of, noisy_statistics, statistics_size
from engram.tables.shrinkage import combine, personalize_rows
from engram.tables.simulation import sparse_parameters
from engram.tables.site import Rows, estimate_site

_SITES, _COLUMNS, _DIFFERING, _SIGMA, _DELTA = 20, 10, 2, 0.5, 1e-5
_BOUND: Final = 5.0
_EPSILONS: Final = (np.inf, 8.0, 4.0, 2.0, 1.0, 0.5)


def errors(target: float, size: int, seed: int) -> tuple[float, float, float]:
    """Mean errors of sites' own, shared and kept estimates."""
    rng = np.random.default_rng(seed)
    truth = sparse_parameters(rng, _SITES, _COLUMNS, _DIFFERING)
    x = rng.normal(size=(_SITES, size, _COLUMNS))
    y = np.einsum("mnd,md->mn", x, truth) + _SIGMA * rng.normal(size=(_SITES, size))
    rows = [Rows(*pair) for pair in zip(x, y, strict=True)]
    exact = [estimate_site(each) for each in rows]
    sent = exact
    if np.isfinite(target):
        z = brentq(lambda z: epsilon(z, 1, _DELTA) - target, 0.1, 1e3)
        numbers = statistics_size(_COLUMNS)
        noisy = [
            noisy_statistics(r, bound=_BOUND, multiplier=z, normal=rng.normal(size=numbers))
            for r in rows
        ]
        sent = [estimate_of(statistics, size, z * _BOUND**2) for statistics in noisy]
    shared = combine(sent, "precision", 5.0)
    kept = [
        personalize_rows(r, site, shared, family="linear", intercept=False, option="hard", c=1.0)
        for r, site in zip(rows, exact, strict=True)
    ]
    own = [site.coef for site in exact]
    common = np.median(truth, axis=0)
    found = [np.linalg.norm(np.array(each) - truth, axis=1).mean() for each in (own, kept)]
    return found[0], float(np.linalg.norm(shared.coef - common)), found[1]


def main(
    sizes: Annotated[str, typer.Option(help="Rows of each site, with commas.")] = "50,500,5000",
    seeds: Annotated[int, typer.Option(min=1, help="Simulations of each.")] = 10,
) -> None:
    """Prints mean errors."""
    table = numbers_table("rows", "epsilon", "alone", "shared", "kept")
    for size in map(int, sizes.split(",")):
        for target in _EPSILONS:
            found = np.mean([errors(target, size, seed) for seed in range(seeds)], axis=0)
            name = f"{target:g}" if np.isfinite(target) else "without privacy"
            table.add_row(str(size), name, *(f"{error:.3f}" for error in found))
    out.print(table)


if __name__ == "__main__":
    start(main)
