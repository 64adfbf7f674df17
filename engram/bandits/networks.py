"""Networks f(x; theta) of (9), many at once, with gradients by hand.

    f(x; theta) = W_L relu(W_{L-1} relu(... W_1 x))

Weights are a tuple of tensors ``(..., out, in)``, and inputs are columns ``(..., d, n)``; leading
axes stand for independent networks. Training a stack of small networks by hand takes a third of the
time that ``torch.func`` needs, and norms of gradients are computed without the gradients.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from engram.core.checks import require

Weights = tuple[Tensor, ...]
Parts = list[tuple[Tensor, Tensor]]


def initial(
    rng: np.random.Generator, dim: int, hidden: Sequence[int], dtype: torch.dtype = torch.float32
) -> Weights:
    """Draws initial weights (Section 5): from N(0, 2/m), and from N(0, 1/m) in the last layer.

    Args:
        rng: Source of randomness.
        dim: d.
        hidden: Widths of the L - 1 hidden layers. They are all m in the paper; if they differ, m is
            the layer's own width, and for the last layer, of one output, the width before it.
        dtype: Data type of the weights; the numbers drawn do not depend on it.
    """
    drawn = [rng.normal(size=(b, a)) * (2 / b) ** 0.5 for a, b in pairwise([dim, *hidden])]
    last = rng.normal(size=(1, hidden[-1])) * (1 / hidden[-1]) ** 0.5
    return tuple(torch.from_numpy(w).to(dtype) for w in (*drawn, last))


def initial_of_runs(
    rngs: Sequence[np.random.Generator],
    runs: int,
    dim: int,
    hidden: Sequence[int],
    dtype: torch.dtype = torch.float32,
) -> Weights:
    """Draws ``initial`` weights for R runs, shapes (R, out, in).

    Raises:
        ValueError: If there are not as many generators as runs.
    """
    require(len(rngs) == runs, "runs", runs, f"as many as are played, {len(rngs)}")
    drawn = [initial(rng, dim, hidden, dtype) for rng in rngs]
    return tuple(torch.stack(layer) for layer in zip(*drawn, strict=True))


def forward(weights: Weights, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Returns the outputs, shape (..., n), and each layer's inputs, (..., in, n)."""
    seen = [x]
    for w in weights[:-1]:
        seen.append(torch.relu(w @ seen[-1]))
    return (weights[-1] @ seen[-1])[..., 0, :], seen


def outer_parts(weights: Weights, seen: Sequence[Tensor], output_gradients: Tensor) -> Parts:
    """Returns gradients of sum_j c_j f(x_j) in factors, from the last layer to the first.

    Args:
        weights: The networks' weights.
        seen: The layers' inputs, as ``forward`` returned them.
        output_gradients: c, the loss's gradient by the outputs, shape (..., n).

    Returns:
        For each layer (delta (..., out, n), a (..., in, n)): input j adds ``delta_j a_j'``.
    """
    delta = output_gradients[..., None, :]
    parts = [(delta, seen[-1])]
    for w, above, below in zip(weights[:0:-1], seen[:0:-1], seen[-2::-1], strict=True):
        delta = (w.mT @ delta).mul_(above.sign())  # which is 0 or 1: quicker than comparing
        parts.append((delta, below))
    return parts


def gradients(weights: Weights, x: Tensor, targets: Tensor, shares: Tensor) -> Weights:
    """Returns gradients of the loss 1/2 sum_j shares_j (f(x_j; theta) - r_j)^2, cf. (3).

    Args:
        weights: theta.
        x: Inputs as columns, shape (..., d, n).
        targets: r, shape (..., n).
        shares: Weights of the inputs, shape (..., n).
    """
    outputs, seen = forward(weights, x)
    parts = outer_parts(weights, seen, shares * (outputs - targets))
    return tuple(delta @ below.mT for delta, below in reversed(parts))


def descend(weights: Weights, gradient: Weights, eta: Tensor) -> Weights:
    """Returns ``weights - eta gradient``; eta has the shape of the leading axes."""
    eta = eta[..., None, None]
    return tuple(torch.addcmul(w, eta, g, value=-1) for w, g in zip(weights, gradient, strict=True))


def gradient_norms(weights: Weights, seen: Sequence[Tensor]) -> Tensor:
    """Returns ||g(x; theta)||_2, the norm of f's gradient in theta, shape (..., n)."""
    squares = [_dot(delta, delta) * _dot(below, below) for delta, below in f_parts(weights, seen)]
    return torch.stack(squares).sum(dim=0).sqrt()


def difference_norms(
    weights: Weights, seen: Sequence[Tensor], others: Weights, seen_by_others: Sequence[Tensor]
) -> Tensor:
    """Returns ||g(x; theta) - g(x; theta')||_2, shape (..., n)."""
    pairs = zip(f_parts(weights, seen), f_parts(others, seen_by_others), strict=True)
    squares = torch.stack([_difference(d - e, a, e, a - b) for (d, a), (e, b) in pairs])
    return squares.sum(dim=0).clamp(min=0).sqrt()  # where it is 0, rounding may leave less


def f_parts(weights: Weights, seen: Sequence[Tensor]) -> Parts:
    """Returns g(x_j; theta), the gradient of f at each input, in the form of ``outer_parts``."""
    ones = seen[-1].new_ones(seen[-1].shape[:-2] + seen[-1].shape[-1:])
    return outer_parts(weights, seen, ones)


def _difference(p: Tensor, a: Tensor, e: Tensor, q: Tensor) -> Tensor:
    """Returns ||d a' - e b'||^2 = ||p a' + e q'||^2: exact for networks that hardly differ."""
    return _dot(p, p) * _dot(a, a) + 2 * _dot(p, e) * _dot(a, q) + _dot(e, e) * _dot(q, q)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=-2)
