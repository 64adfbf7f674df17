"""Stratified Cox models in which some sites have some coefficients for themselves.

Of M sites with d columns, ``separate`` marks the coefficients that belong to one site; the others
are shared. All different ones are ``theta``: first the d shared ones, then the separate ones. The
score and information of theta are made of each site's at its own coefficients, so that a server
needs no more than a site's ``Sums``.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from engram.core.arrays import Array, Bools, Ints
from engram.core.checks import require
from engram.tables.random_effects import Prior
from engram.tables.site import Rows
from engram.tables.survival.newton import SumsAt, maximize
from engram.tables.survival.partial import Sums, Ties, likelihood_sums, risk_sets


class Sites(list[SumsAt]):
    """Each site's sums."""

    def sums(self, coefs: Array) -> Sequence[Sums]:
        """Returns all sites' sums, each at coefficients of its own, shape (M, d)."""
        return [sums_at(coef) for sums_at, coef in zip(self, coefs, strict=True)]


def site_sums(strata: Sequence[Rows], ties: Ties = "efron") -> Sites:
    """Returns the sums of each site, for sites whose subjects are here."""
    return Sites(partial(likelihood_sums, risk_sets(one, ties)) for one in strata)


def posterior_mode(sums_at: SumsAt, prior: Prior) -> tuple[Array, Sums]:
    """Returns the mode of a site's posterior, and the sums of its likelihood there."""
    free, mode = prior.variance > 0, prior.center.copy()
    precision = 1 / prior.variance[free]

    def penalized(part: Array) -> Sums:
        mode[free], gap = part, part - prior.center[free]
        loglik, score, information, *_ = sums_at(mode)
        information = information[np.ix_(free, free)] + np.diag(precision)
        score = score[free] - precision * gap
        return Sums(loglik - float(gap @ (precision * gap)) / 2, score, information, 1.0)

    if free.any():
        mode[free] = maximize(penalized, mode[free]).coef
    return mode, sums_at(mode)


class SiteEffects(NamedTuple):
    """The maximum of the stratified partial likelihood."""

    coef: Array  # each site's coefficients, shape (M, d)
    separate: Bools  # those that belong to one site, shape (M, d); all sites share the others
    sums: Sequence[Sums]  # each site's sums at its coefficients

    @property
    def center(self) -> Array:
        """The shared coefficients, shape (d,)."""
        first = np.argmin(self.separate, axis=0)
        return np.asarray(self.coef[first, np.arange(self.coef.shape[1])])

    @property
    def joint(self) -> Sums:
        """The sums of theta."""
        return joint_sums(self.sums, positions(self.separate))


def fit_effects(
    sites: Sites,
    separate: Bools,
    start: SiteEffects | None = None,
    names: Sequence[str] | None = None,
) -> SiteEffects:
    """Maximizes the stratified partial likelihood of sites.

    Args:
        sites: Each site's sums.
        separate: Coefficients that belong to one site, shape (M, d).
        start: A fit to begin at. None: coefficients of 0.
        names: Names of the columns, for errors.

    Raises:
        NoMaximum: There is no event, or columns are dependent.
        ValueError: A column is separate at every site.
    """
    require(not separate.all(axis=0).any(), "separate", "all", "False at a site of each column")
    place, d = positions(separate), separate.shape[1]
    names = names or [f"x{k}" for k in range(d)]
    owners = [f"{names[k]} of site {m}" for m, k in np.argwhere(separate)]
    theta = np.zeros(d + len(owners))
    if start is not None:
        theta = np.append(start.center, start.coef[separate])

    def sums_at(theta: Array) -> Sums:
        return joint_sums(sites.sums(theta[place]), place)

    # A site's own group without an event ends nothing.
    theta = maximize(sums_at, theta, [*names, *owners], endless=bool(owners)).best
    return SiteEffects(theta[place], separate, sites.sums(theta[place]))


def positions(separate: Bools) -> Ints:
    """Returns where in theta each site's coefficients are, shape (M, d)."""
    place = np.broadcast_to(np.arange(separate.shape[1]), separate.shape).copy()
    place[separate] = separate.shape[1] + np.arange(separate.sum())
    return place


def joint_sums(sums: Sequence[Sums], place: Ints) -> Sums:
    """Adds sites' sums to those of theta."""
    size = int(place.max()) + 1
    score, information = np.zeros(size), np.zeros((size, size))
    for one, at in zip(sums, place, strict=True):
        score[at] += one.score
        information[np.ix_(at, at)] += one.information
    loglik, events = sum(one.loglik for one in sums), sum(one.events for one in sums)
    return Sums(float(loglik), score, information, float(events))
