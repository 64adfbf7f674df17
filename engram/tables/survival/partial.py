"""Cox's partial likelihood of one stratum, and of several: sums that sites can add.

Cox. Regression models and life-tables. Journal of the Royal Statistical Society B 34. 1972.
With ``r_j = w_j exp(<x_j, beta>)`` and ``S(t)`` the sum of r over the subjects at risk at t, tied
events at t with weights w_i add to the log-likelihood

    sum_i w_i <x_i, beta> - sum_k c log(S(t) - s_k D(t)),

where D(t) sums r over these m events. Breslow (1974) has one term, c = sum w_i and s = 0; Efron
(1977) has m of them, c = sum w_i / m and s_k = 0, 1/m, ..., (m - 1)/m.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from engram.core.arrays import Array, Bools, Ints
from engram.core.checks import require
from engram.tables.site import Rows

Ties = Literal["efron", "breslow"]


class Sums(NamedTuple):
    """The log partial likelihood of one stratum or more, and its derivatives."""

    loglik: float  # minus infinity where it cannot be computed
    score: Array  # its gradient, shape (d,)
    information: Array  # minus its Hessian, shape (d, d)
    events: float  # number of events of positive weight
    third: Array | None = None  # minus its third derivative, (d, d, d); None: not asked for


class RiskSets(NamedTuple):
    """The n subjects of a stratum that are ever at risk at one of the T times of events.

    A subject is at risk at the times ``at[first:last]``. The log-likelihood has K terms.
    """

    x: Array  # centered covariates, shape (n, d)
    center: Array  # what was subtracted of them, shape (d,)
    weights: Array  # shape (n,), > 0
    event: Bools  # shape (n,)
    at: Array  # the different times of events, ascending, shape (T,)
    first: Ints  # shape (n,)
    last: Ints  # shape (n,)
    term: Ints  # index in ``at`` of each term, shape (K,)
    share: Array  # s of each term
    mass: Array  # c of each term, > 0

    def over(self, values: Array) -> Array:
        """Sums of subjects' values, (n, ...), over risk sets, (T, ...)."""
        leave = _grouped(self.last, values, len(self.at) + 1)
        leave -= _grouped(self.first, values, len(self.at) + 1)
        return np.asarray(np.cumsum(leave[:0:-1], axis=0)[::-1])

    def during(self, values: Array, cut: Array) -> Array:
        """Sums of terms, (K, ...), over each subject's time at risk, (n, ...).

        Args:
            values: Of each term.
            cut: The part of each that is not for the subjects with an event at its time.
        """
        size = len(self.at)
        risen = np.cumsum(_grouped(self.term + 1, values, size + 1), axis=0)
        whole = risen[self.last] - risen[self.first]
        whole[self.event] -= _grouped(self.term, cut, size)[self.last[self.event] - 1]
        return np.asarray(whole)


def risk_sets(rows: Rows, ties: Ties = "efron") -> RiskSets:
    """Finds who is at risk at which event of a stratum; equal times are tied."""
    require(ties in ("efron", "breslow"), "ties", ties, "efron or breslow")
    x, (time, event, entry, given) = rows.x, rows.survival()
    weights = np.ones(len(time)) if given is None else given
    at = np.unique(time[event & (weights > 0)])
    first = np.searchsorted(at, np.full(len(time), -np.inf) if entry is None else entry, "right")
    last = np.searchsorted(at, time, "right")
    some = (first < last) & (weights > 0)
    x, event, weights, first, last = x[some], event[some], weights[some], first[some], last[some]
    center = weights @ x / weights.sum() if len(x) else np.zeros(x.shape[1])
    constant = np.ptp(x, axis=0) == 0 if len(x) else np.ones(x.shape[1], dtype=bool)
    place = last[event] - 1
    tied, mass = np.bincount(place, minlength=len(at)), _grouped(place, weights[event], len(at))
    term, share = np.arange(len(at)), np.zeros(len(at))
    if ties == "efron":
        term = np.repeat(term, tied)
        share = (np.arange(len(term)) - (np.cumsum(tied) - tied)[term]) / tied[term]
        mass = (mass / np.maximum(tied, 1))[term]
    x = np.where(constant, 0.0, x - center)
    return RiskSets(x, center, weights, event, at, first, last, term, share, mass)


