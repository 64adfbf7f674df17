"""MetaGrad and USC: other learners for losses of unknown curvature.

Arguments are those of ``descent``; ``horizon`` is T >= 1, the number of rounds: both learn less
well in later ones.
"""

from math import ceil, log2
from typing import NamedTuple

import numpy as np

from engram.core.arrays import Array
from engram.core.checks import require
from engram.online.descent import newton_steps
from engram.online.domains import Domain
from engram.online.experts import Prod, adapt_ml_prod
from engram.online.learner import (
    Descent,
    Learner,
    Newton,
    checked,
    descent_pool,
    newton_pool,
    positive,
    started,
)
from engram.online.steps import add_outer, descend_in_norm
from engram.online.weights import curvatures, surrogate_gradients, tilt


class MetaGrad(NamedTuple):
    """State of ``metagrad``."""

    experts: Newton  # w_i, with the inverses of Sigma_i as metrics
    logs: Array  # log pi, shape (K,)


def metagrad(domain: Domain, *, gradient_bound: float, horizon: int) -> Learner[MetaGrad]:
    """Builds MetaGrad with an expert for each rate eta_i = 2^-i / (5 D G), i = 0 ... log2(T) / 2.

    Van Erven, Koolen. MetaGrad: Multiple Learning Rates in Online Learning. NeurIPS 2016. This is
    the full-matrix version.

    With s_i = <g, w_i - w>, an expert's loss is eta_i s_i + (eta_i s_i)^2, and it takes a step
    along its gradient in the norm of I / D^2 + 2 eta_i^2 sum g g'. The experts' weights pi_i start
    from a prior ~ 1 / ((i + 1) (i + 2)) and decrease exponentially with their losses; w is the mean
    of w_i with weights pi_i eta_i. Regret against every u is O(sqrt(V d log T) + d log T), V = sum
    <g, w - u>^2, and so O(d log T) for exp-concave losses; for all convex ones it is O(sqrt(T log
    log T)).
    """
    positive(gradient_bound=gradient_bound)
    require(1 <= horizon < np.inf, "horizon", horizon, "at least 1, and finite")
    diameter = domain.diameter
    i = np.arange(ceil(log2(horizon) / 2) + 1, dtype=np.float64)
    etas = 0.5**i / (5 * diameter * gradient_bound)
    prior = 1 / ((i + 1) * (i + 2))
    ridges = np.full(len(etas), 1 / diameter**2)
    experts = newton_pool(domain, ridges, 2 * etas**2, optimistic=False)

    def init(start: Array | None) -> MetaGrad:
        return MetaGrad(experts.init(started(domain, start)), np.log(prior / np.sum(prior)))

    def act(state: MetaGrad) -> Array:
        shares = etas * np.exp(state.logs)
        return shares / np.sum(shares) @ state.experts.decisions

    def observe(state: MetaGrad, gradient: Array) -> MetaGrad:
        g = checked(gradient, (domain.dim,), gradient_bound)
        decisions = state.experts.decisions
        scaled = etas * ((decisions - act(state)) @ g)
        logs = tilt(state.logs[None], (scaled + scaled**2)[None])[0]
        # The norm grows by g, not by the loss's gradient: newton_pool's own step is not this one.
        everyone = np.tile(g, (len(etas), 1))
        before = state.experts.metrics, state.experts.inverses
        metrics, inverses = add_outer(*before, 2 * etas**2, everyone)
        gradients = np.outer(etas * (1 + 2 * scaled), g)
        moved = descend_in_norm(*domain, decisions, gradients, metrics, inverses)
        return MetaGrad(Newton(moved, moved, metrics, inverses), logs)

    return Learner(domain.dim, init, act, observe, lambda state: act(state)[None])


class Usc(NamedTuple):
    """State of ``usc``."""

    weights: Prod  # state of Adapt-ML-Prod
    # State of the base learners for strongly convex losses, and of the one for convex losses.
    descents: Descent
    newtons: Newton  # state of the base learners for exp-concave losses


def usc(domain: Domain, *, gradient_bound: float, horizon: int) -> Learner[Usc]:
    """Builds USC: Adapt-ML-Prod over base learners that guess the curvature.

    Zhang, Wang, Yi, Yang. A Simple yet Universal Strategy for Online Convex Optimization. ICML
    2022. This is the form of Proposition 1 (Appendix C.1), which takes one gradient per round.
    Regret is O(log T) for strongly convex losses, O(d log T) for exp-concave ones and O(sqrt T) for
    convex ones, in the worst case.

    Guesses of curvature are in units of G / R and 1 / (G R), with R = D / 2, as in ``universal``.
    """
    positive(gradient_bound=gradient_bound)
    require(1 <= horizon < np.inf, "horizon", horizon, "at least 1, and finite")
    diameter, radius = domain.diameter, domain.diameter / 2
    guesses = curvatures(horizon)
    n = len(guesses)
    strong = np.concatenate([guesses * gradient_bound / radius, np.zeros(1 + n)])
    exp = np.concatenate([np.zeros(n + 1), guesses / (gradient_bound * radius)])

    steps = np.append(1 / strong[:n], diameter / gradient_bound)
    decay = np.append(np.ones(n), 0.5)
    meta = adapt_ml_prod(2 * n + 1, loss_range=gradient_bound * diameter)
    descents = descent_pool(domain, n + 1, lambda t, v: steps / t**decay, optimistic=False)
    # A surrogate's derivative along g is at most 1 + alpha G D, its curvature there alpha: gamma is
    # the ratio of curvature to squared derivative.
    gammas = exp[n + 1 :] / (1 + exp[n + 1 :] * gradient_bound * diameter) ** 2
    newtons = newton_steps(domain, gammas)

    def init(start: Array | None) -> Usc:
        x = started(domain, start)
        return Usc(meta.init(None), descents.init(x), newtons.init(x))

    def decisions(state: Usc) -> Array:
        return np.concatenate([state.descents.decisions, state.newtons.decisions])

    def act(state: Usc) -> Array:
        return meta.act(state.weights) @ decisions(state)

    def observe(state: Usc, gradient: Array) -> Usc:
        g = checked(gradient, (domain.dim,), gradient_bound)
        linear_losses, own = surrogate_gradients(strong, exp, decisions(state), act(state), g)
        return Usc(
            meta.observe(state.weights, linear_losses),
            descents.observe(state.descents, own[: n + 1]),
            newtons.observe(state.newtons, own[n + 1 :]),
        )

    return Learner(domain.dim, init, act, observe, lambda state: act(state)[None])
