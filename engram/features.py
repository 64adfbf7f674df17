"""Networks with learned features (convolutions) below dense layers that are held in a span.

First dense layers then move in the span of the batches' features, not of the inputs. Features
change while they are learned; those of a batch enter the span when its gradient is taken, so each
batch can be differentiated only once. The product with the common weight is one product over all
clients' rows, where a product per client would read a separate matrix for a few rows.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vjp, vmap

from engram.span import Span, SpannedRows
from engram.types import Params

Features = Callable[[Params, Tensor], Tensor]


class FeatureRows(NamedTuple):
    """Inputs of the feature layers, as ``dense.InputRows``."""

    features: Features  # ``(params, inputs (k, ...)) -> (k, in)`` of one network
    names: tuple[str, ...]  # the parameters that the features depend on
    span: Span  # the first dense layers. Its rows are zero where no gradient has been taken yet
    x: Tensor  # the inputs, (c, k, ...)
    start: int  # row of the span that belongs to the first input
    known: int  # number of the span's rows up to the end of this step

    def narrow(self, start: int, stop: int) -> "FeatureRows":
        """See ``InputRows.narrow``."""
        return self._replace(x=self.x[:, start:stop], start=self.start + start)

    def fit(self, held: Tensor) -> Tensor:
        """See ``InputRows.fit``."""
        known = len(self.span.bases) + self.known
        return torch.nn.functional.pad(held, (0, 0, 0, known - held.shape[1]))

    def enter(self, w: Params) -> "_Entered":
        """See ``InputRows.enter``."""
        learned = {name: w[name] for name in self.names}
        if self.x.is_cuda:
            rows, back, *_ = vjp(lambda at: vmap(self.features)(at, self.x), learned)
        else:
            rows, back = _each(self.features, learned, self.x)
        return _Entered(rows, self.span.look(rows, self.start, self.known), self.span, back)


class _Entered(NamedTuple):
    """The features of a batch, as a ``dense.FirstLayer`` for one gradient."""

    rows: Tensor
    seen: SpannedRows
    span: Span
    back: Callable[[Tensor], tuple[Params, ...]]

    def value(self, weight: Tensor, bias: Tensor) -> Tensor:
        """See ``FirstLayer.value``."""
        return self.seen.value(weight, bias)

    def jvp(self, direction: Tensor, bias: Tensor) -> Tensor:
        """Raises an error: Hessian products through the features are not implemented."""
        raise NotImplementedError("learned features in a span have gradients, not Hessian products")

    def vjp(self, delta: Tensor, weight: Tensor) -> Params:
        """See ``FirstLayer.vjp``."""
        upstream = self.span.pull(delta, weight)
        start = self.seen.start - len(self.span.bases)
        self.span.rows[:, start : start + delta.shape[1]] = self.rows
        (learned,) = self.back(upstream)
        return learned | self.seen.vjp(delta, weight)


def _each(
    features: Features, learned: Params, x: Tensor
) -> tuple[Tensor, Callable[[Tensor], tuple[Params, ...]]]:
    """Returns the features, client by client: on a CPU faster than grouped convolutions."""
    stacks = {name: leaf.detach().requires_grad_() for name, leaf in learned.items()}
    with torch.enable_grad():
        each = zip(*(leaf.unbind() for leaf in stacks.values()), strict=True)
        rows = [
            features(dict(zip(stacks, leaves, strict=True)), inputs)
            for leaves, inputs in zip(each, x, strict=True)
        ]

    def back(upstream: Tensor) -> tuple[Params, ...]:
        gradients = torch.autograd.grad(rows, list(stacks.values()), list(upstream.unbind()))
        return (dict(zip(stacks, gradients, strict=True)),)

    return torch.stack([row.detach() for row in rows]), back
