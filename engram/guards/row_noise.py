"""Example-level differential privacy: noisy sums of clipped gradients of single rows.

A local step takes each of a client's rows with probability q, independently, and its gradient is
(Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang. Deep Learning with Differential
Privacy. CCS 2016, Alg. 1) ::

    (1 / B) (sum_i g_i min(1, C / |g_i|) + z C xi),    xi ~ N(0, I)

for the rows i that were taken, g_i the gradient of row i's loss by all parameters that move, C the
bound, z the noise multiplier, and B the expected number of rows. One row more or less moves the sum
by at most C, whatever the parameters. So a step is a Poisson-subsampled Gaussian mechanism of
multiplier z and rate q, and everything that is computed from its results costs nothing more.

In dense networks no row's gradient is formed: that of a layer's weight is the product of the
layer's input a and of the gradient delta by its output, with norm ``|a| |delta|`` (Goodfellow.
Efficient Per-Example Gradient Computations. 2015). So norms, and then the scaled sum, come from one
pass.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass
from math import sqrt
from typing import Any, Final

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from engram.core.method import Objective
from engram.core.slots import pick
from engram.core.tree import add_scaled, multiplied, norm
from engram.core.types import Batch, LossFn, Params, Sampled
from engram.guards.accounting.releases import Plan, Release
from engram.guards.changes import arrays_of
from engram.guards.facts import Fact
from engram.guards.guard import Guard, Sums

_NEEDS: Final = frozenset({Fact.BOUNDED, Fact.GRADIENTS, Fact.SAMPLED, Fact.APART, Fact.CURRENT})
_GUARD: Final = Guard("row-noise", _NEEDS, ends={Fact.BOUNDED, Fact.OPEN}, gives={Fact.ROWS})


@dataclass(frozen=True)
class RowNoise:
    """Noise on the sums of rows' clipped gradients.

    A method can take one gradient of a batch, and look at rows in no other way.
    """

    bound: float  # largest norm of a row's gradient, C > 0
    multiplier: float  # noise multiplier, z > 0

    def build(self) -> Guard:
        """Builds the guard; of a client's objective the gradient is left."""

        def rows(_: Objective, sums: Sums) -> Objective:
            def gradient(w: Params, batch: Sampled, names: Set[str] | None = None) -> Params:
                total = sums(w, batch.batch, batch.taken, self.bound, names)
                xi, deviation = arrays_of(batch.normal, total), self.multiplier * self.bound
                return multiplied(add_scaled(total, deviation, xi), 1 / batch.expected)

            return Objective(_refused, gradient, _refused, _refused, _refused)

        def releases(plan: Plan) -> tuple[Release, ...]:
            return (Release(self.multiplier, plan.row_rate, plan.steps, unit="row"),)

        return _GUARD._replace(rows=rows, releases=releases)


@dataclass(frozen=True)
class RowStatistics:
    """Noise on a round's sums of products of clipped rows; see ``engram.tables.private``.

    Another turn in the place of one moves them by ``sqrt(2) C^2``, and a row more or less by C^2.
    """

    multiplier: float  # of noise with deviation z C^2; z > 0

    def build(self) -> Guard:
        """Builds the guard; tables add its noise."""

        def releases(plan: Plan) -> tuple[Release, ...]:
            if plan.turns:
                return (Release(self.multiplier / sqrt(2), unit="row", neighbors="replaced"),)
            return (Release(self.multiplier, unit="row"),)

        return _GUARD._replace(name="row-statistics", releases=releases)


def _refused(*_: Any, **_named: Any) -> Any:
    raise ValueError("where privacy is example, a step takes one gradient of its rows alone")


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
