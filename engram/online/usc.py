"""USC: Adapt-ML-Prod over base learners that guess the curvature.

Zhang, Wang, Yi, Yang. A Simple yet Universal Strategy for Online Convex Optimization. ICML 2022.
This is the form of Proposition 1 (Appendix C.1), which takes one gradient per round. Regret is
O(log T) for strongly convex losses, O(d log T) for exp-concave ones and O(sqrt T) for convex ones,
in the worst case.
"""

from typing import NamedTuple

import numpy as np

from engram.core.arrays import Array
from engram.core.checks import require
from engram.online.base_learners import Descent, Newton, descent_pool, started
from engram.online.domains import Domain
from engram.online.experts import Prod, adapt_ml_prod
from engram.online.learner import Learner, checked, positive
from engram.online.newton import newton_steps
from engram.online.surrogates import curvatures, surrogate_gradients


class Usc(NamedTuple):
    """State of ``usc``."""

    weights: Prod  # state of Adapt-ML-Prod
    # State of the base learners for strongly convex losses, and of the one for convex losses.
    descents: Descent
    newtons: Newton  # state of the base learners for exp-concave losses


def usc(domain: Domain, *, gradient_bound: float, horizon: int) -> Learner[Usc]:
    """Builds USC.

    Guesses of curvature are in units of G / R and 1 / (G R), with R = D / 2, as in ``universal``.

    Args:
        domain: The set of decisions.
        gradient_bound: Upper bound G > 0 on the norm of gradients in the domain.
        horizon: T >= 1, the number of rounds; it learns less well in later ones.

    Raises:
        ValueError: If an argument is out of range.
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
