"""NASA: running averages of the inner functions and of the gradient, over all tasks.

Ghadimi, Ruszczynski, Wang. A Single Timescale Stochastic Approximation Method for Nested Stochastic
Optimization. SIAM Journal on Optimization 2020, Alg. 1, without constraints, on the problem (1) of
the MOML paper (JMLR 2023), as it is compared there.
"""

from typing import NamedTuple

from engram.cohort.stacked_models import expand, mean_of_tasks
from engram.core.checks import require
from engram.core.derivatives import LossWithDerivatives
from engram.core.tree import add_scaled, interpolate
from engram.core.types import Params, Scale
from engram.meta.meta_gradient import meta_gradient
from engram.meta.single_node import Draw, Episode, MetaRule, check_sampling


class Averaging(NamedTuple):
    """NASA's state."""

    w: Params  # the meta-models, (r, ...)
    # The averages of all tasks' adapted models, (r, n, ...); None before the first iteration.
    u: Params | None
    z: Params | None  # the average of meta-gradients, (r, ...); None before the first iteration


def nasa(
    loss: LossWithDerivatives,
    *,
    tasks: int,
    batch_size: int,
    alpha: float,
    beta: Scale,
    gamma: Scale,
    eta: Scale,
    hessian: str = "exact",
) -> MetaRule[Averaging]:
    """Builds NASA.

    At every iteration, for all n tasks i::

        u_i <- (1 - beta) u_i + beta (w - alpha grad L1_i(w))
        z <- (1 - gamma) z + gamma mean_i (I - alpha hess L2_i(w)) grad L3_i(u_i)
        w <- w - eta z

    The first iteration sets u_i and z to its own adaptations and gradient. The meta-gradient is
    taken at the new u_i; Ghadimi et al. take it at the previous one. So with gamma = 1 this is MOML
    v1 with all tasks.

    ``gamma`` in (0, 1] is the weight of the newest meta-gradient.
    """
    require((beta > 0) & (beta <= 1), "beta", beta, "in (0, 1]")
    require((gamma > 0) & (gamma <= 1), "gamma", gamma, "in (0, 1]")
    require(eta > 0, "eta", eta, "positive")
    check_sampling(tasks, batch_size)
    meta = meta_gradient(loss, alpha, hessian)
    draw = Draw(None, (batch_size,) * (1 + meta.batches))

    def step(state: Averaging, episodes: tuple[Episode, ...]) -> Averaging:
        ((_, (first, *others)),) = episodes
        w = expand(state.w, tasks)
        fresh = meta.adapt(w, first)
        u = fresh if state.u is None else interpolate(state.u, fresh, beta)
        delta = mean_of_tasks(meta.at(w, u, others))
        z = delta if state.z is None else interpolate(state.z, delta, gamma)
        return Averaging(add_scaled(state.w, -eta, z), u, z)

    return MetaRule(lambda w: Averaging(w, None, None), step, ((draw,),), memories=tasks)
