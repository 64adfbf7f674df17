"""Numbers of seeds, or of clients, that would tell two methods apart in most comparisons.

With the model of ``engram.compare.differences``, S' seeds of n' clients have a mean difference of
variance ``sigma_a^2 / n' + sigma_b^2 / S' + sigma_e^2 / (n' S')``, and mean squares that are drawn
from chi-squared distributions. The chance that the simultaneous interval excludes zero, if the true
difference is the one that was observed, is the mean over such draws of the normal distribution's.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from engram.compare.critical_values import AT, of_clients, of_seeds
from engram.compare.differences import Gap
from engram.scoring.intervals import error_of, quantile

_POWER: Final = 0.8  # share of comparisons in which the difference is to be shown
_SEEDS: Final = (*range(2, 13), 14, 16, 18, 20, 25, 30, 35, 40, 50, 60, 80, 100)
_TIMES: Final = (1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15, 20)  # as many clients
_ENOUGH: Final = 10  # seeds, where clients are too few
_DRAWS: Final = 1000  # of the mean squares


class Needed(NamedTuple):
    """Number of seeds or clients with which a difference would be shown in 80 % of comparisons.

    Attributes:
        low: Its 10th percentile, about; infinity if more than ``most``.
        high: Its 90th percentile.
        most: The most that are tried: 100 seeds, or twenty times as many clients.
        more_clients: Whether clients are counted: no number of seeds is enough with those there.
    """

    low: float
    high: float
    most: int
    more_clients: bool = False

    def __str__(self) -> str:
        unit, known = "clients" if self.more_clients else "seeds", np.isfinite(self.low)
        ends = [
            f"{end:.0f}" if np.isfinite(end) else f"more than {self.most}"
            for end in dict.fromkeys((self.low, self.high))
        ]
        return f"{'about ' * bool(known)}{' to '.join(ends)} {unit}"


def needed(gap: Gap, methods: int) -> Needed | None:
    """Estimates the seeds or clients that show ``gap`` with 80 % power.

    The percentiles are those of Student's distribution of the true difference about the observed
    one. Where this may have either sign, by its own interval of 90 %, no number is told: without
    any difference, about one pair in ten has one.

    Returns:
        The numbers, each to about a quarter; None where there are too few seeds or clients to
        estimate them, or the difference may have either sign.
    """
    if not gap.enough:
        return None
    by_seeds, mean = max(gap.by_seeds, gap.floor), abs(gap.mean)
    error, degrees = error_of(by_seeds, gap.by_clients, gap.seeds, gap.clients)
    if not mean > quantile(0.95, degrees) * error:
        return None
    reach = float(quantile(0.9, degrees)) * error
    ends = [gap._replace(mean=mean + reach), gap._replace(mean=mean - reach)]
    # With ever more seeds, this is left of the interval and of the difference's deviation.
    left = max(gap.by_clients - gap.noise, 0.0) ** 0.5
    if mean > (of_clients(methods, gap.clients)[AT] + ndtri(_POWER)) * left:
        more = [seeds for seeds in _SEEDS if seeds > gap.seeds]
        low, high = (
            _first(more, partial(_power, end, methods, clients=gap.clients)) for end in ends
        )
        return Needed(low, high, _SEEDS[-1])
    seeds = max(gap.seeds, _ENOUGH)
    more = [round(times * gap.clients) for times in _TIMES]
    low, high = (_first(more, partial(_power, end, methods, seeds)) for end in ends)
    return Needed(low, high, more[-1], more_clients=True)


def _first(numbers: Sequence[int], power: Callable[[int], float]) -> float:
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        if power(numbers[middle]) >= _POWER:
            high = middle
        else:
            low = middle + 1
    return numbers[low] if low < len(numbers) else np.inf


def _power(gap: Gap, methods: int, seeds: int, clients: int) -> float:
    noise = gap.noise * (gap.seeds / seeds) * (gap.clients / clients)
    of_seed = max(gap.by_seeds - gap.noise, 0.0) * gap.seeds / seeds
    of_client = max(gap.by_clients - gap.noise, 0.0) * gap.clients / clients
    rng = np.random.default_rng(0)
    by_seeds = (of_seed + noise) * rng.chisquare(seeds - 1, _DRAWS) / (seeds - 1)
    by_clients = (of_client + noise) * rng.chisquare(clients - 1, _DRAWS) / (clients - 1)
    half = np.hypot(
        of_seeds(methods, seeds)[AT] * np.sqrt(np.maximum(by_seeds, gap.floor * gap.seeds / seeds)),
        of_clients(methods, clients)[AT] * np.sqrt(by_clients),
    )
    deviation = max((of_seed + of_client + noise) ** 0.5, np.finfo(float).tiny)
    return float(ndtr((abs(gap.mean) - half) / deviation).mean())
