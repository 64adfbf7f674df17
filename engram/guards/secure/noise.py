"""Central privacy's noise in shares: each site adds one, so that the server sees no exact sum.

Shares are discrete Gaussian. With t of them, each of standard deviation s, a sum of whole numbers
that one client moves by at most D in Euclidean norm has (1/2) epsilon^2-concentrated differential
privacy, for ::

    epsilon = D / (sqrt(t) s) + tau sqrt(d),    tau = 10 sum_{k=1}^{t-1} exp(-2 pi^2 s^2 k / (k+1))

(Kairouz, Liu, Steinke. The Distributed Discrete Gaussian Mechanism for Federated Learning with
Secure Aggregation. ICML 2021, Prop. 14). Here t is the threshold, which that many sites or more
reach; D = L + sqrt(d), since rounding moves each of a site's d numbers by at most one half with the
client and one half without; s = z D / sqrt(t) for the noise multiplier z; and tau vanishes, since s
is 100 or more. So epsilon is 1 / z a round.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from engram.core.checks import require
from engram.guards.noise import uniform
from engram.guards.places import Sum
from engram.guards.secure.quantize import levels, room_of

_LEAST: Final = 100  # standard deviation of a share, in levels


def deviation(total: Sum, multiplier: float, size: int) -> float:
    """Returns the standard deviation s of a party's share of noise, in levels.

    Raises:
        ValueError: The noise would be too coarse for levels, or the update too large for them.
    """
    reach, root = levels(room_of(total, multiplier)), math.sqrt(size)
    require(root <= reach / 4, "numbers in an update", size, f"at most {(reach // 4) ** 2}")
    found = multiplier * (reach + root) / math.sqrt(total.least)
    least = multiplier * _LEAST / found
    require(found >= _LEAST, "noise-multiplier", multiplier, f"at least {least:.3g}")
    return found


def discrete_gaussian(
    size: int, deviation: float, entropy: Callable[[int], bytes]
) -> npt.NDArray[np.int64]:
    """Draws whole numbers x with probabilities proportional to exp(-x^2 / (2 s^2)).

    From discrete Laplace numbers by rejection (Canonne, Kamath, Steinke. The Discrete Gaussian for
    Differential Privacy. NeurIPS 2020, Alg. 1 and 3), with probabilities in float64.
    """
    scale, found = math.floor(deviation) + 1, np.zeros(0, dtype=np.int64)
    while len(found) < size:
        count = 2 * (size - len(found)) + 16
        first, second, third = uniform(entropy(8 * 3 * count)).reshape(3, -1)
        away = np.floor(-scale * np.log(first)).astype(np.int64)  # geometric
        signed = np.where(second < 0.5, -away, away)
        gap = away - deviation**2 / scale
        fits = third < np.exp(-(gap**2) / (2 * deviation**2))
        fits &= (away > 0) | (second >= 0.5)  # zero is not drawn twice
        found = np.concatenate([found, signed[fits]])
    return found[:size]
