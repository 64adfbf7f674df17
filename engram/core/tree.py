"""Arithmetic on parameter dictionaries, and trees of tensors of many clients."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from engram.core.types import Params, Scale

_PART: Final = 2**20  # entries of a tensor that are looked at together
_T = TypeVar("_T")


def select(tree: _T, index: Any) -> _T:
    """Indexes the leading axis of each tensor in a tree."""
    found: _T = tree_map(lambda leaf: leaf[index], tree)
    return found


def repeated(tree: _T, count: int) -> _T:
    """Returns a tree with a new leading axis of this size: copies of its entries."""
    found: _T = tree_map(lambda leaf: leaf.expand(count, *leaf.shape), tree)
    return found


def concatenated(trees: Sequence[_T]) -> _T:
    """Joins trees of tensors along their leading axis."""
    found: _T = tree_map(lambda *leaves: torch.cat(leaves), *trees)
    return found


def stacked(trees: Sequence[_T]) -> _T:
    """Stacks trees of tensors of the same shapes along a new first axis."""
    found: _T = tree_map(lambda *leaves: torch.stack(leaves), *trees)
    return found


def add_scaled(x: Params, scale: Scale, y: Params) -> Params:
    """Returns ``x + scale * y``, leaf by leaf; leaves that y lacks are x's, others are left out."""
    if isinstance(scale, Tensor):
        return x | {n: v + _along(scale, v) * y[n] for n, v in x.items() if n in y}
    return x | {n: torch.add(v, y[n], alpha=scale) for n, v in x.items() if n in y}


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


def clip(params: Params, origin: Params, bound: float) -> Params:
    """Returns ``origin + min(1, bound / |params - origin|) (params - origin)``.

    A model within the bound is returned as it is, to the last bit. Under ``vmap``, each of a
    stack. In float64, where no finite float32 overflows.
    """
    start = {name: leaf.double() for name, leaf in origin.items()}
    end = {name: leaf.double() for name, leaf in params.items()}
    scale = (bound / norm(add_scaled(end, -1.0, start))).clamp(max=1.0)
    held = interpolate(start, end, scale)
    return {name: leaf.to(params[name].dtype) for name, leaf in held.items()}


def norm(x: Params, leading: int = 0) -> Tensor:
    """Returns the Euclidean norm over all leaves, separately for each of stacked models.

    The result keeps ``leading`` axes of stacked models.
    """
    squares = [leaf.square().reshape(*leaf.shape[:leading], -1).sum(-1) for leaf in x.values()]
    return torch.stack(squares).sum(0).sqrt()


def sum_over(function: Callable[..., Tensor], *leaves: Tensor) -> Tensor:
    """Returns the sum of a function of tensors of the same shape, entry by entry.

    It sees large tensors part by part, so that what it makes of them takes little memory.
    """
    if leaves[0].numel() <= _PART:
        return function(*leaves)
    parts = zip(*(torch.split(leaf.reshape(-1), _PART) for leaf in leaves), strict=True)
    return torch.stack([function(*some) for some in parts]).sum()


def distance(x: Params, y: Params | None = None) -> float:
    """Returns the Euclidean distance of parameters from others, or from zero, in float64."""

    def squares(leaf: Tensor, *others: Tensor) -> Tensor:
        found = leaf.to(torch.float64, copy=True)
        for other in others:
            found.sub_(other)
        return found.square_().sum()

    pairs = [(leaf,) if y is None else (leaf, y[name]) for name, leaf in x.items()]
    sums = [sum_over(squares, *pair) for pair in pairs]
    return float(torch.stack(sums).sum().sqrt()) if sums else 0.0


def is_finite(x: Any, leading: int = 0) -> Tensor:
    """Returns whether every entry of every tensor is finite, separately for each of stacked models.

    The result keeps ``leading`` axes of stacked models.
    """
    # A sum passes on what is not finite, and in float64 none of float32 overflows. It is ten times
    # faster than to look at each entry.
    sums = [
        leaf.reshape(*leaf.shape[:leading], -1).sum(-1, dtype=torch.float64)
        if leading
        else sum_over(partial(torch.sum, dtype=torch.float64), leaf)
        for leaf in tree_leaves(x)
    ]
    return torch.stack(sums).sum(0).isfinite() if sums else torch.tensor(True)


def _along(scale: Tensor, leaf: Tensor) -> Tensor:
    return scale.to(leaf).reshape((*scale.shape, *[1] * (leaf.ndim - scale.ndim)))
