"""Sums of clipped gradients of single rows: ``sum_i g_i min(1, C / |g_i|)``.

In dense networks no row's gradient is formed: that of a layer's weight is the product of the
layer's input a and of the gradient delta by its output, with norm ``|a| |delta|`` (Goodfellow.
Efficient Per-Example Gradient Computations. 2015). So norms and the scaled sum come from one pass.
"""

from collections.abc import Callable, Set
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from engram.core.slots import pick
from engram.core.tree import norm
from engram.core.types import Batch, LossFn, Params

Sums = Callable[[Params, Batch, Tensor, float, Set[str] | None], Params]
"""``(w, batch, taken, bound, names) -> sum_i taken_i g_i min(1, bound / |g_i|)``: over the rows of
a batch, of the gradients of their losses by the parameters of these names."""


def summed(loss: LossFn) -> Sums:
    """Builds sums for any network, from each row's gradient.

    Args:
        loss: ``(params, batch) -> ()``; a row's is that of a batch of one. Keys of dropout
            are the rows', (n,), so that no row's depends on the others of its batch.
    """

    def sums(w: Params, batch: Batch, taken: Tensor, bound: float, names: Any) -> Params:
        moving = w if names is None else pick(w, names)
        x, y, *keys = batch

        def one(row: Any, key: list[Tensor]) -> Params:
            alone = (*tree_map(lambda leaf: leaf[None], row), *key)
            found: Params = grad(lambda at: loss(w | at, alone))(moving)
            return found

        each = vmap(one)((x, y), keys)
        scale = _scale(norm(each, leading=1), taken, bound)
        return {name: torch.tensordot(scale, _finite(g), dims=1) for name, g in each.items()}

    return sums


def dense_sums(row_loss: Callable[[Tensor, Tensor], Tensor], layers: int) -> Sums:
    """Builds the same for a dense ReLU network on flattened inputs.

    Args:
        row_loss: ``(outputs (1, out), targets (1, ...)) -> ()``, the loss of a batch of one.
        layers: Number of dense layers, the last included; >= 1.
    """

    def sums(w: Params, batch: Batch, taken: Tensor, bound: float, names: Any) -> Params:
        x, y = batch
        inputs = [x.flatten(1)]
        for i in range(layers - 1):
            inputs.append(_affine(w, i, inputs[-1]).relu())
        z = _affine(w, layers - 1, inputs[-1])
        deltas = [vmap(grad(lambda z, y: row_loss(z[None], y[None])))(z, y)]
        for i in range(layers - 1, 0, -1):
            deltas.insert(0, (deltas[0] @ w[f"dense{i}.weight"]) * inputs[i].sign())
        moving = {name for name in w if names is None or name in names}
        squares = torch.zeros_like(taken)
        for i, (a, d) in enumerate(zip(inputs, deltas, strict=True)):
            ones = float(f"dense{i}.bias" in moving)
            more = a.square().sum(1) if f"dense{i}.weight" in moving else 0.0
            squares = squares + d.square().sum(1) * (more + ones)
        scale = _scale(squares.sqrt(), taken, bound)
        found = {}
        for i, (a, d) in enumerate(zip(inputs, deltas, strict=True)):
            scaled = _finite(d) * scale[:, None]
            found[f"dense{i}.weight"] = scaled.mT @ _finite(a)
            found[f"dense{i}.bias"] = scaled.sum(0)
        return {name: leaf for name, leaf in found.items() if name in moving}

    return sums


def _affine(w: Params, layer: int, x: Tensor) -> Tensor:
    return x @ w[f"dense{layer}.weight"].mT + w[f"dense{layer}.bias"]


def _scale(norms: Tensor, taken: Tensor, bound: float) -> Tensor:
    """Returns the factor of each row's gradient; 0 if that is not finite."""
    return torch.where(norms.isfinite(), (bound / norms).clamp(max=1.0), 0.0) * taken


def _finite(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, 0.0)  # 0 times infinity
