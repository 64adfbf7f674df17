"""Networks with learned features (convolutions) below dense layers that are held in a span.

First dense layers then move in the span of the batches' features, not of the inputs. Features
change while they are learned, so those of each gradient enter the span when it is taken. In a round
of many clients the product with the common weight is one product over all clients' rows, where a
product per client would read a separate matrix for a few rows.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.func import vjp, vmap

from engram.cohort.dense_gradients import FIRST, dual, parts
from engram.cohort.span_coordinates import Places, Span, SpannedRows
from engram.core.types import Params

Features = Callable[[Params, Tensor], Tensor]


class FeatureRows(NamedTuple):
    """Inputs of the feature layers, as ``dense.InputRows``."""

    features: Features  # ``(params, inputs (k, ...)) -> (k, in)`` of one network
    span: Span  # the first dense layers. Its rows are finite where no gradient has been taken yet
    places: Places  # of the span's rows
    x: Tensor  # the inputs, (c, k, ...)
    known: int  # number of the span's rows, at least up to the end of this step

    def narrow(self, start: int, stop: int) -> Self:
        """See ``InputRows.narrow``."""
        return self._replace(x=self.x[:, start:stop])

    def fit(self, held: Tensor) -> Tensor:
        """See ``InputRows.fit``."""
        known = len(self.span.bases) + self.known
        return torch.nn.functional.pad(held, (0, 0, 0, known - held.shape[1]))

    def enter(self, w: Params) -> "_Entered":
        """See ``InputRows.enter``."""
        learned = {name: leaf for name, leaf in w.items() if not name.startswith("dense")}
        if self.x.is_cuda:
            rows, back, *_ = vjp(lambda at: vmap(self.features)(at, self.x), learned)
        else:
            rows, back = _each(self.features, learned, self.x)
        span = self.span
        if len(span.bases) > 1:
            span = span.reading([part for part in parts(w[FIRST]) if part is not None])
        return _Entered(rows, span.look(rows, 0, self.known), span, self.places, back)


class _Entered(NamedTuple):
    """The features of a batch, as a ``dense.FirstLayer`` for one gradient.

    All may be dual numbers of torch's forward-mode differentiation, but for the span.
    """

    rows: Tensor
    seen: SpannedRows
    span: Span
    places: Places
    back: Callable[[Tensor], tuple[Params, ...]]

    def value(self, weight: Tensor, bias: Tensor) -> Tensor:
        """See ``FirstLayer.value``."""
        return self.seen.value(weight, bias)

    def jvp(self, direction: Tensor, bias: Tensor) -> Tensor:
        """Raises an error: ``dense_gradients.product_by_tangents`` differentiates gradients."""
        raise NotImplementedError("learned features in a span have gradients, not Hessian products")

    def vjp(self, delta: Tensor, weight: Tensor) -> Params:
        """See ``FirstLayer.vjp``."""
        (learned,) = self.back(self.span.pull(delta, weight))
        rows, d_rows = parts(self.rows)
        delta, d_delta = parts(delta)
        first, at = torch.zeros_like(parts(weight)[0]), self._placed(rows)
        first[:, at] = delta
        if d_rows is None or d_delta is None:
            return learned | {FIRST: first}
        tangent = torch.zeros_like(first)  # d (delta' rows) = d_delta' rows + delta' d_rows
        tangent[:, at], tangent[:, self._placed(d_rows)] = d_delta, delta
        return learned | {FIRST: dual(first, tangent)}

    def _placed(self, rows: Tensor) -> slice:
        start, count = self.places.take(rows.shape[1]), rows.shape[1]
        self.span.rows[:, start : start + count] = rows
        first = len(self.span.bases) + start
        return slice(first, first + count)


def _each(
    features: Features, learned: Params, x: Tensor
) -> tuple[Tensor, Callable[[Tensor], tuple[Params, ...]]]:
    """Returns the features, client by client: on a CPU faster than grouped convolutions."""
    values, tangents = {}, {}
    for name, leaf in learned.items():
        value, tangents[name] = parts(leaf)
        values[name] = value.detach().requires_grad_()
    with torch.enable_grad():
        stacks = {n: x if (d := tangents[n]) is None else dual(x, d) for n, x in values.items()}
        each = zip(*(leaf.unbind() for leaf in stacks.values()), strict=True)
        rows = [
            features(dict(zip(stacks, mine, strict=True)), inputs)
            for mine, inputs in zip(each, x, strict=True)
        ]

    def back(upstream: Tensor) -> tuple[Params, ...]:
        gradients = torch.autograd.grad(rows, list(values.values()), list(upstream.unbind()))
        return (dict(zip(values, gradients, strict=True)),)

    with torch.no_grad():  # unlike ``detach``, it keeps tangents
        return torch.stack(rows), back
