"""Learners on the simplex: decisions are weights of N experts, and gradients are their losses.

All of them learn from l - <l, p>, the losses minus the learner's own, in units of ``loss_range``,
the largest difference between two experts' losses in a round. So adding a number to all losses of a
round changes nothing. ``start`` is the prior; an expert with prior weight 0 keeps weight 0.

Everywhere ``size`` is N >= 2, and ``loss_range`` > 0 is the maximum difference of losses in a
round; larger ones are refused. An argument that is out of range raises ``ValueError``.
"""

from collections.abc import Callable
from math import log, sqrt
from typing import NamedTuple, TypeVar

import numpy as np

from engram.core.arrays import Array
from engram.core.checks import require
from engram.online.domains import simplex
from engram.online.learner import Learner, checked, positive, started
from engram.online.weights import equalize, tilt

S = TypeVar("S")

_ROUNDING = 1e-8  # by which losses may exceed their range


class Hedge(NamedTuple):
    """State of ``hedge``."""

    logs: Array  # log p, shape (N,)


def hedge(size: int, *, horizon: int, loss_range: float = 1.0) -> Learner[Hedge]:
    """Builds p_t,i ~ p_1,i exp(-eta L_i), L the sum of losses so far (Freund and Schapire, 1997).

    With eta = sqrt(8 ln N / T) / range and a uniform p_1 regret is at most range sqrt(T ln N / 2).
    ``horizon`` is T >= 1, the number of rounds; ``adapt_ml_prod`` needs none.
    """
    require(1 <= horizon < np.inf, "horizon", horizon, "at least 1, and finite")
    eta = sqrt(8 * log(max(size, 2)) / horizon)
    return _learner(
        size,
        loss_range,
        init=lambda prior: Hedge(_log(prior)),
        weights=lambda state: np.exp(state.logs),
        learn=lambda state, losses: Hedge(tilt(state.logs[None], eta * losses[None])[0]),
    )


class Prod(NamedTuple):
    """State of ``adapt_ml_prod``."""

    logs: Array  # log w, shape (N,)
    squares: Array  # sum of squared regrets so far, shape (N,)


def adapt_ml_prod(size: int, *, loss_range: float = 1.0) -> Learner[Prod]:
    """Builds Adapt-ML-Prod (Gaillard, Stoltz, van Erven, 2014, Corollary 4).

    With r_i = <l, p> - l_i, the regret of a round, w_i <- (w_i (1 + eta_i r_i))^(eta_i' / eta_i)
    and p_i ~ eta_i' w_i, where eta_i' = min(1/2, sqrt(ln N / (1 + sum r_i^2))) is the next step.
    In units of the range regret against an expert is at most C sqrt((1 + sum r_i^2) / ln N) + 2 C,
    with C = 3 ln N + ln(1 + N / (2e) (1 + ln(T + 1))).
    """

    def steps(squares: Array) -> Array:
        return np.minimum(0.5, np.sqrt(log(size) / (1 + squares)))

    def weights(state: Prod) -> Array:
        shares = steps(state.squares) * np.exp(state.logs - np.max(state.logs))
        return shares / np.sum(shares)

    def learn(state: Prod, losses: Array) -> Prod:
        eta = steps(state.squares)
        squares = state.squares + losses**2
        logs = steps(squares) / eta * (state.logs + np.log1p(-eta * losses))
        return Prod(logs, squares)

    return _learner(size, loss_range, lambda prior: Prod(_log(prior), 0 * prior), weights, learn)


class MsMwC(NamedTuple):
    """State of ``msmwc``."""

    logs: Array  # log p-hat, shape (N,)
    hints: Array  # m, shape (N,)
    weights: Array  # p, shape (N,)


def msmwc(
    size: int, steps: float | Array, *, optimistic: bool = True, loss_range: float = 1.0
) -> Learner[MsMwC]:
    """Builds MsMwC (3.2): mirror descent with a step size per expert, twice per round.

    p_t minimizes <m_t, p> + D(p, p-hat_t); then p-hat_t+1 minimizes <l_t + a_t, p> + D(p, p-hat_t),
    with a_t,i = 16 eta_i (l_t,i - m_t,i)^2. D is the divergence of sum_i p_i ln p_i / eta_i. For
    steps up to 1/32, Lemma 2 bounds its regret.

    ``steps`` are eta_i > 0, shape (N,), or one for all. If ``optimistic``, m_t is l_t-1. Otherwise
    it is <l_t, p_t> for every expert, which gives a bound like Adapt-ML-Prod's (Section 3.2.1); it
    need not be known in advance, since a number common to all experts changes nothing.
    """
    shape = np.shape(steps)
    require(shape in ((), (size,)), "steps' shape", shape, f"() or ({size},)")
    eta = np.full(size, steps, dtype=np.float64)
    positive(steps=float(eta.min()))
    positive(steps=float(eta.max()))

    def init(prior: Array) -> MsMwC:
        return MsMwC(_log(prior), 0 * prior, prior)

    def learn(state: MsMwC, losses: Array) -> MsMwC:
        bias = 16 * eta * (losses - state.hints) ** 2
        logs = equalize(state.logs, eta, losses + bias)
        hints = losses if optimistic else 0 * losses
        return MsMwC(logs, hints, np.exp(equalize(logs, eta, hints)))

    return _learner(size, loss_range, init, lambda state: state.weights, learn)


def _learner(
    size: int,
    loss_range: float,
    init: Callable[[Array], S],
    weights: Callable[[S], Array],
    learn: Callable[[S, Array], S],
) -> Learner[S]:
    """Builds the learner of N experts that learns from (l - <l, p>) / range, in [-1, 1]."""
    require(size >= 2, "size", size, "at least 2")
    positive(loss_range=loss_range)
    domain = simplex(size)
    limit = f"at most the declared loss_range = {loss_range:g}"

    def observe(state: S, losses: Array) -> S:
        given = checked(losses, (size,))
        spread = float(np.max(given) - np.min(given))
        require(spread <= loss_range * (1 + _ROUNDING), "the losses' range", spread, limit)
        return learn(state, (given - weights(state) @ given) / loss_range)

    return Learner(
        dim=size,
        init=lambda start: init(started(domain, start)),
        act=lambda state: weights(state).copy(),
        observe=observe,
        points=lambda state: weights(state)[None].copy(),
    )


def _log(prior: Array) -> Array:
    return np.log(prior, out=np.full_like(prior, -np.inf), where=prior > 0)
