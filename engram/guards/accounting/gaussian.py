"""The exact epsilon of Gaussian noise on clipped updates.

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

import torch

from engram.core.checks import require


def concentrated_epsilon(rho: float, delta: float) -> float:
    """Returns the epsilon that rho-concentrated differential privacy implies.

        epsilon = rho + 2 sqrt(rho ln(1 / delta))

    (Bun, Steinke. Concentrated Differential Privacy: Simplifications, Extensions, and Lower Bounds.
    TCC 2016, Prop. 1.3). Releases add up: rho is the sum of theirs.
    """
    require(rho >= 0, "rho", rho, "0 or more")
    require(0 < delta < 1, "delta", delta, "in (0, 1)")
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def epsilon_of(mu: float, delta: float) -> float:
    """Returns the exact epsilon of a Gaussian mechanism of sensitivity ``mu`` and variance 1.

    It is (epsilon, delta)-private if and only if ::

        Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu) <= delta

    (Balle, Wang. Improving the Gaussian Mechanism. ICML 2018, Thm. 8). Gaussian releases of any
    multipliers z_1, z_2, ... are together one with ``mu^2 = sum 1 / z_i^2`` (Dong, Roth, Su.
    Gaussian Differential Privacy. JRSS B 2022), also where each z_i is chosen after the releases
    before it, as long as their sum is bounded beforehand (Smith, Thakurta. Fully Adaptive
    Composition for Gaussian Differential Privacy. 2022, Thm. 1.1). There is no amplification by
    sampling, for which see ``engram.guards.accounting.amplification``. One release of multiplier
    ``sqrt(2 ln(1.25 / delta)) / epsilon``, as Flower's LocalDpMod has it, gives at most that
    epsilon where it is below 1, and less privacy than that far above.
    """
    require(0 < delta < 1, "delta", delta, "in (0, 1)")

    def excess(value: float) -> float:
        ends = torch.tensor([mu / 2 - value / mu, -mu / 2 - value / mu], dtype=torch.float64)
        upper, lower = torch.special.log_ndtr(ends).tolist()
        return math.exp(upper) - math.exp(value + lower) - delta

    if mu == 0 or excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # the bound by zCDP
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high
