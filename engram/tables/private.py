"""A task's own estimate from sufficient statistics with normal noise, which hide single rows.

Of rows z = (x, y) that are scaled down to norm R at most, the site computes ``S = sum z z'`` once.
One row more or less moves S by ``|z|^2 <= R^2``, in the Frobenius norm. So normal noise with
deviation ``s = m R^2`` on each number of its upper triangle, which is S in full, is a Gaussian
mechanism of multiplier m (Dwork, Talwar, Thakurta, Zhang. Analyze Gauss. STOC 2014). All else
follows from the noisy S and the number of rows n, which is taken to be known (as in Wang.
Revisiting Differentially Private Linear Regression. UAI 2018)::

    A = S_xx + l I,    beta = A^-1 S_xy,    l = max(0, 2 s sqrt(d) - least eigenvalue of S_xx)

2 s sqrt(d) is the usual norm of the noise on S_xx. What noise adds to the variance of beta_k is
``s^2 (1 + |beta|^2) (A^-2)_kk``, by linearizing; thresholds and weights count it, too.

A task of MOLARB hides each of its turns so: at the end of a batch it computes noisy statistics of
its new rows, and forgets these. What it sends follows from the noisy statistics, and so do its
coefficients and all later choices, together with what the server sends. So a turn (its contexts,
and the rewards of its arms) is in one release, however many batches follow. Another turn in its
place moves the sums by ``|z z' - v v'| <= sqrt(2) R^2`` at most, in the Frobenius norm, since
``|z|, |v| <= R`` and ``<z z', v v'> >= 0``. Other turns must not depend on it but by the arms that
are played.

It is for Model-C: under Model-P, how many rows an arm has would tell which one a context chose.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from engram.core.arrays import Array
from engram.core.checks import require
from engram.tables.bandits.site import TaskBandit, TaskState
from engram.tables.site import Rows, SiteEstimate


def statistics_size(dim: int) -> int:
    """Size of the noise for rows with ``dim`` columns and a target: (d + 1)(d + 2) / 2."""
    return (dim + 1) * (dim + 2) // 2


def noisy_statistics(rows: Rows, *, bound: float, multiplier: float, normal: Array) -> Array:
    """Returns S with noise, (d + 1, d + 1): the one look at a site's rows.

    Args:
        rows: The site's rows, without weights; a column of ones counts in a row's norm.
        bound: Largest norm of a row and its target, R > 0; longer ones are scaled down to it.
        multiplier: The noise multiplier, m > 0.
        normal: Standard normal numbers, (``statistics_size(d)``,).

    Raises:
        ValueError: A value is out of range.
    """
    require(bound > 0, "clip", bound, "positive")
    require(multiplier > 0, "noise-multiplier", multiplier, "positive")
    z = np.column_stack([rows.x, rows.y])
    lengths = np.maximum(np.linalg.norm(z, axis=1), np.finfo(float).tiny)
    z = z * np.minimum(1.0, bound / lengths)[:, None]
    upper = np.zeros((z.shape[1], z.shape[1]))
    upper[np.triu_indices(z.shape[1])] = multiplier * bound**2 * normal
    return np.asarray(z.T @ z + upper + np.triu(upper, 1).T)


def estimate_of(statistics: Array, size: int, deviation: float) -> SiteEstimate:
    """Fits a linear model to noisy statistics.

    ``statistics`` are S with noise, (d + 1, d + 1), of ``deviation`` s = ``multiplier * bound^2``.

    Returns:
        The estimate; without coefficients if there are no more rows than these.
    """
    d = len(statistics) - 1
    if size <= d:
        return SiteEstimate(np.zeros(d), np.full(d, np.inf), float(size), np.inf)
    xx, xy, yy = statistics[:d, :d], statistics[:d, d], statistics[d, d]
    ridge = max(0.0, 2 * deviation * np.sqrt(d) - float(np.linalg.eigvalsh(xx)[0]))
    inverse = np.linalg.inv(xx + ridge * np.eye(d))
    beta = inverse @ xy
    residual = max(float(yy - 2 * beta @ xy + beta @ xx @ beta), deviation)
    variance = residual / (size - d)
    added = deviation**2 * (1 + beta @ beta) * np.square(inverse).sum(axis=1)
    scale = np.sqrt((variance * np.diagonal(inverse) + added) / variance)
    return SiteEstimate(beta, scale, float(size), float(np.sqrt(variance)), float(size - d))


def close_private_batch(
    task: TaskBandit[Any, Any], state: TaskState, release: Callable[[Rows], SiteEstimate]
) -> tuple[SiteEstimate | None, TaskState]:
    """Ends a batch of a private bandit.

    Returns:
        The estimate that ``release`` makes from the new rows, with noise, and the state without
        these; or None, and the same state, where the policy has too few.
    """
    (enough,) = task.enough(state)
    if not enough:
        return None, state
    rows = state.fresh.of(0)
    none = np.zeros(len(rows.y), dtype=bool)
    return release(rows), state._replace(fresh=state.fresh.select(none))
