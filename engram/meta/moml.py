"""MOML: MAML with a memory for every task, on a single node.

Wang, Yuan, Ying, Yang. Memory-Based Optimization Methods for Model-Agnostic Meta-Learning and
Personalized Federated Learning. JMLR 2023, Sec. 4. Below, "(3)" is an equation and "Alg. 1" an
algorithm of that paper; w is the meta-model, u_i the memory of task i, n the number of tasks.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from engram.cohort.stacked_models import expand, gather, mean_of_tasks, scatter
from engram.core.checks import require
from engram.core.derivatives import LossWithDerivatives, gradient
from engram.core.tree import add_scaled, interpolate, norm
from engram.core.types import Params, Scale
from engram.meta.meta_gradient import meta_gradient
from engram.meta.single_node import Draw, Episode, MetaRule, check_sampling


class Remembering(NamedTuple):
    """MOML v1's state."""

    w: Params  # the meta-models, (r, ...)
    u: Params  # the memories, (r, n, ...)
    known: Tensor  # which memories have been written, (r, n), boolean


def moml_v1(
    loss: LossWithDerivatives,
    *,
    tasks: int,
    tasks_per_step: int,
    batch_size: int,
    alpha: float,
    beta: Scale,
    eta: Scale,
    hessian: str = "exact",
) -> MetaRule[Remembering]:
    """Builds MOML v1 (Alg. 1).

    For the B tasks i that an iteration draws::

        u_i <- (1 - beta) u_i + beta (w - alpha grad L1_i(w))                   (v1)
        w <- w - eta mean_i (I - alpha hess L2_i(w)) grad L3_i(u_i)             (3)

    The other memories stay the same. Alg. 1 does not say where memories start. Here each starts at
    its first adaptation, in the first iteration that draws its task, so that no samples are spent
    and no memories written for tasks that are never drawn.

    With ``beta`` = 1 this is MAML.
    """
    require((beta > 0) & (beta <= 1), "beta", beta, "in (0, 1]")
    require(eta > 0, "eta", eta, "positive")
    check_sampling(tasks_per_step, batch_size, tasks)
    meta = meta_gradient(loss, alpha, hessian)
    draw = Draw(tasks_per_step, (batch_size,) * (1 + meta.batches))

    def init(w: Params) -> Remembering:
        first = next(iter(w.values()))
        known = torch.zeros(len(first), tasks, dtype=torch.bool, device=first.device)
        return Remembering(w, _zeros(w, tasks), known)

    def step(state: Remembering, episodes: tuple[Episode, ...]) -> Remembering:
        ((drawn, (first, *others)),) = episodes
        w = expand(state.w, tasks_per_step)
        old = state.known.gather(1, drawn)
        newest = torch.as_tensor(beta, dtype=torch.float64, device=old.device).reshape(-1, 1)
        weight = torch.where(old, newest, 1.0)
        u = interpolate(gather(state.u, drawn), meta.adapt(w, first), weight)
        scatter(state.u, drawn, u)
        known = state.known.scatter(1, drawn, value=True)
        delta = mean_of_tasks(meta.at(w, u, others))
        return Remembering(add_scaled(state.w, -eta, delta), state.u, known)

    return MetaRule(init, step, ((draw,),), memories=tasks)


class Tracking(NamedTuple):
    """MOML v2's state. Task i's memory is ``u_i = center + shrink * offset_i``."""

    w: Params  # the meta-models, (r, ...)
    center: Params  # the common part of all memories, (r, ...)
    offset: Params  # the memories' own parts before shrinking, (r, n, ...)
    shrink: Tensor  # factor of the offsets, (r,), in (0, 1]
    eta: Tensor  # step size of the previous iteration, (r,)


class StepSizes(NamedTuple):
    """MOML v2's step sizes eta_t and weights beta_t.

    Attributes:
        of: ``(w, eta before, episodes) -> (eta_t, beta_t)``, each (r,); the episodes are those
            that ``draws`` requests.
        before: eta_{-1}.
        draws: The samples needed to compute the step sizes.
    """

    of: Callable[[Params, Tensor, tuple[Episode, ...]], tuple[Scale, Scale]]
    before: Scale
    draws: tuple[Draw, ...]


def constant_steps(*, beta: Scale, eta: Scale) -> StepSizes:
    """Builds constant step sizes: beta in (0, 1], eta > 0."""
    require((beta > 0) & (beta <= 1), "beta", beta, "in (0, 1]")
    require(eta > 0, "eta", eta, "positive")
    return StepSizes(lambda w, before, episodes: (eta, beta), before=eta, draws=())


