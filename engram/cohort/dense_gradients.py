"""Dense ReLU networks of a whole cohort, with their derivatives written out.

Every leaf has a leading client axis c, and every operation is one batched product over it. Autograd
would record and traverse a graph in each step; here gradients are computed by their formulas, and a
Hessian-vector product by one additional pass of tangents (Pearlmutter. Fast Exact Multiplication by
the Hessian. Neural Computation 6, 1994).
"""

import threading
from collections.abc import Callable, Sequence, Set
from typing import Final, NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual

from engram.core.derivatives import LossWithDerivatives
from engram.core.types import Batch, Params

FIRST: Final = "dense0.weight"
_ONE_AT_A_TIME: Final = threading.Lock()  # torch has one level of dual numbers in all threads


class FirstLayer(Protocol):
    """The first layer on some rows, as a linear map of its weights in some coordinates."""

    def value(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Returns the rows' outputs (c, k, out) for a weight and a bias (c, out)."""

    def jvp(self, direction: Tensor, bias: Tensor) -> Tensor:
        """Returns the change (c, k, out) of the outputs along a direction of both."""

    def vjp(self, delta: Tensor, weight: Tensor) -> Params:
        """Maps ``delta``, the gradient by outputs, to gradients by the weight and lower layers."""


class InputRows(Protocol):
    """Some input rows of every client."""

    def narrow(self, start: int, stop: int) -> "InputRows":
        """Returns the rows from ``start`` to ``stop``."""

    def fit(self, held: Tensor) -> Tensor:
        """Extends a first-layer weight to the coordinates that these rows use."""

    def enter(self, w: Params) -> FirstLayer:
        """Returns the first dense layer of networks w on these rows."""


class FirstLayerCoordinates(Protocol):
    """Coordinates in which the first-layer weights of a cohort are stored."""

    @property
    def drawn(self) -> Tensor:
        """Buffer for the inputs that the cohort draws, (c, n, in); fill it before ``see``."""

    def base(self, number: int) -> Tensor:
        """Returns a weight that clients begin with in these coordinates, for every client."""

    def reading(self, held: Sequence[Tensor]) -> Self:
        """Returns the coordinates for outputs of combinations of these weights, and gradients."""

    def see(self, start: int, stop: int) -> InputRows:
        """Returns drawn rows for gradients, in the order of the draw."""

    def see_others(self, x: Tensor) -> InputRows:
        """Returns other rows (c, k, in), for outputs only."""

    def weights(self, held: Tensor) -> Tensor:
        """Returns each client's weight, (c, out, in)."""

    def mean(self, held: Tensor, shares: Tensor) -> Tensor:
        """Returns the clients' mean weight (out, in); the shares (c,) add up to 1."""

    def of(self, clients: list[int] | slice, weight: Tensor | None = None) -> Self:
        """Returns the coordinates of some clients.

        Args:
            clients: Their positions.
            weight: The first base, (out, in), if it is the same for all of them; else None.
        """


class PlainRows(NamedTuple):
    """Inputs (c, k, in) for plain weights (c, out, in): ``InputRows`` and ``FirstLayer``."""

    x: Tensor

    def narrow(self, start: int, stop: int) -> Self:
        """See ``InputRows.narrow``."""
        return self._replace(x=self.x[:, start:stop])

    def fit(self, held: Tensor) -> Tensor:
        """See ``InputRows.fit``."""
        return held

    def enter(self, w: Params) -> Self:
        """See ``InputRows.enter``."""
        del w
        return self

    def value(self, weight: Tensor, bias: Tensor) -> Tensor:
        """See ``FirstLayer.value``."""
        return torch.baddbmm(bias.unsqueeze(1), self.x, weight.mT)

    def jvp(self, direction: Tensor, bias: Tensor) -> Tensor:
        """See ``FirstLayer.jvp``."""
        return self.value(direction, bias)  # which is linear

    def vjp(self, delta: Tensor, weight: Tensor) -> Params:
        """See ``FirstLayer.vjp``."""
        del weight
        return {FIRST: torch.bmm(delta.mT, self.x)}


class PlainCoordinates(NamedTuple):
    """The weights themselves, (c, out, in), as ``FirstLayerCoordinates``."""

    # The weights that clients begin with: a common one, (out, in), or each client's, (c, out, in).
    bases: tuple[Tensor, ...]
    drawn: Tensor  # see ``FirstLayerCoordinates.drawn``

    def base(self, number: int) -> Tensor:
        """See ``FirstLayerCoordinates.base``."""
        base = self.bases[number]
        return base.expand(len(self.drawn), *base.shape[-2:])

    def reading(self, held: Sequence[Tensor]) -> Self:
        """See ``FirstLayerCoordinates.reading``."""
        del held
        return self

    def see(self, start: int, stop: int) -> PlainRows:
        """See ``FirstLayerCoordinates.see``."""
        return PlainRows(self.drawn[:, start:stop])

    def see_others(self, x: Tensor) -> PlainRows:
        """See ``FirstLayerCoordinates.see_others``."""
        return PlainRows(x)

    def weights(self, held: Tensor) -> Tensor:
        """See ``FirstLayerCoordinates.weights``."""
        return held

    def mean(self, held: Tensor, shares: Tensor) -> Tensor:
        """See ``FirstLayerCoordinates.mean``."""
        mean: Tensor = torch.tensordot(shares, held, dims=1)
        return mean

    def of(self, clients: list[int] | slice, weight: Tensor | None = None) -> Self:
        """See ``FirstLayerCoordinates.of``; the weights themselves need no base."""
        del weight
        bases = tuple(base if base.ndim == 2 else base[clients] for base in self.bases)
        return self._replace(bases=bases, drawn=self.drawn[clients])


class Examples(NamedTuple):
    """A batch of every client."""

    rows: InputRows
    targets: Tensor  # (c, k, out); for classes, their indicators
    # Each row's part in the mean loss, (c, k): 1 / n for the first n rows of a client, and 0 for
    # its others, which are padding; None if all are 1 / k.
    shares: Tensor | None = None


class Output(NamedTuple):
    """A loss of outputs z (c, k, out), given targets of that shape and ``Examples.shares``."""

    # ``(z, targets, shares) -> (c,)``, the mean over rows.
    value: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    # ``(z, targets, shares) -> (c, k, out)``, the gradient by z.
    gradient: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    # ``(z, targets, shares, dz) -> (gradient, d_gradient)``, the latter its derivative along dz.
    tangent: Callable[[Tensor, Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]]


def mean_over(losses: Tensor, shares: Tensor | None) -> Tensor:
    """Returns the means (c,) of rows' losses (c, k); see ``Examples.shares``."""
    mean: Tensor = losses.mean(-1) if shares is None else (losses * shares).sum(-1)
    return mean


def _part_of_mean(gradients: Tensor, shares: Tensor | None) -> Tensor:
    """Returns the gradients of the mean, given those of the rows' losses, (c, k, out); in place."""
    if shares is None:
        return gradients.div_(gradients.shape[1])
    return gradients.mul_(shares.unsqueeze(-1))


def _cross_entropy() -> Output:
    def value(z: Tensor, targets: Tensor, shares: Tensor | None) -> Tensor:
        return mean_over(z.logsumexp(-1) - (z * targets).sum(-1), shares)

    def gradient(z: Tensor, targets: Tensor, shares: Tensor | None) -> Tensor:
        return _part_of_mean(_softmax(z) - targets, shares)

    def tangent(
        z: Tensor, targets: Tensor, shares: Tensor | None, dz: Tensor
    ) -> tuple[Tensor, Tensor]:
        p = _softmax(z)
        d_gradient = p * (dz - (p * dz).sum(-1, keepdim=True))
        return _part_of_mean(p - targets, shares), _part_of_mean(d_gradient, shares)

    return Output(value, gradient, tangent)


def _squared_error() -> Output:
    def value(z: Tensor, targets: Tensor, shares: Tensor | None) -> Tensor:
        return mean_over((z - targets).square().mean(2), shares)

    def gradient(z: Tensor, targets: Tensor, shares: Tensor | None) -> Tensor:
        return _part_of_mean((z - targets).mul_(2 / z.shape[2]), shares)

    def tangent(
        z: Tensor, targets: Tensor, shares: Tensor | None, dz: Tensor
    ) -> tuple[Tensor, Tensor]:
        return gradient(z, targets, shares), _part_of_mean(dz * (2 / z.shape[2]), shares)

    return Output(value, gradient, tangent)


CROSS_ENTROPY: Final = _cross_entropy()  # in nats; targets are indicators of classes
SQUARED_ERROR: Final = _squared_error()  # the mean over rows and outputs


def dense_loss(layers: int, output: Output = CROSS_ENTROPY) -> LossWithDerivatives:
    """Builds the mean loss of each client's batch, with its derivatives.

    It equals ``engram.networks.losses.mean_loss`` of classification or regression, for stacked
    parameters of the same names; ``dense0.weight`` may be in any linear coordinates that the batch
    supports. Batches are ``Examples``.
    The dense ``layers`` are 1 or more, with the last one, whose outputs' loss is ``output``.
    """

    def value(w: Params, batch: Examples) -> Tensor:
        return output.value(logits(w, batch.rows, layers), batch.targets, batch.shares)

    def gradient(w: Params, batch: Examples, names: Set[str] | None = None) -> Params:
        first = batch.rows.enter(w)
        hidden, z = _forward(w, first, layers)
        z, dz = parts(z)  # as it may be: see ``product_by_tangents``
        if dz is None:
            delta = output.gradient(z, batch.targets, batch.shares)
        else:
            delta = dual(*output.tangent(z, batch.targets, batch.shares, dz))
        result: Params = {}
        for layer in range(layers - 1, 0, -1):
            result[f"dense{layer}.weight"] = torch.bmm(delta.mT, hidden[layer - 1])
            result[f"dense{layer}.bias"] = delta.sum(1)
            if names is not None and names <= result.keys():
                return result
            delta = torch.bmm(delta, w[f"dense{layer}.weight"]).mul_(hidden[layer - 1].sign())
        result["dense0.bias"] = delta.sum(1)
        return result | first.vjp(delta, w[FIRST])

    def hessian_product(w: Params, batch: Examples, v: Params) -> Params:
        first = batch.rows.enter(w)
        hidden, z = _forward(w, first, layers)
        # Tangents of all of the above along v; a tangent's name begins with d.
        active = [a.sign() for a in hidden]
        d_hidden = []
        dz = first.jvp(v[FIRST], v["dense0.bias"])
        for layer in range(1, layers):
            d_hidden.append(dz * active[layer - 1])
            dz = _affine(v, layer, hidden[layer - 1])
            dz.baddbmm_(d_hidden[-1], w[f"dense{layer}.weight"].mT)
        delta, d_delta = output.tangent(z, batch.targets, batch.shares, dz)
        result = {}
        for layer in range(layers - 1, 0, -1):
            name = f"dense{layer}.weight"
            result[name] = torch.bmm(d_delta.mT, hidden[layer - 1])
            result[name].baddbmm_(delta.mT, d_hidden[layer - 1])
            result[f"dense{layer}.bias"] = d_delta.sum(1)
            d_delta = torch.bmm(d_delta, w[name]).baddbmm_(delta, v[name])
            d_delta.mul_(active[layer - 1])
            delta = torch.bmm(delta, w[name]).mul_(active[layer - 1])
        result["dense0.bias"] = d_delta.sum(1)
        return result | first.vjp(d_delta, w[FIRST])

    return LossWithDerivatives(value, gradient, hessian_product, leading=1)


def logits(w: Params, rows: InputRows, layers: int) -> Tensor:
    """Returns the outputs (c, k, classes) of every client's network on its rows."""
    return _forward(w, rows.enter(w), layers)[1]


def indicators(classes: Tensor, count: int) -> Tensor:
    """Returns one-hot indicators of classes: (..., count), float32."""
    zeros = torch.zeros(*classes.shape, count, device=classes.device)
    return zeros.scatter_(-1, classes.unsqueeze(-1), 1.0)  # one_hot would wait for the device


def _forward(w: Params, first: FirstLayer, layers: int) -> tuple[list[Tensor], Tensor]:
    """Returns the inputs of the second and later layers, and the logits."""
    hidden = []
    z = first.value(w[FIRST], w["dense0.bias"])
    for layer in range(1, layers):
        hidden.append(z.relu())
        z = _affine(w, layer, hidden[-1])
    return hidden, z


def _affine(w: Params, layer: int, x: Tensor) -> Tensor:
    return torch.baddbmm(w[f"dense{layer}.bias"].unsqueeze(1), x, w[f"dense{layer}.weight"].mT)


def _softmax(z: Tensor) -> Tensor:
    # Over the first axis torch's softmax is vectorized; over a last axis of few classes it is not.
    classes = z.shape[-1]
    return z.reshape(-1, classes).T.contiguous().softmax(0).T.reshape(z.shape)


# --- Dual numbers --------------------------------------------------------------------------------


def dual(value: Tensor, tangent: Tensor) -> Tensor:
    """Returns a dual number of torch's forward-mode differentiation."""
    made: Tensor = make_dual(value, tangent)  # type: ignore[no-untyped-call]  # torch's
    return made


def parts(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Returns a dual number's value and tangent, or a plain number and None."""
    value, tangent = unpack_dual(x)  # type: ignore[no-untyped-call]  # torch's
    return value, tangent


def product_by_tangents(
    derivative: Callable[[Params, Batch], Params],
) -> Callable[[Params, Batch, Params], Params]:
    """Builds ``(w, batch, v) -> hess L(w) v`` of a gradient that torch can run on dual numbers."""

    def product(w: Params, batch: Batch, v: Params) -> Params:
        with _ONE_AT_A_TIME, dual_level():
            found = derivative({name: dual(leaf, v[name]) for name, leaf in w.items()}, batch)
            tangents = {name: parts(leaf)[1] for name, leaf in found.items()}
        return {n: torch.zeros_like(w[n]) if d is None else d for n, d in tangents.items()}

    return product


def linear(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Calls a linear function of rows x (c, k, ...), once for dual numbers and their tangents."""
    value, tangent = parts(x)
    if tangent is None:
        return function(value)
    both, k = function(torch.cat([value, tangent], 1)), x.shape[1]
    return dual(both[:, :k], both[:, k:])
