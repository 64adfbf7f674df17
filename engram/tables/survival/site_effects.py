"""Stratified Cox models in which some sites have some coefficients for themselves.

Of M sites with d columns, ``separate`` marks the coefficients that belong to one site; the others
are shared. All different ones are ``theta``: first the d shared ones, then the separate ones. The
score and information of theta are made of each site's at its own coefficients, so that a server
needs no more than what ``partial_likelihood`` gives at a site.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Self

import numpy as np

from engram.core.arrays import Array, Bools, Ints
from engram.core.checks import require
from engram.tables.site import Rows
from engram.tables.survival.newton import Ascent, ascend
from engram.tables.survival.partial import Sums
from engram.tables.tables import dependent_columns

SumsAt = Callable[[Array], Sums]
"""A site's sums at coefficients of shape (d,)."""

_STILL: Final = 1e-12  # squared length of a step in standard errors; larger where it never ends
_FLAT: Final = 1e-10  # eigenvalue of an information scaled to diagonal 1 that is 0


def maximize(sums_at: SumsAt, begin: Array) -> tuple[Array, Sums]:
    """Maximizes a log-likelihood by Newton's method; returns the maximum and the sums there.

    Where it rises without end, it stops when what is left to gain is 1e-12.

    Args:
        sums_at: The log-likelihood with its derivatives.
        begin: Where to begin.
    """
    state, names = _begin(begin), [f"x{k}" for k in range(len(begin))]
    while not _settled(state):
        state = ascend(state, sums_at(state.coef), names)
    assert state.sums is not None
    return state.best, state.sums


def _begin(coef: Array) -> Ascent:
    return Ascent.begin(len(coef))._replace(coef=coef, best=coef, done=False)


def _settled(state: Ascent) -> bool:
    left = np.inf if state.sums is None else float(state.sums.score @ state.step)
    return state.done or left <= _STILL


def square_root(information: Array) -> Array:
    """Returns R, shape (d, d), with ``R' R`` the information, without its flat directions."""
    scale = np.sqrt(np.maximum(np.diag(information), np.finfo(np.float64).tiny))
    values, vectors = np.linalg.eigh(information / scale[:, None] / scale)
    values = np.where(values > _FLAT, values, 0.0)
    return np.asarray(np.sqrt(values)[:, None] * vectors.T * scale)


def independent_columns(information: Array) -> tuple[Ints, Bools]:
    """Returns columns that span all, and a mask of those that the information determines."""
    root, d = square_root(information), len(information)
    none = dependent_columns([Rows(root, np.zeros(d))], intercept=False)
    dropped = [one.column for one in none]
    determined = np.ones(d, dtype=bool)
    determined[[k for one in none for k in (one.column, *one.others)]] = False
    return np.setdiff1d(np.arange(d), dropped), determined


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


class SiteEffects(NamedTuple):
    """The maximum of the stratified partial likelihood.

    Attributes:
        coef: Each site's coefficients, shape (M, d).
        separate: Those that belong to one site, shape (M, d); others are the same for all sites.
        sums: Each site's sums at its coefficients.
    """

    coef: Array
    separate: Bools
    sums: Sequence[Sums]

    @property
    def center(self) -> Array:
        """The shared coefficients, shape (d,)."""
        first = np.argmin(self.separate, axis=0)
        return self.coef[first, np.arange(self.coef.shape[1])]

    @property
    def joint(self) -> Sums:
        """The sums of theta."""
        return joint_sums(self.sums, positions(self.separate))


class EffectsAscent(NamedTuple):
    """The state between two exchanges with all sites.

    Attributes:
        separate: As in ``SiteEffects``.
        ascent: Of theta.
        sums: Each site's sums where the likelihood was largest so far.
    """

    separate: Bools
    ascent: Ascent
    sums: Sequence[Sums]

    @classmethod
    def begin(cls, separate: Bools, start: SiteEffects | None = None) -> Self:
        """Begins at 0, or at a fit, whose sums are used again.

        Raises:
            ValueError: A column is separate at every site.
        """
        require(not separate.all(axis=0).any(), "separate", "all", "a column of some sites only")
        place = positions(separate)
        state = cls(separate, _begin(np.zeros(int(place.max()) + 1)), ())
        if start is None:
            return state
        theta = np.append(start.center, start.coef[separate])
        state = state._replace(ascent=_begin(theta))
        return state.take(start.sums) if np.array_equal(theta[place], start.coef) else state

    @property
    def coef(self) -> Array:
        """Where each site is to compute its sums next, shape (M, d)."""
        return np.asarray(self.ascent.coef[positions(self.separate)])

    @property
    def done(self) -> bool:
        """Whether the maximum has been found."""
        return _settled(self.ascent)

    def take(self, sums: Sequence[Sums], names: Sequence[str] | None = None) -> Self:
        """Takes a step by the sites' sums at ``coef``.

        Raises:
            NoMaximum: There is no event, or columns are dependent.
        """
        place, d = positions(self.separate), self.separate.shape[1]
        whole = joint_sums(sums, place)
        names = [f"x{k}" for k in range(d)] if names is None else names
        owners = [
            f"{names[k]} of site {m}" for m, k in zip(*np.nonzero(self.separate), strict=True)
        ]
        ascent = ascend(self.ascent, whole, [*names, *owners])
        best = sums if ascent.sums is whole else self.sums
        return self._replace(ascent=ascent, sums=best)

    def effects(self) -> SiteEffects:
        """The fit, after the last exchange."""
        return SiteEffects(self.ascent.best[positions(self.separate)], self.separate, self.sums)


def fit_effects(
    sites: Sequence[SumsAt],
    columns: int,
    separate: Bools | None = None,
    start: SiteEffects | None = None,
) -> SiteEffects:
    """Maximizes the stratified partial likelihood of sites.

    Args:
        sites: Each site's sums.
        columns: d.
        separate: Coefficients that belong to one site, shape (M, d). None: none.
        start: A fit to begin at.

    Raises:
        NoMaximum: There is no event, or columns are dependent.
    """
    require(len(sites) > 0, "number of sites", 0, "at least 1")
    none = np.zeros((len(sites), columns), dtype=bool)
    state = EffectsAscent.begin(none if separate is None else separate, start)
    while not state.done:
        each = zip(sites, state.coef, strict=True)
        state = state.take([sums_at(coef) for sums_at, coef in each])
    return state.effects()