def adaptive_steps(
    loss: LossWithDerivatives,
    *,
    alpha: float,
    eta: float,
    smoothness: float,
    hessian_smoothness: float,
    tasks_per_step: int,
    batch_size: int,
) -> StepSizes:
    """Builds the step sizes of Sec. 4.3, for unbounded gradients.

    They are ::

        eta_t = eta_0 / L^(w_t),    L^(w) = 4 L + 2 rho alpha mean_i |grad L_i(w)|
        beta_t = 6 L^2 eta_0^(-1/3) eta_{t-1}

    with the mean over tasks and batches that are drawn for this purpose alone. The paper does not
    define eta_{-1}; here it is eta_0 / (4 L), the largest value that eta_t can have.

    Args:
        loss: A stacked loss.
        alpha: Adaptation step size; >= 0.
        eta: eta_0; > 0 and at most ``(3 L)^(-3/2)``, the first bound of Lemma 4, so that
            beta_t is at most 1/2.
        smoothness: L, the Lipschitz constant of the losses' gradients; > 0.
        hessian_smoothness: rho, the Lipschitz constant of their Hessians; >= 0.
        tasks_per_step: Tasks in the mean; >= 1.
        batch_size: Rows of each; >= 1.
    """
    check_sampling(tasks_per_step, batch_size)
    require(alpha >= 0, "alpha", alpha, "at least 0")
    require(smoothness > 0, "smoothness", smoothness, "positive")
    require(hessian_smoothness >= 0, "hessian-smoothness", hessian_smoothness, "at least 0")
    largest = (3 * smoothness) ** -1.5
    require(0 < eta <= largest, "eta", eta, f"in (0, {largest:.4g}], by Lemma 4")
    grad = gradient(loss)

    def of(w: Params, before: Tensor, episodes: tuple[Episode, ...]) -> tuple[Scale, Scale]:
        ((drawn, (batch,)),) = episodes
        norms = norm(grad(expand(w, drawn.shape[1]), batch), leading=2)
        bound = 4 * smoothness + 2 * hessian_smoothness * alpha * norms.mean(1)
        return eta / bound, 6 * smoothness**2 * eta ** (-1 / 3) * before

    return StepSizes(of, eta / (4 * smoothness), (Draw(tasks_per_step, (batch_size,)),))


def moml_v2(
    loss: LossWithDerivatives,
    *,
    tasks: int,
    tasks_per_step: int,
    batch_size: int,
    alpha: float,
    steps: StepSizes,
    hessian: str = "exact",
) -> MetaRule[Tracking]:
    """Builds MOML v2 (Alg. 2).

    An iteration draws two independent batches of B tasks. The first one moves memories::

        u_i <- (1 - beta_t) u_i + beta_t w + beta_t (n/B) 1[i drawn] (v_i - w)    (v2)

    with ``v_i = w - alpha grad L1_i(w)``, for all n tasks i; the second one moves w by (3). All
    memories start at w.

    The part of (v2) that is the same for all memories is stored once: with ``u_i = c + s o_i`` ::

        c <- (1 - beta_t) c + beta_t w
        s <- (1 - beta_t) s
        o_i <- o_i - (beta_t / s) (n/B) alpha grad L1_i(w)    for the i drawn

    so an iteration costs as much as B tasks, not n. Before s becomes too small, it is multiplied
    into the o_i.

    ``steps`` are ``constant_steps`` or ``adaptive_steps``.
    """
    check_sampling(tasks_per_step, batch_size, tasks)
    grad, meta = gradient(loss), meta_gradient(loss, alpha, hessian)
    few = [Draw(tasks_per_step, (batch_size,) * count) for count in (1, meta.batches)]
    draws = (*few, *steps.draws)
    odds = tasks / tasks_per_step  # 1 / p_i

    def init(w: Params) -> Tracking:
        first = next(iter(w.values()))
        ones = first.new_ones(len(first))
        return Tracking(w, w, _zeros(w, tasks), ones, ones * steps.before)

    def step(state: Tracking, episodes: tuple[Episode, ...]) -> Tracking:
        (moved, (first,)), (drawn, others), *seen = episodes
        eta, beta = steps.of(state.w, state.eta, tuple(seen))
        w = expand(state.w, tasks_per_step)
        center = interpolate(state.center, state.w, beta)
        shrink = _room_to_shrink(state.offset, state.shrink * (1 - beta))
        offset = gather(state.offset, moved)
        scale = (-alpha * odds) * beta / shrink
        scatter(state.offset, moved, add_scaled(offset, scale.unsqueeze(1), grad(w, first)))
        u = add_scaled(expand(center, tasks_per_step), shrink, gather(state.offset, drawn))
        delta = mean_of_tasks(meta.at(w, u, others))
        w_next = add_scaled(state.w, -eta, delta)
        return Tracking(w_next, center, state.offset, shrink, torch.ones_like(shrink) * eta)

    return MetaRule(init, step, (draws,), memories=tasks)


def _room_to_shrink(offset: Params, shrink: Tensor) -> Tensor:
    """Multiplies the factor into the offsets, in place, before it leaves float32's range."""
    # Offsets grow as shrink falls, and keep their precision; at 1e-12 both are far from the ends.
    if bool((shrink > 1e-12).all()):
        return shrink
    for leaf in offset.values():
        leaf.mul_(shrink.reshape(-1, *[1] * (leaf.ndim - 1)))
    return torch.ones_like(shrink)


def _zeros(w: Params, tasks: int) -> Params:
    return {name: leaf.new_zeros(len(leaf), tasks, *leaf.shape[1:]) for name, leaf in w.items()}
