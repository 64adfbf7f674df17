"""Scores of survival models at one site, as sums that sites can add.

An event at a time comes before a loss at the same time, as in curves of Kaplan and Meier.
"""

from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np

from engram.core.arrays import Array, Bools
from engram.core.checks import require


class Concordance(NamedTuple):
    """Pairs of rows of which one is known to have its event first (Harrell et al. 1982).

    Attributes:
        concordant: Pairs of which that one has the higher risk.
        discordant: Pairs of which the other one has.
        tied: Pairs with the same risk, which count half.
    """

    concordant: int
    discordant: int
    tied: int

    @classmethod
    def of(cls, time: Array, event: Bools, risk: Array) -> Self:
        """Counts the pairs within a site, of times, events and risks (n,)."""
        order = np.lexsort((~event, time))
        time, event, risk = time[order], event[order], risk[order]
        later = np.searchsorted(time, time, side="right")
        losses = np.cumsum(~event)
        found = np.zeros(3, dtype=np.int64)
        for i in np.flatnonzero(event).tolist():
            # Losses at the time of an event are behind all events at that time.
            others = risk[later[i] - (losses[later[i] - 1] - losses[i]) :]
            found += ((others < risk[i]).sum(), (others > risk[i]).sum(), (others == risk[i]).sum())
        return cls(*found.tolist())

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """Adds the pairs of sites."""
        return cls(*map(sum, zip(*parts, strict=True)))

    @property
    def share(self) -> float:
        """The share of concordant pairs; NaN without any pair."""
        pairs = sum(self)
        return (self.concordant + self.tied / 2) / pairs if pairs else np.nan


class BrierSums(NamedTuple):
    """Squared errors of predicted survival at T times (Graf et al. 1999).

    A row with an event by time t has the error ``S(t)^2 / G(T)``, at its own time T, one that is
    alive at t ``(1 - S(t))^2 / G(t)``, and one lost before none; G(t), the probability not to be
    lost before t, is estimated from the site's rows.

    Attributes:
        times: The times, increasing, shape (T,).
        errors: Sums over rows, (T,).
        rows: Number of rows.
    """

    times: Array
    errors: Array
    rows: int

    @classmethod
    def of(cls, time: Array, event: Bools, survival: Array, times: Array) -> Self:
        """Computes a site's sums.

        Args:
            time: Times of events or losses, shape (n,).
            event: Whether a row has an event, (n,).
            survival: Predicted probabilities to be alive at ``times``, (n, T).
            times: Times, increasing, at most the last that a row is observed.

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
        return cls(times, errors.sum(axis=0), len(time))

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """Adds the sums of sites, which have the same times."""
        times, errors, rows = zip(*parts, strict=True)
        same = all(np.array_equal(each, times[0]) for each in times)
        require(same, "times", "different ones", "the same at all sites")
        return cls(times[0], np.sum(errors, axis=0), sum(rows))

    @property
    def score(self) -> Array:
        """The mean error at each time, shape (T,)."""
        return self.errors / self.rows

    @property
    def integrated(self) -> float:
        """The mean of the score over the time between the first and the last, by trapezoids."""
        score, widths = self.score, np.diff(self.times)
        return float(((score[1:] + score[:-1]) / 2 * widths).sum() / widths.sum())


def _unlost(time: Array, event: Bools, at: Array) -> Array:
    """Estimates the probabilities not to be lost before some times, by Kaplan and Meier."""
    lost, count = np.unique(time[~event], return_counts=True)
    n, died = np.sort(time), np.sort(time[event])
    at_risk = len(n) - np.searchsorted(n, lost)
    at_risk -= np.searchsorted(died, lost, side="right") - np.searchsorted(died, lost)
    kept = np.concatenate([[1.0], np.cumprod(1 - count / at_risk)])
    return kept[np.searchsorted(lost, at)]
