"""Bounds on what one client's update can do, and the Gaussian noise that hides it.

An update is a client's model minus the common model w. After clipping, its Euclidean norm over all
parameters is at most C, so one client moves a sum of updates by at most C, and normal noise of
standard deviation z C on every coordinate gives (epsilon, delta)-differential privacy, where z is
the *noise multiplier* (McMahan et al. Learning Differentially Private Recurrent Language
Models. ICLR 2018).

The guarantee is about the models that are released, round after round. Losses, scores and numbers
of rows are not noised. Nor is what a client keeps for itself, since it is not released. As usual,
noise of finite precision is treated as normal, although its lowest bits are not (Mironov. On
Significance of the Least Significant Bits for Differential Privacy. CCS 2012).
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engram.aggregates import Aggregate, Update
from engram.checks import require
from engram.tree import add_scaled, interpolate, norm
from engram.types import Params

__all__ = ["Normal", "add_normal", "clip", "clipped", "epsilon", "private_mean"]

Normal = Callable[[int, int], Tensor]
_RELEASES = "releases"  # in the state: how many models have been noised
_TAIL = 6.0  # |N(0, I_d)| exceeds sqrt(d) + t with a probability below exp(-t^2 / 2): here 2e-8


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


def add_normal(params: Params, deviation: float, normal: Tensor) -> Params:
    """Returns ``params + deviation * normal``.

    Args:
        params: Leaves (..., shape) with the leading axes of ``normal``.
        deviation: Standard deviation of the noise on every coordinate.
        normal: Standard normal numbers (..., d), d for the parameters of one model. They are
            assigned to leaves in the order of their names, since a file may store another order.
    """
    result, at = dict(params), 0
    for name, leaf in sorted(params.items()):
        size = math.prod(leaf.shape[normal.ndim - 1 :])
        part = normal[..., at : at + size].to(leaf).view(leaf.shape)
        result[name], at = torch.add(leaf, part, alpha=deviation), at + size
    return result


def clipped(aggregate: Aggregate, bound: float, deviation: float = 0.0) -> Aggregate:
    """Clips every update before it is merged, whether or not the client has clipped it already.

    The mean over several clients of a node is clipped as one update: if each client is within the
    bound, so is the mean.

    Args:
        aggregate: Merges the updates.
        bound: The norm C; > 0.
        deviation: Standard deviation of the noise that clients add to every coordinate after
            they have clipped. The bound is widened to ``C + deviation (sqrt(d) + 6)``, which an
            honest update of d numbers exceeds once in 10^7 times at most.
    """
    require(bound > 0, "clip", bound, "positive")

    def merge(model: Params, state: Params, updates: Sequence[Update]) -> tuple[Params, Params]:
        size = sum(leaf.numel() for leaf in model.values())
        reach = bound + (deviation * (math.sqrt(size) + _TAIL) if deviation else 0.0)
        held = [Update(clip(update.params, model, reach), update.weight) for update in updates]
        return aggregate.merge(model, state, held)

    return aggregate._replace(merge=merge, bounded=True)


def private_mean(
    aggregate: Aggregate, *, bound: float, multiplier: float, clients: int, normal: Normal
) -> Aggregate:
    """Replaces an aggregate's mean by a noisy mean of clipped updates.

        model + (1 / n) (sum_i clip(u_i - model) + z C xi),    xi ~ N(0, I)

    Every client has the same weight, and n is the number of clients that were *asked*: a client
    whose reply is missing counts as one that left the model unchanged. So adding or removing a
    client moves the sum by at most C, whoever else replies, and this is the Gaussian mechanism with
    multiplier z: see ``epsilon``. The noise on the mean has the standard deviation z C / n
    (McMahan et al., Alg. 1, with equal weights and the estimator of fixed denominator).

    The state counts the releases, under ``releases``.

    Args:
        aggregate: The aggregate that gets the mean; it must be additive.
        bound: The norm C; > 0.
        multiplier: The noise multiplier z; > 0.
        clients: n, clients asked in a round; >= 1.
        normal: ``(size, release) -> (size,)``, standard normal numbers for the release of that
            number, from 1.

    Raises:
        ValueError: If the aggregate is not additive: there is no mean to hide in.
    """
    expected = "none or local where the server needs every model"
    require(aggregate.additive, "privacy", "central", expected)
    require(bound > 0, "clip", bound, "positive")
    require(multiplier > 0, "noise-multiplier", multiplier, "positive")

    def init(model: Params) -> Params:
        return aggregate.init(model) | {_RELEASES: torch.tensor(0)}

    def merge(model: Params, state: Params, updates: Sequence[Update]) -> tuple[Params, Params]:
        release = state[_RELEASES] + 1
        mean = model
        for update in updates:
            near = clip(update.params, model, bound)
            mean = add_scaled(mean, update.weight / clients, add_scaled(near, -1.0, model))
        size = sum(leaf.numel() for leaf in model.values())
        mean = add_normal(mean, multiplier * bound / clients, normal(size, int(release)))
        rest = {name: leaf for name, leaf in state.items() if name != _RELEASES}
        merged, rest = aggregate.merge(model, rest, [Update(mean, float(clients))])
        return merged, rest | {_RELEASES: release}

    return aggregate._replace(init=init, merge=merge, weighting="clients", bounded=True)


def epsilon(multiplier: float, releases: int, delta: float) -> float:
    """Returns the exact epsilon of a number of Gaussian releases.

    With mu = sqrt(releases) / multiplier they are, together and however each depends on those
    before, one Gaussian mechanism of sensitivity mu and variance 1 (Dong, Roth, Su. Gaussian
    Differential Privacy. JRSS B 2022), which is (epsilon, delta)-private if and only if ::

        Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu) <= delta

    (Balle, Wang. Improving the Gaussian Mechanism. ICML 2018, Thm. 8). There is no amplification by
    sampling, since cohorts are not secret here. One release of multiplier
    ``sqrt(2 ln(1.25 / delta)) / epsilon``, as Flower's LocalDpMod has it, gives at most that
    epsilon where it is below 1, and less privacy than that far above.

    Args:
        multiplier: Standard deviation of the noise, divided by the norm by which a client can move
            the noised quantity; > 0.
        releases: Number of releases; >= 0.
        delta: In (0, 1).
    """
    require(multiplier > 0, "noise-multiplier", multiplier, "positive")
    require(0 < delta < 1, "delta", delta, "in (0, 1)")
    mu = math.sqrt(releases) / multiplier

    def excess(value: float) -> float:
        upper, lower = torch.special.log_ndtr(
            torch.tensor([mu / 2 - value / mu, -mu / 2 - value / mu], dtype=torch.float64)
        ).tolist()
        return math.exp(upper) - math.exp(value + lower) - delta

    if mu == 0 or excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # the bound by zCDP
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high
