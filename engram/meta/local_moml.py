"""Memory-based MAML for personalized federated learning.

Wang, Yuan, Ying, Yang. Memory-Based Optimization Methods for Model-Agnostic
Meta-Learning and Personalized Federated Learning. JMLR 2023. Below, "(6)" is an equation
and "Alg. 3" an algorithm of that paper; w is the meta-model and u a client's memory.
"""

from engram.checks import anywhere, require
from engram.meta.meta_gradient import meta_gradient
from engram.optimizers import descent
from engram.tree import interpolate
from engram.types import Batch, LocalRule, LossFn, Params, Scale

__all__ = ["local_moml", "per_fedavg"]


def local_moml(
    loss: LossFn, *, alpha: Scale, beta: Scale, eta: Scale, hessian: str = "exact"
) -> LocalRule:
    """Builds the client's part of LocalMOML (Alg. 3).

    A step first moves the memory towards one gradient step from the meta-model, then
    moves the meta-model along the gradient taken at the memory::

        u <- (1 - beta) u + beta (w - alpha grad L1(w))             (6)
        w <- w - eta (I - alpha hess L2(w)) grad L3(u)              (7)

    where Li is the loss on the i-th of the step's three independent batches (two, L1 and L3,
    in the first-order variant).

    A client without a memory starts from ``u <- w - alpha grad L0(w)`` on a batch of its
    own (Alg. 3, line 6). That is every client of every round if memories are reset
    (cross-device). If they are carried over (cross-silo), Alg. 3 only says that u comes from the
    previous round, so here a client's first round starts in the same way.

    Args:
        loss: Mean loss over one batch; twice differentiable in the parameters.
        alpha: Adaptation step size, in parameter units per unit of gradient; >= 0.
            ``alpha=0, beta=1`` is plain SGD on L3.
        beta: Weight of the newest adaptation in the memory, in (0, 1]. ``beta=1`` forgets
            the past and is Per-FedAvg (Sec. 5.1); the paper suggests 0.5.
        eta: Meta step size, in parameter units per unit of gradient; > 0.
        hessian: How (7) treats the Hessian; one of ``curvature.HESSIANS``.

    Returns:
        A rule whose state is u, a model with the shapes of w.

    Raises:
        ValueError: If a step size or weight is out of range, or the variant is unknown.
    """
    require((beta > 0) & (beta <= 1), "beta", beta, "in (0, 1]")
    require(eta > 0, "eta", eta, "positive")
    meta = meta_gradient(loss, alpha, hessian)
    remembers = anywhere(beta < 1)

    def init(w: Params, batch: Batch | None) -> Params:
        # With beta = 1 the first step replaces u whatever it was, and no sample is drawn.
        return w if batch is None else meta.adapt(w, batch)

    def direction(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        first, *others = batches
        u = interpolate(u, meta.adapt(w, first), beta)
        return meta.at(w, u, others), u

    return LocalRule(
        init=init,
        step=descent(direction, eta),
        batches_per_step=1 + meta.batches,
        needs_initial_batch=remembers,
        state_is_model=remembers,
        reads_state=remembers,
        affine=hessian != "finite-difference",  # which takes norms
        single_use=meta.batches == 1,
        direction=direction,
        eta=eta,
    )


def per_fedavg(loss: LossFn, *, alpha: Scale, eta: Scale, hessian: str = "exact") -> LocalRule:
    """Builds Per-FedAvg: LocalMOML without memory. With one local step it is MAML."""
    return local_moml(loss, alpha=alpha, beta=1.0, eta=eta, hessian=hessian)
