"""BSGD and BSpiderBoost: biased stochastic gradients, the second with reduced variance.

Hu, Zhang, Chen, He. Biased Stochastic First-Order Methods for Conditional Stochastic Optimization
and Applications in Meta Learning. NeurIPS 2020, Alg. 1 and 2.
"""

from typing import NamedTuple

from engram.cohort.stacked_models import expand, mean_of_tasks
from engram.core.checks import require
from engram.core.derivatives import LossWithDerivatives
from engram.core.tree import add_scaled
from engram.core.types import Params, Scale
from engram.meta.meta_gradient import meta_gradient
from engram.meta.single_node import Draw, Episode, MetaRule, check_sampling


class Differences(NamedTuple):
    """BSpiderBoost's state."""

    w: Params  # the meta-models, (r, ...)
    before: Params  # the meta-models of the previous iteration
    z: Params | None  # the estimate of the gradient at w, (r, ...); None before the first iteration
    t: int  # iterations done


def bsgd(
    loss: LossWithDerivatives,
    *,
    tasks_per_step: int,
    batch_size: int,
    alpha: float,
    eta: Scale,
    hessian: str = "exact",
) -> MetaRule[Differences]:
    """Builds BSGD: BSpiderBoost of period 1.

    It is ``w <- w - eta mean_i (I - alpha hess L1_i(w)) grad L2_i(w - alpha grad L1_i(w))``.

    It differs from MAML by (2) of the MOML paper: the Hessian is taken on the batch that adapts, so
    that this is the gradient of a loss. MAML there takes it on an independent batch.
    """
    return bspiderboost(
        loss,
        tasks_per_step=tasks_per_step,
        batch_size=batch_size,
        large_tasks=tasks_per_step,
        period=1,
        alpha=alpha,
        eta=eta,
        hessian=hessian,
    )


def bspiderboost(
    loss: LossWithDerivatives,
    *,
    tasks_per_step: int,
    batch_size: int,
    large_tasks: int,
    period: int,
    alpha: float,
    eta: Scale,
    hessian: str = "exact",
) -> MetaRule[Differences]:
    """Builds BSpiderBoost.

    With BSGD's gradient G(w) on the tasks and rows that an iteration draws, it is ::

        z <- G(w)                     every `period` iterations, on a large batch of tasks
        z <- z + G(w) - G(w before)   otherwise, both on the same tasks and rows
        w <- w - eta z

    A large batch has ``large_tasks`` >= 1 tasks, and ``period`` is q >= 1.
    """
    require(eta > 0, "eta", eta, "positive")
    check_sampling(tasks_per_step, batch_size)
    require(large_tasks >= 1, "large-tasks", large_tasks, "at least 1")
    require(period >= 1, "period", period, "at least 1")
    meta = meta_gradient(loss, alpha, hessian)
    small, large = Draw(tasks_per_step, (batch_size,) * 2), Draw(large_tasks, (batch_size,) * 2)

    def delta(w: Params, episode: Episode) -> Params:
        drawn, (first, second) = episode
        each = expand(w, drawn.shape[1])
        batches = (first, second)[2 - meta.batches :]
        return mean_of_tasks(meta.at(each, meta.adapt(each, first), batches))

    def step(state: Differences, episodes: tuple[Episode, ...]) -> Differences:
        (episode,) = episodes
        z = delta(state.w, episode)
        if state.t % period and state.z is not None:
            change = add_scaled(z, -1.0, delta(state.before, episode))
            z = add_scaled(state.z, 1.0, change)
        return Differences(add_scaled(state.w, -eta, z), state.w, z, state.t + 1)

    cycle = ((large,), *[(small,)] * (period - 1))
    return MetaRule(lambda w: Differences(w, w, None, 0), step, cycle, memories=0)
