"""The vocabulary every pure algorithm is written in.

Parameters are flat name-to-tensor dictionaries, as ``dict(module.named_parameters())``
gives them. Everything here is a pytree to ``torch.func``, so a function of these types
can be differentiated with ``grad`` and batched over clients with ``vmap``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

Params = dict[str, Tensor]
Batch = Any  # whatever a loss looks at besides parameters; (inputs, targets) for a network
LossFn = Callable[[Params, Batch], Tensor]  # mean loss of one batch, shape (); see `Weighted`
Scale = float | Tensor  # a step size or weight; a tensor holds one for each of stacked models


class Weighted(NamedTuple):
    """A batch with weights of rows: its loss is their weighted sum.

    Attributes:
        batch: As a loss takes it, of k rows.
        weights: Shape (k,), for a loss of shape (); or (k, m), for m sums, shape (m,).
    """

    batch: Batch
    weights: Tensor


class Sampled(NamedTuple):
    """A Poisson sample of a client's rows, and the noise of its step.

    Attributes:
        batch: As a loss takes it, of k rows, padded with others.
        taken: 1 for a row of the sample, 0 for padding; (k,).
        normal: Standard normal numbers, as many as the network has parameters; (d,).
        expected: The expected number of rows, B > 0; ().
    """

    batch: Batch
    taken: Tensor
    normal: Tensor
    expected: Tensor
