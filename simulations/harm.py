"""The share of clients that a method serves worse than their own training does."""

from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from client.confidence import LEVEL
from simulations.differences import Scores, variances_of


class Share(NamedTuple):
    """A share of clients, and its interval of level ``LEVEL``.

    Attributes:
        share: In [0, 1].
        low: Lower limit.
        high: Upper limit.
        clients: Number of clients that have both scores, in any seed.
    """

    share: float
    low: float
    high: float
    clients: int


def share_worse(scores: Scores, base: Scores, sign: int) -> Share | None:
    """Returns the share of clients, over all seeds, whose score is below that of ``base``.

    The interval is Wilson's, with as many independent clients as have the share's variance over
    clients and seeds (Korn, Graubard, Survey Methodology 1998), at most the clients that there
    are: seeds are the same clients again, or share a model.

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
    clients = worse.shape[1]
    share = float(np.nanmean(worse))
    variance = sum(variances_of(worse))
    count = min(share * (1 - share) / variance, clients) if variance > 0 else clients
    return Share(share, *_wilson(share, count), clients)


def _wilson(share: float, count: float) -> tuple[float, float]:
    """Returns the limits of Wilson's interval, JASA 1927, of a share of ``count`` clients."""
    z = float(norm.ppf((1 + LEVEL) / 2))
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * np.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2) / (1 + z**2 / count)
    return max(middle - float(half), 0.0), min(middle + float(half), 1.0)
