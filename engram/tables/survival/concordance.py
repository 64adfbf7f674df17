"""Harrell's concordance index, from pairs of subjects within a stratum."""

from typing import Final

import numpy as np

from engram.core.arrays import Array
from engram.tables.survival.partial import Subjects

_CELLS: Final = 2**22  # of a block of pairs


def concordant_pairs(subjects: Subjects, risk: Array) -> Array:
    """Counts concordant and comparable pairs, shape (2,).

    Of such a pair one had an event while the other was at risk. Two events at the same time are no
    pair; at the time of an event, who is censored counts as at risk. Pairs count by the product of
    their weights.

    Args:
        subjects: The stratum.
        risk: Their predicted risk, shape (n,).

    Returns:
        The number of pairs of which the one with the event had the higher risk, equal ones as half,
        and the number of all pairs. Those of several strata add.
    """
    _, time, event, entry, weights = subjects
    weights = np.ones(len(time)) if weights is None else weights
    found, size = np.zeros(2), max(1, _CELLS // max(len(time), 1))
    events = np.flatnonzero(event)
    for own in np.split(events, range(size, len(events), size)):
        at = time[own, None]
        others = (time > at) | ((time == at) & ~event)
        others &= True if entry is None else entry < at
        pairs = weights[own, None] * weights * others
        higher = np.sign(risk[own, None] - risk) / 2 + 0.5
        found += (pairs * higher).sum(), pairs.sum()
    return found
