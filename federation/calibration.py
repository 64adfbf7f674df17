"""The noise multiplier of a private run: given, or solved for its target ``epsilon``."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from engram.checks import must
from engram.privacy import epsilon
from federation.errors import Refused
from federation.experiment import Experiment

__all__ = ["noise_multiplier", "reach", "sampling_rate"]

_MOST: Final = 1e6
"""Largest noise multiplier that is solved for; with more, models are noise alone."""


def noise_multiplier(e: Experiment) -> float:
    """Returns the noise multiplier: the setting, or the least with which ``epsilon`` is not passed.

    It is rounded up to four digits, so that all machines find the same.

    Raises:
        Refused: No multiplier up to 10^6 reaches the target.
    """
    if not e.epsilon:
        return e.noise_multiplier
    rate = sampling_rate(e) if e.sampling == "poisson" else 1.0
    found = _solved(e.epsilon, e.delta, e.rounds, rate) * reach(e)
    if found > _MOST:
        expected = (
            f"larger: {e.rounds} rounds at delta {e.delta:g} would need a noise-multiplier above "
            f"{_MOST:g}; raise epsilon or delta, or lower num-rounds"
        )
        raise Refused(must("epsilon", e.epsilon, expected))
    digits = 10.0 ** (math.floor(math.log10(found)) - 3)
    return float(f"{math.ceil(found / digits) * digits:.4g}")


def sampling_rate(e: Experiment) -> float:
    """Returns the probability with which a client takes part in a round of Poisson sampling."""
    return min(1.0, e.clients_per_round / (e.num_clients - e.unseen_clients))


def reach(e: Experiment) -> int:
    """Returns the largest influence of a client on what is noised, in multiples of ``clip``.

    Central privacy hides from anyone who sees the models whether a client took part at all: adding
    or removing it moves the sum by ``clip``. Local privacy hides from the server which data a
    client has: two clipped updates lie up to ``2 clip`` apart.
    """
    return 2 if e.privacy == "local" else 1


@lru_cache
def _solved(target: float, delta: float, rounds: int, rate: float) -> float:
    """Returns the least multiplier, for sensitivity 1, by bisection to a relative 10^-4."""
    if rate == 1:
        # Of k releases with multiplier z, epsilon is that of one with z / sqrt(k).
        return math.sqrt(rounds) * _least(lambda z: epsilon(z, 1, delta), target, 1e-3)
    from federation.amplification import poisson_epsilon  # noqa: PLC0415 - rarely needed

    return _least(lambda z: poisson_epsilon(z, rate, rounds, delta), target, 0.1)


def _least(cost: Callable[[float], float], target: float, low: float) -> float:
    """Returns the least argument from ``low`` on at which a falling ``cost`` is in ``target``."""
    high = low
    while cost(high) > target and high <= _MOST:
        low, high = high, 2 * high
    while high > low * (1 + 1e-4):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= target else (middle, high)
    return high
