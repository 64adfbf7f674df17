"""Online gradient descent, for losses of known curvature."""

from collections.abc import Callable
from math import sqrt

import numpy as np

from engram.core.arrays import Array
from engram.core.checks import require
from engram.online.base_learners import Descent, descent_pool, vectorized
from engram.online.domains import Domain
from engram.online.learner import Learner, positive


def ogd(
    domain: Domain, *, gradient_bound: float, step: Callable[[int], float] | None = None
) -> Learner[Descent]:
    """Builds x_t+1 = Pi[x_t - eta_t g_t] (Zinkevich, 2003).

    With the default step, D / (G sqrt t), regret is at most 1.5 D G sqrt T for convex losses. With
    1 / (lambda t) it is at most G^2 (1 + ln T) / (2 lambda) for lambda-strongly convex ones.

    Args:
        domain: The set of decisions.
        gradient_bound: Upper bound G > 0 on the norm of gradients in the domain.
        step: ``t -> eta_t`` > 0 for t = 1, 2, ...; D / (G sqrt t) if None.

    Raises:
        ValueError: If ``gradient_bound`` is not finite and positive.
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

    Args:
        domain: The set of decisions.
        gradient_bound: Upper bound G > 0 on the norm of gradients in the domain.
        smoothness: L > 0, the Lipschitz constant of a loss's gradient. Here gamma = 4 L: with steps
            above 2 / (3 L) decisions would not converge to the minimum of a fixed loss.
        strong_convexity: lambda, in [0, L]; 0 for losses that are only convex.

    Raises:
        ValueError: If an argument is out of range.
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
