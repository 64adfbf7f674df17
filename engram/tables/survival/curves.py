"""Kaplan-Meier, Nelson-Aalen, restricted means and the log-rank test, from event tables.

Each is what it is for rows whose times are moved to the end of their cell, and entries to its
start: a site's counts are sums, so that of several sites the tables are added first.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import chdtrc, ndtri

from engram.core.arrays import Array, Ints
from engram.core.checks import require
from engram.scoring.event_tables import EventTable
from engram.scoring.intervals import LEVEL, Interval

_Z = float(ndtri((1 + LEVEL) / 2))


class SurvivalCurve(NamedTuple):
    """Survival by Kaplan and Meier (1958), ``S_k = prod_(j <= k) (1 - d_j / n_j)``."""

    ends: Array  # ends of the cells, at which it falls, shape (K,)
    survival: Array  # S, shape (K,)
    # Greenwood's variance of log S_k, ``sum_(j <= k) d_j / (n_j (n_j - d_j))``, shape (K,);
    # infinite once all have died.
    greenwood: Array

    def interval(self) -> tuple[Array, Array]:
        """Returns pointwise limits of level ``LEVEL``, each (K,); NaN where S is 0 or 1.

        With Greenwood's error s of log S they are ``S^exp(+-z s / log S)``, which are symmetric on
        the scale of ``log(-log S)``, and stay in [0, 1].
        """
        hazard = -np.log(np.where(self.survival > 0, self.survival, np.nan))
        low, high = _limits(hazard, self.greenwood)
        return np.exp(-high), np.exp(-low)

    def restricted_mean(self, until: float) -> Interval:
        """Returns the mean survival time up to a time: the area below the curve.

        Its variance is ``sum_j A_j^2 d_j / (n_j (n_j - d_j))``, of the areas ``A_j`` from the end
        of cell j on. Times of events are those of their cells' ends: it is too large by as much as
        deaths of a cell come before its end on average.

        Raises:
            ValueError: If nothing is known up to that time.
        """
        require(0 < until <= self.ends[-1], "until", until, f"in (0, {self.ends[-1]:g}]")
        falls = self.ends < until
        ends, survival = self.ends[falls], self.survival[falls]
        areas = np.diff(ends, prepend=0.0, append=until) * np.append(1.0, survival)
        with np.errstate(invalid="ignore"):  # once all have died, of which no area depends
            parts = np.diff(self.greenwood[falls], prepend=0.0)
        beyond = np.cumsum(areas[:0:-1])[::-1]
        error = np.sqrt((beyond**2 * np.where(np.isfinite(parts), parts, 0.0)).sum())
        mean = float(areas.sum())
        return Interval(mean, mean - _Z * float(error), mean + _Z * float(error))


def kaplan_meier(table: EventTable) -> SurvivalCurve:
    """Estimates survival from an event table, of a site's or of several sites' sums."""
    d, n = table.deaths, table.at_risk
    with np.errstate(divide="ignore", invalid="ignore"):
        survival = np.cumprod(np.where(d > 0, 1 - d / n, 1.0), dtype=np.float64)
        greenwood = np.cumsum(np.where(d > 0, d / (n * (n - d)), 0.0))
    return SurvivalCurve(table.ends, survival, greenwood)


class HazardCurve(NamedTuple):
    """Cumulative hazard by Nelson (1972) and Aalen (1978)."""

    ends: Array  # ends of the cells, at which it rises, shape (K,)
    hazard: Array  # ``H_k = sum_(j <= k) d_j / n_j``, shape (K,)
    variance: Array  # ``sum_(j <= k) d_j / n_j^2``, shape (K,)

    def interval(self) -> tuple[Array, Array]:
        """Returns pointwise limits ``H exp(-+z s / H)`` of level ``LEVEL``; NaN where H is 0."""
        return _limits(self.hazard, self.variance)


def _limits(hazard: Array, variance: Array) -> tuple[Array, Array]:
    hazard = np.where(hazard > 0, hazard, np.nan)
    factor = np.exp(_Z * np.sqrt(variance) / hazard)
    return hazard / factor, hazard * factor


def nelson_aalen(table: EventTable) -> HazardCurve:
    """Estimates the cumulative hazard from an event table."""
    d, n = table.deaths, np.maximum(table.at_risk, 1)  # no death where nobody is at risk
    return HazardCurve(table.ends, np.cumsum(d / n), np.cumsum(d / n**2))


class LogRank(NamedTuple):
    """A log-rank test of the hypothesis that k groups have the same hazard in each stratum."""

    observed: Ints  # deaths of each group, shape (k,)
    expected: Array  # those expected by the hypothesis, shape (k,)
    statistic: float  # squared distance of the two, by the hypothesis chi-squared
    freedom: int  # its degrees of freedom: groups with deaths to be expected, less one
    p_value: float


def log_rank(strata: Sequence[Sequence[EventTable]]) -> LogRank:
    """Tests whether groups have the same hazard, within each stratum (Mantel 1966; Peto 1972).

    To compare sites, these are the groups of one stratum; to compare treatments, sites are strata.
    In each cell, the deaths of groups are hypergeometric given all: ``E_g = d n_g / n``, with the
    covariance ``d (n - d) / (n - 1) (n_g / n) ([g = h] - n_h / n)``.

    Args:
        strata: Of each stratum the tables of its k groups, in the same order.

    Raises:
        ValueError: If groups differ in number, or fewer than two have deaths to be expected.
    """
    count = len(strata[0]) if strata else 0
    same = count > 1 and all(len(groups) == count for groups in strata)
    require(same, "groups", [len(groups) for groups in strata], "two or more, of every stratum")
    observed, expected = np.zeros(count, np.intp), np.zeros(count)
    variance = np.zeros((count, count))
    for groups in strata:
        d = np.stack([table.deaths for table in groups])
        n = np.stack([table.at_risk for table in groups])
        deaths, at_risk = d.sum(axis=0), np.maximum(n.sum(axis=0), 1)
        share = n / at_risk
        spread = deaths * (at_risk - deaths) / np.maximum(at_risk - 1, 1)
        observed += d.sum(axis=1)
        expected += (deaths * share).sum(axis=1)
        variance += np.diag((spread * share).sum(axis=1)) - (spread * share) @ share.T
    known = np.flatnonzero(expected > 0)
    require(len(known) > 1, "groups", len(known), "two or more at risk when somebody dies")
    some = known[:-1]  # the differences of all groups add up to 0
    gaps = (observed - expected)[some]
    statistic = float(gaps @ np.linalg.pinv(variance[np.ix_(some, some)], hermitian=True) @ gaps)
    return LogRank(observed, expected, statistic, len(some), float(chdtrc(len(some), statistic)))
