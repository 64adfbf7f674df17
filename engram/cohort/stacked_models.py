"""Many models at once: every leaf has leading axes of runs (r) and of tasks (all n, or b of them).

Runs are independent: they differ in seeds or step sizes. Meta-models have leaves (r, ...), models
of the tasks drawn (r, b, ...), and memories (r, n, ...).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from engram.cohort.dense_gradients import (
    CROSS_ENTROPY,
    Examples,
    Output,
    PlainRows,
    dense_loss,
    logits,
)
from engram.core.derivatives import LossWithDerivatives, gradient, hessian_product
from engram.core.types import Batch, LossFn, Params

_FLAT: Final = "flat"


# --- Losses --------------------------------------------------------------------------------


def stacked_loss(loss: LossFn) -> LossWithDerivatives:
    """Lifts the loss of one model to stacked models and batches (r, b, ...), with values (r, b)."""
    return LossWithDerivatives(
        value=vmap(vmap(loss)),
        gradient=vmap(vmap(gradient(loss))),
        hessian_product=vmap(vmap(hessian_product(loss))),
        leading=2,
    )


class Layout(NamedTuple):
    """The layout of a network's parameters in one flat tensor, which is faster to compute with."""

    shapes: dict[str, tuple[int, ...]]  # the parameters' shapes, in order, by name

    @classmethod
    def of(cls, model: Params) -> "Layout":
        """Returns the layout of a model's parameters."""
        return cls({name: tuple(leaf.shape) for name, leaf in model.items()})

    @property
    def size(self) -> int:
        """Number of parameters, d."""
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    def pack(self, models: Sequence[Params]) -> Params:
        """Returns r models as flat parameters: one leaf (r, d)."""
        rows = [torch.cat([model[name].flatten() for name in self.shapes]) for model in models]
        return {_FLAT: torch.stack(rows)}

    def unpack(self, flat: Params) -> Params:
        """Returns flat parameters (..., d) by name, each (c, *shape), c over all leading axes."""
        rows = flat[_FLAT].reshape(-1, self.size)
        sizes = [torch.Size(shape).numel() for shape in self.shapes.values()]
        parts = torch.split(rows, sizes, dim=1)
        pairs = zip(self.shapes.items(), parts, strict=True)
        return {name: part.view(-1, *shape) for (name, shape), part in pairs}

    def one(self, flat: Params) -> Params:
        """Returns one model's flat parameters (d,) by name."""
        return {name: leaf[0] for name, leaf in self.unpack(flat).items()}

    def join(self, leaves: Params, like: Params) -> Params:
        """Undoes ``unpack``; the leading axes are those of ``like``."""
        flat = torch.cat([leaves[name].flatten(1) for name in self.shapes], dim=1)
        return {_FLAT: flat.view(like[_FLAT].shape)}


def dense_stacks(layout: Layout, output: Output = CROSS_ENTROPY) -> LossWithDerivatives:
    """Builds the mean loss of stacked dense networks, as flat parameters (r, b, d).

    It equals ``stacked_loss`` of one network's loss, and is about ten times as fast; see
    ``engram.cohort.dense_gradients``. Batches are inputs (r, b, k, in) and targets (r, b, k, out),
    with classes as one-hot indicators.
    """
    loss = dense_loss(_layers(layout), output)

    def rows(batch: Batch) -> Examples:
        x, y = batch
        return Examples(PlainRows(x.flatten(0, 1)), y.flatten(0, 1))

    def value(w: Params, batch: Batch) -> Tensor:
        return loss.value(layout.unpack(w), rows(batch)).view(w[_FLAT].shape[:-1])

    def gradient_(w: Params, batch: Batch) -> Params:
        return layout.join(loss.gradient(layout.unpack(w), rows(batch)), w)

    def product(w: Params, batch: Batch, v: Params) -> Params:
        inner = loss.hessian_product(layout.unpack(w), rows(batch), layout.unpack(v))
        return layout.join(inner, w)

    return LossWithDerivatives(value, gradient_, product, leading=2)


def outputs(layout: Layout, w: Params, x: Tensor) -> Tensor:
    """Returns the outputs (r, b, k, out) of dense networks (r, b, d) for inputs (r, b, k, in)."""
    z = logits(layout.unpack(w), PlainRows(x.flatten(0, 1)), _layers(layout))
    return z.view(*x.shape[:3], -1)


def _layers(layout: Layout) -> int:
    return len(layout.shapes) // 2  # each has a weight and a bias


# --- Runs and tasks ------------------------------------------------------------------------


def expand(w: Params, tasks: int) -> Params:
    """Gives every task its run's model: (r, ...) -> (r, tasks, ...), a view."""
    return {name: leaf.unsqueeze(1).expand(-1, tasks, *leaf.shape[1:]) for name, leaf in w.items()}


def mean_of_tasks(x: Params) -> Params:
    """Returns each run's mean over its tasks: (r, b, ...) -> (r, ...)."""
    return {name: leaf.mean(1) for name, leaf in x.items()}


def gather(u: Params, tasks: Tensor) -> Params:
    """Returns the models of some tasks (r, b) of each run: (r, n, ...) -> (r, b, ...)."""
    return {
        name: leaf.flatten(0, 1)
        .index_select(0, _rows(tasks, leaf.shape[1]))
        .view(*tasks.shape, *leaf.shape[2:])
        for name, leaf in u.items()
    }


def scatter(u: Params, tasks: Tensor, models: Params) -> None:
    """Writes the models (r, b, ...) of some tasks (r, b) into u (r, n, ...), in place."""
    for name, leaf in u.items():
        rows = _rows(tasks, leaf.shape[1])
        # A view, or an error: a copy would be written to, and lost.
        leaf.view(-1, *leaf.shape[2:]).index_copy_(0, rows, models[name].flatten(0, 1))


def _rows(tasks: Tensor, n: int) -> Tensor:
    runs = torch.arange(len(tasks), device=tasks.device).unsqueeze(1)
    return (runs * n + tasks).flatten()
