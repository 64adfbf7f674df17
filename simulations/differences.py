"""Differences between methods on the same clients, with intervals; and what they say in words."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.metrics import Metric

__all__ = ["Difference", "Scores", "in_words", "paired_difference"]

Scores = Sequence[npt.NDArray[np.float64]]
"""Each client's score, (clients,), for each seed; NaN for a client that was not scored."""

_DRAWS: Final = 2000
_LEVEL: Final = 0.95
_TOGETHER: Final = 2**15  # clients that are drawn at once, so that they stay in the cache


class Difference(NamedTuple):
    """A mean difference of two methods' scores, and its bootstrap interval of 95 %."""

    mean: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def paired_difference(one: Scores, other: Scores) -> Difference:
    """Compares two methods on the same clients of the same seeds.

    The interval is that of the percentile bootstrap. Seeds are drawn with replacement, and then,
    within each, clients: those of one seed have data, and a model, in common.

    Args:
        one: A method's scores.
        other: Another one's, of the same seeds in the same order.

    Raises:
        ValueError: No client of a seed was scored under both.
    """
    pairs = []
    for mine, theirs in zip(one, other, strict=True):
        gaps = mine - theirs
        pairs.append(gaps[np.isfinite(gaps)])
    if not all(len(gaps) for gaps in pairs):
        raise ValueError("no client of a seed was scored under both methods")
    means = _resampled(pairs, np.random.default_rng(0))
    low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Difference(float(np.mean([gaps.mean() for gaps in pairs])), float(low), float(high))


def _resampled(pairs: Scores, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Returns the mean of each bootstrap sample, shape (draws,).

    A sample draws as many seeds as there are, and then, seed by seed, as many clients as it has.
    Where all have equally many, samples are drawn together, of the same random numbers.
    """
    count, size = len(pairs), len(pairs[0])
    if any(len(gaps) != size for gaps in pairs):
        return np.array([_one(pairs, rng) for _ in range(_DRAWS)])
    together = max(1, _TOGETHER // (count * size))
    limits = np.repeat([count, size], [count, count * size])
    gaps, means = np.stack(pairs), np.empty(_DRAWS)
    for start in range(0, _DRAWS, together):
        part = means[start : start + together]
        drawn = rng.integers(np.tile(limits, (len(part), 1)))
        seeds, clients = np.split(drawn, [count], axis=1)
        clients = clients.reshape(len(part), count, size)
        part[:] = gaps[seeds[:, :, None], clients].mean(axis=2).mean(axis=1)
    return means


def _one(pairs: Scores, rng: np.random.Generator) -> float:
    seeds = rng.integers(len(pairs), size=len(pairs))
    drawn = (pairs[seed][rng.integers(len(pairs[seed]), size=len(pairs[seed]))] for seed in seeds)
    return float(np.mean([gaps.mean() for gaps in drawn]))


def in_words(best: str, differences: Mapping[str, Difference], metric: Metric) -> list[str]:
    """Says whom a method is better than, and from whom nothing tells it apart.

    Args:
        best: The method.
        differences: Its mean score less that of each other method.
        metric: What is compared.
    """
    sign = 1 if metric.better == "higher" else -1
    unit = 100 if metric.percent else 1
    points = " points" if metric.percent else ""

    def interval(d: Difference, sign: int) -> str:
        return "{:.2f} to {:.2f}".format(*sorted(sign * unit * end for end in (d.low, d.high)))

    def told(name: str, d: Difference, sign: int) -> str:
        return f"{name} by {sign * unit * d.mean:.2f}{points} ({interval(d, sign)})"

    better = [told(n, d, sign) for n, d in differences.items() if d.shown and sign * d.mean > 0]
    worse = [told(n, d, -sign) for n, d in differences.items() if d.shown and sign * d.mean < 0]
    alike = [f"{n} ({interval(d, sign)}{points})" for n, d in differences.items() if not d.shown]
    said = {"better than": better, "worse than": worse}
    lines = [f"  it is {how} {'; '.join(whom)}" for how, whom in said.items() if whom]
    if alike:
        lines.append(f"  no difference is shown from {'; '.join(alike)}")
    title = f"{best} has the best {metric.name} on validation rows; on test rows, over clients:"
    return [title, *lines]
