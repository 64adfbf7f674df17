"""Newton's ascent of the stratified partial likelihood, one exchange of sums a step."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from engram.core.arrays import Array, Bools, Ints
from engram.core.checks import require
from engram.tables.site import Rows, independent
from engram.tables.survival.partial import Sums, Ties, likelihood_sums, penalize, risk_sets, total

SumsAt = Callable[[Array], Sums]
"""A site's sums at coefficients of shape (d,)."""

_STILL: Final = 1e-14  # squared length of a step in standard errors that is none
_SLACK: Final = 1e-11  # of a log-likelihood, up to which a fall is rounding
_MOST: Final = 60  # evaluations
_FLAT: Final = 1e-10  # eigenvalue of an information scaled to diagonal 1 that is 0
_NEARLY: Final = 1e-6  # squared length of a step in standard errors, of which the last are
_MOVING: Final = 1e-2  # such a step in a column's standard deviations, if the maximum is nowhere


class NoMaximum(ValueError):
    """The likelihood has no single finite maximum; the message says in which column."""


class Ascent(NamedTuple):
    """The state between two exchanges of sums, which is the estimate when ``done``."""

    coef: Array  # where the sums are to be computed next, shape (d,)
    done: bool  # whether they have been computed there, and it is the maximum
    best: Array  # where the likelihood was largest so far, shape (d,)
    sums: Sums  # the sums there, with Firth's penalty if there is one
    first: Sums  # likewise, where the ascent began
    step: Array  # from ``best``, shape (d,)
    exchanges: int  # how often the sums were computed

    @classmethod
    def begin(cls, coef: Array) -> "Ascent":
        """Begins at some coefficients."""
        d = len(coef)
        none = Sums(-np.inf, np.zeros(d), np.zeros((d, d)), 0.0)
        return cls(coef, d == 0, coef, none, none, np.zeros(d), 0)

    @property
    def covariance(self) -> Array:
        """The inverse of the information, shape (d, d)."""
        return np.asarray(np.linalg.inv(self.sums.information))

    @property
    def standard_error(self) -> Array:
        """Standard error of each coefficient, shape (d,)."""
        return np.sqrt(np.diag(self.covariance))


def ascend(state: Ascent, sums: Sums, names: Sequence[str], *, penalized: bool = False) -> Ascent:
    """Takes one of Newton's steps, or halves the last one if the likelihood fell.

    Args:
        state: The last state.
        sums: The strata's sums at its ``coef``.
        names: Names of the columns, for errors.
        penalized: Whether to add Firth's penalty, for which the sums need ``third``.

    Raises:
        NoMaximum: There is no event, columns are dependent, or the likelihood rises without end.
    """
    count = state.exchanges + 1
    if count == 1:
        _check_determined(sums, names)
    sums = penalize(sums) if penalized else sums
    first = sums if count == 1 else state.first
    least = state.sums.loglik - _SLACK * (1 + abs(state.sums.loglik))
    fell = not sums.loglik >= least
    step = state.step / 2 if fell else _step(sums)
    length = np.inf if fell else float(sums.score @ step)
    still = length <= _STILL
    endless = not penalized and length <= _NEARLY and bool(_moving(step, first).any())
    if count >= _MOST or endless:
        raise _endless(step, first, names, penalized)
    if fell:
        return state._replace(coef=state.best + step, step=step, exchanges=count)
    coef = state.coef if still else state.coef + step
    return Ascent(coef, still, state.coef, sums, first, step, count)


def maximize(
    sums_at: SumsAt,
    begin: Array,
    names: Sequence[str] | None = None,
    *,
    penalized: bool = False,
    endless: bool = False,
) -> Ascent:
    """Maximizes a log-likelihood by Newton's method.

    Args:
        sums_at: The log-likelihood with its derivatives.
        begin: Where to begin, shape (d,), d >= 1.
        names: Names of the coefficients, for errors.
        penalized: As for ``ascend``.
        endless: Whether to stop where the likelihood rises without end, and little is left to gain.

    Raises:
        NoMaximum: There is none.
    """
    state = Ascent.begin(begin)
    names = names or [f"x{k}" for k in range(len(begin))]
    while not state.done:
        try:
            state = ascend(state, sums_at(state.coef), names, penalized=penalized)
        except NoMaximum:
            if not endless or not state.exchanges:
                raise
            break
    return state


def fit(
    strata: Sequence[Rows],
    ties: Ties = "efron",
    *,
    penalized: bool = False,
    names: Sequence[str] | None = None,
) -> Ascent:
    """Maximizes the partial likelihood of strata with the same coefficients.

    Each has a baseline hazard of its own. If it is ``penalized``, there always is a maximum.

    Raises:
        NoMaximum: See ``ascend``.
    """
    require(len(strata) > 0, "number of strata", 0, "at least 1")
    sets = [risk_sets(one, ties) for one in strata]

    def sums_at(coef: Array) -> Sums:
        return total([likelihood_sums(one, coef, third=penalized) for one in sets])

    begin = np.zeros(strata[0].x.shape[1])
    return maximize(sums_at, begin, names, penalized=penalized)


def _step(sums: Sums) -> Array:
    scale = 1 / np.sqrt(np.maximum(np.diag(sums.information), np.finfo(np.float64).tiny))
    scaled = scale[:, None] * sums.information * scale
    return np.asarray(scale * np.linalg.lstsq(scaled, scale * sums.score, rcond=None)[0])


def _moving(step: Array, first: Sums) -> Array:
    spread = np.sqrt(np.diag(first.information) / first.events)
    return np.asarray(np.abs(step) * spread > _MOVING)


def _endless(step: Array, first: Sums, names: Sequence[str], penalized: bool) -> NoMaximum:
    moving = np.flatnonzero(_moving(step, first)).tolist()
    if penalized or not len(moving):
        return NoMaximum(f"Newton's steps do not end after {_MOST}: scale the columns alike")
    columns = ", ".join(str(names[k]) for k in moving)
    ways = "up" if len(moving) == 1 and step[moving[0]] > 0 else "down"
    ways = ways if len(moving) == 1 else "together"
    return NoMaximum(
        f"the partial likelihood has no maximum: it rises without end with the coefficient of "
        f"{columns} ({ways}), as where a group has no event; use Firth's penalty, or leave the "
        "column out"
    )


def _check_determined(sums: Sums, names: Sequence[str]) -> None:
    if not sums.events:
        raise NoMaximum("no event was observed: Cox's model needs at least one")
    kept, _ = independent_columns(sums.information)
    if len(kept) < len(names):
        k = int(np.setdiff1d(np.arange(len(names)), kept)[0])
        why = "a linear combination of others"
        if sums.information[k, k] <= 0:
            why = "constant among the subjects at risk, in every stratum"
        raise NoMaximum(f"column {names[k]} is {why}: leave it out")


def independent_columns(information: Array) -> tuple[Ints, Bools]:
    """Returns columns that span all, and a mask of those that the information determines."""
    return independent(np.asarray(np.linalg.qr(square_root(information), mode="r")))


def square_root(information: Array) -> Array:
    """Returns R, shape (d, d), with ``R' R`` the information, without its flat directions."""
    scale = np.sqrt(np.maximum(np.diag(information), np.finfo(np.float64).tiny))
    values, vectors = np.linalg.eigh(information / scale[:, None] / scale)
    values = np.where(values > _FLAT, values, 0.0)
    return np.asarray(np.sqrt(values)[:, None] * vectors.T * scale)
