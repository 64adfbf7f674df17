"""Arithmetic on parameter dictionaries, and the parts of one that holds several."""

import torch
from torch import Tensor

from engram.types import Params, Scale

__all__ = ["add_scaled", "interpolate", "is_finite", "marked", "multiplied", "norm", "part"]


def add_scaled(x: Params, scale: Scale, y: Params) -> Params:
    """Returns ``x + scale * y``, leaf by leaf; leaves that y lacks are x's, others are left out."""
    both = [name for name in x if name in y]
    if isinstance(scale, Tensor):
        return x | {n: x[n] + _along(scale, x[n]) * y[n] for n in both}
    return x | {n: torch.add(x[n], y[n], alpha=scale) for n in both}


def multiplied(x: Params, scale: Scale) -> Params:
    """Returns ``scale * x``, leaf by leaf."""
    if isinstance(scale, Tensor):
        return {name: _along(scale, leaf) * leaf for name, leaf in x.items()}
    return {name: scale * leaf for name, leaf in x.items()}


def interpolate(x: Params, y: Params, weight: Scale) -> Params:
    """Returns ``(1 - weight) * x + weight * y``, leaf by leaf.

    ``weight=1`` returns ``y`` exactly and ``weight=0`` returns ``x`` exactly, as ``torch.lerp``
    does.
    """
    if isinstance(weight, Tensor):
        return {name: torch.lerp(leaf, y[name], _along(weight, leaf)) for name, leaf in x.items()}
    return {name: torch.lerp(leaf, y[name], weight) for name, leaf in x.items()}


def part(x: Params, mark: str = "") -> Params:
    """Returns the arrays whose names begin with a mark, by what follows it.

    Args:
        x: Arrays of a network's parameters, by their names, and others, by a mark and these names.
        mark: The mark, which ends with a slash; "" for the network's parameters, without any.
    """
    if not mark:
        return {name: leaf for name, leaf in x.items() if "/" not in name}
    return {name.removeprefix(mark): leaf for name, leaf in x.items() if name.startswith(mark)}


def marked(x: Params, mark: str) -> Params:
    """Returns the arrays with a mark before their names, as ``part`` finds them."""
    return {mark + name: leaf for name, leaf in x.items()}


def norm(x: Params, leading: int = 0) -> Tensor:
    """Returns the Euclidean norm over all leaves, separately for each of stacked models.

    Args:
        x: The parameters.
        leading: Number of leading axes of stacked models, which the result keeps.
    """
    squares = [leaf.square().reshape(*leaf.shape[:leading], -1).sum(-1) for leaf in x.values()]
    return torch.stack(squares).sum(0).sqrt()


def is_finite(x: Params) -> Tensor:
    """Returns whether every entry of every leaf is finite: a boolean of shape ()."""
    # A sum passes on what is not finite, and in float64 none of float32 overflows. It is ten times
    # faster than to look at each entry.
    sums = [leaf.sum(dtype=torch.float64) for leaf in x.values()]
    return torch.stack(sums).sum().isfinite()


def _along(scale: Tensor, leaf: Tensor) -> Tensor:
    """Reshapes a scale per stacked model so that it broadcasts over a leaf."""
    return scale.to(leaf).reshape((*scale.shape, *[1] * (leaf.ndim - scale.ndim)))
