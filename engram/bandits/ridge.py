"""Ridge regression, one row at a time: the estimates of the linear policies, and their bounds.

Li, Chu, Langford, Schapire. A Contextual-Bandit Approach to Personalized News Article
Recommendation. WWW 2010 (Algorithm 1); Abbasi-Yadkori, Pal, Szepesvari. Improved Algorithms for
Linear Stochastic Bandits. NeurIPS 2011.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.linalg.blas import dsymm, dsymv, dsyr
from scipy.linalg.lapack import dpotrf, dpotri

from engram.core.arrays import Array
from engram.core.checks import require


class Ridge(NamedTuple):
    """A ridge estimate from rows (x, r), with A = lambda I + sum x x'. It is never changed."""

    rows: int  # number of rows
    moment: Array  # b = sum r x, shape (d,)
    inverse: Array  # A^-1, shape (d, d), symmetric; only its upper triangle is kept
    theta: Array  # A^-1 b, shape (d,)


def check_ridge(dim: int, lam: float, **weights: float) -> None:
    """Raises ``ValueError`` unless dim >= 1, lam > 0 and each of the weights is finite and >= 0."""
    require(dim >= 1, "dim", dim, "at least 1")
    require(0 < lam < np.inf, "lam", lam, "finite and positive")
    for name, weight in weights.items():
        require(0 <= weight < np.inf, name, weight, "finite and at least 0")


def fresh(dim: int, lam: float) -> Ridge:
    """Returns the estimate from no rows."""
    inverse = np.eye(dim, order="F") / lam
    return Ridge(0, np.zeros(dim), inverse, np.zeros(dim))


def observed(ridge: Ridge, x: Array, reward: float) -> Ridge:
    """Returns the estimate after one more row (Sherman and Morrison).

    Its inverse is A^-1 - A^-1 x x' A^-1 / (1 + x' A^-1 x), and theta = A^-1 b.
    """
    ahead = dsymv(1.0, ridge.inverse, x)
    inverse = dsyr(-1.0 / (1.0 + float(ahead @ x)), ahead, a=ridge.inverse)
    moment = ridge.moment + reward * x
    return Ridge(ridge.rows + 1, moment, inverse, dsymv(1.0, inverse, moment))


def added(gram: Array, x: Array) -> Array:
    """Returns gram + x x', in the upper triangle, as a new array."""
    total: Array = dsyr(1.0, x, a=gram)
    return total


def fitted(several: Iterable[tuple[Array, Ridge]], lam: float) -> Ridge:
    """Returns the estimate from the rows of several estimates together, A = lambda I + sum x x'.

    Each, of at least one, comes with its sum x x' in the upper triangle; lambda is positive.
    """
    (first, one), *others = several
    gram, moment, count = np.array(first, order="F"), one.moment.copy(), one.rows
    for more, other in others:
        gram += more
        moment += other.moment
        count += other.rows
    gram[np.diag_indices(len(gram))] += lam
    root, _ = dpotrf(gram, clean=0, overwrite_a=1)  # lambda > 0, so that there is one
    inverse, _ = dpotri(root, overwrite_c=1)
    return Ridge(count, moment, inverse, dsymv(1.0, inverse, moment))


def widths(ridge: Ridge, arms: Array) -> Array:
    """Returns sqrt(x' A^-1 x) for arms (K, d), shape (K,)."""
    columns = arms.T
    squares = (columns * dsymm(1.0, ridge.inverse, columns)).sum(axis=0)
    found: Array = np.sqrt(np.maximum(squares, 0.0))  # rounding may take 0 below 0
    return found


def optimistic(ridge: Ridge, arms: Array, alpha: float) -> Array:
    """Returns upper confidence bounds theta' x + alpha sqrt(x' A^-1 x) of arms (K, d), shape (K,).

    All linear policies use this width. Some of the papers multiply it by sqrt(log(t + 1)), and some
    authors' codes leave out the square root.
    """
    bounds: Array = arms @ ridge.theta
    return bounds + alpha * widths(ridge, arms) if alpha else bounds