def likelihood_sums(sets: RiskSets, beta: Array, *, third: bool = False) -> Sums:
    """Computes a stratum's sums at coefficients of shape (d,).

    The risks are relative to the largest one, which no result depends on.
    """
    x, weights, event = sets.x, sets.weights, sets.event
    term, share, mass = sets.term, sets.share, sets.mass
    d = x.shape[1]
    if not event.any():
        return Sums(0.0, np.zeros(d), np.zeros((d, d)), 0.0, np.zeros((d, d, d)) if third else None)
    eta = x @ beta
    eta -= eta.max()
    risk = weights * np.exp(eta)
    both = np.column_stack([risk, risk[:, None] * x])
    tied = _grouped(sets.last[event] - 1, both[event], len(sets.at))
    whole = sets.over(both)[term] - share[:, None] * tied[term]
    size = whole[:, 0]
    if not (size > 0).all():
        return Sums(-np.inf, np.zeros(d), np.zeros((d, d)), float(event.sum()))
    mean, rate = whole[:, 1:] / size[:, None], mass / size
    loglik = float(weights[event] @ eta[event] - mass @ np.log(size))
    score = weights[event] @ x[event] - mass @ mean
    each = (risk * sets.during(rate, rate * share))[:, None]
    information = (each * x).T @ x - (mass[:, None] * mean).T @ mean
    found = Sums(loglik, score, information, float(event.sum()))
    if not third:
        return found
    # E[xxx] - E[xx]m - E[xmx] - mE[xx] + 2mmm, of each term
    pairs = (x[:, :, None] * x[:, None, :]).reshape(len(x), -1)
    slopes = rate[:, None] * mean
    crossed = risk[:, None] * sets.during(slopes, slopes * share[:, None])
    mixed = (pairs.T @ crossed).reshape(d, d, d)
    squares = (mean[:, :, None] * mean[:, None, :]).reshape(len(mean), -1)
    pure = pairs.T @ (each * x) + 2 * squares.T @ (mass[:, None] * mean)
    cube = pure.reshape(d, d, d) - mixed - mixed.transpose(0, 2, 1) - mixed.transpose(2, 1, 0)
    return found._replace(third=cube)


def total(strata: Sequence[Sums]) -> Sums:
    """Adds the sums of several strata."""
    loglik, score, information, events, third = zip(*strata, strict=True)
    cubes = None if any(one is None for one in third) else np.sum(third, axis=0)
    added = np.sum(score, axis=0), np.sum(information, axis=0)
    return Sums(float(sum(loglik)), *added, float(sum(events)), cubes)


def penalize(sums: Sums) -> Sums:
    """Adds Firth's penalty, half the log determinant of the information, and its gradient.

    Firth (1993); Heinze and Schemper (2001) for hazards. The maximum is finite always. The
    information stays that of the likelihood. The sums are those of all strata, with ``third``.
    """
    sign, logdet = np.linalg.slogdet(sums.information)
    if sign <= 0 or sums.third is None:
        return sums._replace(loglik=-np.inf)
    d = len(sums.score)
    inverse = np.linalg.inv(sums.information)
    slope = inverse.reshape(-1) @ sums.third.reshape(d * d, d)
    return sums._replace(loglik=sums.loglik + float(logdet) / 2, score=sums.score + slope / 2)


def _grouped(groups: Ints, values: Array, size: int) -> Array:
    """Sums values, shape (n, ...), by group, shape (size, ...)."""
    if values.ndim == 1:
        return np.bincount(groups, values, minlength=size).astype(np.float64)
    columns = [np.bincount(groups, column, minlength=size) for column in values.T]
    return np.stack(columns, axis=1) if columns else np.zeros((size, 0))
