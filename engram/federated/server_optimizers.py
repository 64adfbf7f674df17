"""Adaptive optimizers on the server: FedAdagrad, FedYogi and FedAdam.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. Adaptive Federated Optimization.
ICLR 2021, Alg. 2.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal

import torch
from torch import Tensor

from engram.aggregates import Aggregate, Update, Weighting, weighted_mean
from engram.checks import require
from engram.tree import add_scaled, interpolate, marked, part
from engram.types import Params

__all__ = ["Variant", "server_optimizer"]

Variant = Literal["adagrad", "yogi", "adam"]

_FIRST, _SECOND = "first/", "second/"  # before the names, in the state, of m and v

_SECONDS: Final[dict[Variant, Callable[[Tensor, Tensor, float], Tensor]]] = {
    "adagrad": lambda v, square, beta: v + square,
    "yogi": lambda v, square, beta: v - (1 - beta) * square * (v - square).sign(),
    "adam": lambda v, square, beta: torch.lerp(square, v, beta),
}


def server_optimizer(
    variant: Variant,
    *,
    eta: float,
    beta1: float,
    tau: float,
    beta2: float = 0.0,
    weighting: Weighting = "examples",
) -> Aggregate:
    """Builds Alg. 2 with the mean change D of the clients' models in place of a gradient.

        m <- beta1 m + (1 - beta1) D
        v <- v + D^2                                                    adagrad
        v <- v - (1 - beta2) D^2 sign(v - D^2)                          yogi
        v <- beta2 v + (1 - beta2) D^2                                  adam
        w <- w + eta m / (sqrt(v) + tau)

    m starts at 0 and v at tau^2. As in the paper, neither is corrected for its start.

    Args:
        variant: Which v.
        eta: The server's step size; > 0.
        beta1: Weight of the former m; in [0, 1).
        beta2: Weight of the former v, in [0, 1); adagrad does not read it.
        tau: Degree of adaptivity; > 0. The larger, the more this is FedAvg with momentum, at
            the step size eta / tau.
        weighting: Whether D counts clients, as in Alg. 2, or their examples, as FedAvg does.

    Raises:
        ValueError: If a value is out of range.
    """
    require(eta > 0, "server-eta", eta, "positive")
    require(0 <= beta1 < 1, "beta1", beta1, "at least 0, below 1")
    require(0 <= beta2 < 1, "beta2", beta2, "at least 0, below 1")
    require(tau > 0, "tau", tau, "positive")

    def init(model: Params) -> Params:
        first = {name: torch.zeros_like(leaf) for name, leaf in model.items()}
        second = {name: torch.full_like(leaf, tau**2) for name, leaf in model.items()}
        return marked(first, _FIRST) | marked(second, _SECOND)

    def merge(model: Params, state: Params, updates: Sequence[Update]) -> tuple[Params, Params]:
        change = add_scaled(weighted_mean(updates), -1.0, model)
        first = interpolate(change, part(state, _FIRST), beta1)
        second = {
            name: _SECONDS[variant](leaf, change[name].square(), beta2)
            for name, leaf in part(state, _SECOND).items()
        }
        step = {name: first[name] / (second[name].sqrt() + tau) for name in model}
        return add_scaled(model, eta, step), marked(first, _FIRST) | marked(second, _SECOND)

    return Aggregate(init=init, merge=merge, weighting=weighting, additive=True)
