"""Online gradient descent and Newton steps, for losses of known curvature.

Newton steps are in a norm that grows with the gradients, for exp-concave losses: a loss f is
alpha-exp-concave if exp(-alpha f) is concave. It may be flat in some directions, but is curved in
the direction of its gradient.

Everywhere ``domain`` is the set of decisions, and ``gradient_bound`` is G > 0, an upper bound on
the norm of gradients in the domain. An argument that is out of range raises ``ValueError``.
"""

from collections.abc import Callable
from math import sqrt

import numpy as np

from engram.core.arrays import Array
from engram.core.checks import require
from engram.online.domains import Domain
from engram.online.learner import (
    Descent,
    Learner,
    Newton,
    Pool,
    descent_pool,
    newton_pool,
    positive,
    vectorized,
)


def ogd(
    domain: Domain, *, gradient_bound: float, step: Callable[[int], float] | None = None
) -> Learner[Descent]:
    """Builds x_t+1 = Pi[x_t - eta_t g_t] (Zinkevich, 2003).

    With the default step, D / (G sqrt t), regret is at most 1.5 D G sqrt T for convex losses. With
    1 / (lambda t) it is at most G^2 (1 + ln T) / (2 lambda) for lambda-strongly convex ones.
    ``step`` maps t = 1, 2, ... to eta_t > 0.
    """
    positive(gradient_bound=gradient_bound)
    scale = domain.diameter / gradient_bound
    eta = step or (lambda t: scale / sqrt(t))
    pool = descent_pool(domain, 1, lambda t, v: np.array([eta(t)]), optimistic=False)
    return vectorized(pool, domain, gradient_bound)


def optimistic_ogd(
    domain: Domain, *, gradient_bound: float, smoothness: float, strong_convexity: float = 0.0
) -> Learner[Descent]:
    """Builds (E.4), which expects each gradient to recur.

    Regret grows with V_T, the total variation of gradients between rounds: as sqrt(V_T) for convex
    losses (Lemma 10), and as log(V_T) for strongly convex ones (Lemma 12).

    ``smoothness`` is L > 0, the Lipschitz constant of a loss's gradient. Here gamma = 4 L: with
    steps above 2 / (3 L) decisions would not converge to the minimum of a fixed loss.
    ``strong_convexity`` is lambda, in [0, L]; 0 for losses that are only convex.
    """
    positive(gradient_bound=gradient_bound, smoothness=smoothness)
    known = 0 <= strong_convexity <= smoothness
    require(known, "strong_convexity", strong_convexity, f"in [0, smoothness = {smoothness:g}]")
    diameter, gamma = domain.diameter, 4 * smoothness

    def step(t: int, variations: Array) -> Array:
        if strong_convexity > 0:
            return np.array([2 / (gamma + strong_convexity * t)])
        # The paper's 1 + V has no units, so that the same losses in others would get other steps;
        # G^2 has V's, and is as good in its proof.
        return np.minimum(diameter / np.sqrt(gradient_bound**2 + variations), 1 / gamma)

    pool = descent_pool(domain, 1, step, optimistic=True)
    return vectorized(pool, domain, gradient_bound)


def newton_steps(domain: Domain, gammas: Array) -> Pool[Newton]:
    """Builds x_t+1 = Pi_A[x_t - A^-1 g_t / gamma], A = I / (gamma D)^2 + sum_s<=t g_s g_s'.

    Regret is at most d / (2 gamma) ln(1 + T (gamma G D)^2) + 1 / (2 gamma) where losses f have
    f(x) - f(u) <= <g, x - u> - gamma / 2 <g, x - u>^2. ``gammas`` has gamma > 0 of each learner,
    shape (N,).
    """
    return newton_pool(domain, 1 / (gammas * domain.diameter**2), gammas, optimistic=False)


def online_newton_step(
    domain: Domain, *, gradient_bound: float, exp_concavity: float
) -> Learner[Newton]:
    """Builds the online Newton step (Hazan, Agarwal, Kale, 2007).

    Regret is at most 5 (1 / alpha + G D) d ln T; ``exp_concavity`` is alpha > 0.
    """
    positive(gradient_bound=gradient_bound, exp_concavity=exp_concavity)
    gamma = min(1 / (4 * gradient_bound * domain.diameter), exp_concavity) / 2
    return vectorized(newton_steps(domain, np.array([gamma])), domain, gradient_bound)


def optimistic_newton(
    domain: Domain, *, gradient_bound: float, smoothness: float, exp_concavity: float
) -> Learner[Newton]:
    """Builds the optimistic mirror descent of Lemma 11.

    It expects each gradient to recur. Regret grows as d / alpha log(V_T), where V_T is the total
    variation of gradients between rounds. ``smoothness`` is L > 0, the Lipschitz constant of a
    loss's gradient, and gamma = 4 L, as in ``optimistic_ogd``; ``exp_concavity`` is alpha > 0, such
    that f(x) - f(u) <= <g, x - u> - alpha / 2 <g, x - u>^2.
    """
    positive(gradient_bound=gradient_bound, smoothness=smoothness, exp_concavity=exp_concavity)
    ridge = 4 * smoothness + exp_concavity * gradient_bound**2 / 2
    pool = newton_pool(domain, np.array([ridge]), np.array([exp_concavity / 2]), optimistic=True)
    return vectorized(pool, domain, gradient_bound)
