"""Steps in a norm that grows with the gradients, for exp-concave losses.

A loss f is alpha-exp-concave if exp(-alpha f) is concave: it may be flat in some directions, but is
curved in the direction of its gradient.
"""

import numpy as np

from engram.core.arrays import Array
from engram.online.base_learners import Newton, Pool, newton_pool, vectorized
from engram.online.domains import Domain
from engram.online.learner import Learner, positive


def newton_steps(domain: Domain, gammas: Array) -> Pool[Newton]:
    """Builds x_t+1 = Pi_A[x_t - A^-1 g_t / gamma], A = I / (gamma D)^2 + sum_s<=t g_s g_s'.

    Regret is at most d / (2 gamma) ln(1 + T (gamma G D)^2) + 1 / (2 gamma) where losses f have
    f(x) - f(u) <= <g, x - u> - gamma / 2 <g, x - u>^2.

    Args:
        domain: The set of decisions.
        gammas: gamma > 0 of each learner, shape (N,).
    """
    return newton_pool(domain, 1 / (gammas * domain.diameter**2), gammas, optimistic=False)


def online_newton_step(
    domain: Domain, *, gradient_bound: float, exp_concavity: float
) -> Learner[Newton]:
    """Builds the online Newton step (Hazan, Agarwal, Kale, 2007).

    Regret is at most 5 (1 / alpha + G D) d ln T.

    Args:
        domain: The set of decisions.
        gradient_bound: Upper bound G > 0 on the norm of gradients in the domain.
        exp_concavity: alpha > 0.

    Raises:
        ValueError: If an argument is out of range.
    """
    positive(gradient_bound=gradient_bound, exp_concavity=exp_concavity)
    gamma = min(1 / (4 * gradient_bound * domain.diameter), exp_concavity) / 2
    return vectorized(newton_steps(domain, np.array([gamma])), domain, gradient_bound)


def optimistic_newton(
    domain: Domain, *, gradient_bound: float, smoothness: float, exp_concavity: float
) -> Learner[Newton]:
    """Builds the optimistic mirror descent of Lemma 11.

    It expects each gradient to recur. Regret grows as d / alpha log(V_T), where V_T is the total
    variation of gradients between rounds.

    Args:
        domain: The set of decisions.
        gradient_bound: Upper bound G > 0 on the norm of gradients in the domain.
        smoothness: L > 0, the Lipschitz constant of a loss's gradient; gamma = 4 L, as in
            ``descent.optimistic_ogd``.
        exp_concavity: alpha > 0, such that f(x) - f(u) <= <g, x - u> - alpha / 2 <g, x - u>^2.

    Raises:
        ValueError: If an argument is out of range.
    """
    positive(gradient_bound=gradient_bound, smoothness=smoothness, exp_concavity=exp_concavity)
    ridge = 4 * smoothness + exp_concavity * gradient_bound**2 / 2
    pool = newton_pool(domain, np.array([ridge]), np.array([exp_concavity / 2]), optimistic=True)
    return vectorized(pool, domain, gradient_bound)
