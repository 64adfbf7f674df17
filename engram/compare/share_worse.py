"""The share of clients that a method serves worse than their own training does."""

from typing import Final, NamedTuple

import numpy as np

from engram.compare.differences import Scores
from engram.scoring.intervals import LEVEL, error_of, quantile, variances_of, wilson

LEAST_SEEDS: Final = 3  # fewer do not tell how much a share varies over seeds


class Share(NamedTuple):
    """A share of clients, and its interval of level ``LEVEL``.

    Attributes:
        share: In [0, 1].
        low: Lower limit; None with fewer than ``LEAST_SEEDS``.
        high: Upper limit; likewise.
        clients: Number of clients that have both scores, in any seed.
    """

    share: float
    low: float | None
    high: float | None
    clients: int


def share_worse(scores: Scores, base: Scores, sign: int) -> Share | None:
    """Share of clients, over all seeds, that score below ``base``.

    The interval is Wilson's, with as many independent clients as have the share's variance over
    clients and seeds (Korn, Graubard, Survey Methodology 1998), at most the clients that there
    are, and with Student's quantile of Satterthwaite's degrees of freedom: seeds are the same
    clients again, or share a model. Few seeds may agree by chance: two pseudo-seeds are added to
    the variance over seeds, each with half that of a share that is 0 or 1.

    Args:
        scores: Each client's score, by seed.
        base: Those of the reference.
        sign: 1 where higher scores are better, else -1.

    Returns:
        The share; None if no client has both scores.
    """
    gaps = np.stack([sign * (mine - own) for mine, own in zip(scores, base, strict=True)])
    known = np.isfinite(gaps)
    if not known.any():
        return None
    worse = np.where(known, gaps < 0, np.nan)[known.any(axis=1)][:, known.any(axis=0)]
    seeds, clients = worse.shape
    share = float(np.nanmean(worse))
    if seeds < LEAST_SEEDS:
        return Share(share, None, None, clients)
    by_seeds, by_clients = variances_of(worse)
    by_seeds = ((seeds - 1) * by_seeds + _binomial(share, clients) / seeds) / (seeds + 1)
    error, degrees = error_of(by_seeds, by_clients, seeds + 2, clients)
    count = min(_binomial(share, clients * seeds) / error**2, clients)
    return Share(share, *wilson(share, count, float(quantile((1 + LEVEL) / 2, degrees))), clients)


def _binomial(share: float, count: int) -> float:
    """Returns the variance of a draw, by the share with one more success and failure."""
    smooth = (share * count + 1) / (count + 2)
    return smooth * (1 - smooth)
