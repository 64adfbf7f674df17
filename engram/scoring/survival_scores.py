"""Scores of survival models at one site, as sums that sites can add.

An event at a time comes before a loss at the same time, as in curves of Kaplan and Meier.
"""

from typing import Final

import numpy as np

from engram.core.arrays import Array, Bools
from engram.core.checks import require

_AT_ONCE: Final = 2**22  # pairs


def concordant_pairs(
    time: Array,
    event: Bools,
    risk: Array,
    entry: Array | None = None,
    weights: Array | None = None,
) -> Array:
    """Counts pairs of whom one had an event while the other was at risk (Harrell et al. 1982).

    Two events at the same time are no pair. Pairs count by the product of their weights.

    Args:
        time: Times of events or losses, shape (n,).
        event: Whether a row has an event, (n,).
        risk: Predicted risk, (n,).
        entry: From when on each is observed, (n,); None: always.
        weights: Shape (n,), at least 0; None: 1.

    Returns:
        The number of pairs of which the one with the event had the higher risk, equal ones as half,
        and the number of all pairs. Those of several sites add; their ratio is the C-index.
    """
    weights = np.ones(len(time)) if weights is None else weights
    found, size = np.zeros(2), max(1, _AT_ONCE // max(len(time), 1))
    events = np.flatnonzero(event)
    for own in np.split(events, range(size, len(events), size)):
        at = time[own, None]
        others = (time > at) | ((time == at) & ~event)
        others &= True if entry is None else entry < at
        pairs = weights[own, None] * weights * others
        higher = np.sign(risk[own, None] - risk) / 2 + 0.5
        found += (pairs * higher).sum(), pairs.sum()
    return found


def brier_errors(time: Array, event: Bools, survival: Array, times: Array) -> Array:
    """Sums squared errors of predicted survival at T times over rows (Graf et al. 1999).

    A row with an event by time t has the error ``S(t)^2 / G(T)``, at its own time T, one that is
    alive at t ``(1 - S(t))^2 / G(t)``, and one lost before none; G(t), the probability not to be
    lost before t, is estimated from the site's rows.

    Args:
        time: Times of events or losses, shape (n,).
        event: Whether a row has an event, (n,).
        survival: Predicted probabilities to be alive at ``times``, (n, T).
        times: Times, increasing, at most the last that a row is observed, (T,).

    Returns:
        Shape (T,). Those of several sites add; over their number of rows, they are the Brier score.

    Raises:
        ValueError: If no row is observed so long.
    """
    last = float(time.max(initial=-np.inf))
    require(bool((times <= last).all()), "times", times, f"at most {last:g}, the last observed")
    dead = (time[:, None] <= times) & event[:, None]
    alive = (time[:, None] > times) | ((time[:, None] == times) & ~event[:, None])
    known, here = _unlost(time, event, time), _unlost(time, event, times)
    errors = np.where(dead, survival**2 / known[:, None], 0.0)
    errors += np.where(alive, (1 - survival) ** 2 / here, 0.0)
    return np.asarray(errors.sum(axis=0))


def _unlost(time: Array, event: Bools, at: Array) -> Array:
    """Estimates the probabilities not to be lost before some times, by Kaplan and Meier."""
    lost, count = np.unique(time[~event], return_counts=True)
    n, died = np.sort(time), np.sort(time[event])
    at_risk = len(n) - np.searchsorted(n, lost)
    at_risk -= np.searchsorted(died, lost, side="right") - np.searchsorted(died, lost)
    kept = np.concatenate([[1.0], np.cumprod(1 - count / at_risk)])
    return kept[np.searchsorted(lost, at)]
