"""Differences between methods on the same clients, with intervals; and what they say in words."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import t

from client.confidence import LEVEL, of_mean
from engram.metrics import Metric

__all__ = ["Difference", "Scores", "in_words", "paired_difference"]

Scores = Sequence[npt.NDArray[np.float64]]
"""Each client's score, (clients,), for each seed; NaN for a client that was not scored."""


class Difference(NamedTuple):
    """A mean difference of two methods' scores, and its interval of level ``LEVEL``."""

    mean: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def paired_difference(one: Scores, other: Scores) -> Difference:
    """Compares two methods on the same clients of the same seeds.

    The interval of several seeds is Student's, of the seeds' mean differences: clients of one seed
    have data, and a model, in common. Seeds that agree by chance make it no narrower than the
    clients' spread within seeds. That of one seed is the bootstrap-t's over its clients, or
    Student's where these are too few for it; that of a single client is unbounded.

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
    means = np.array([gaps.mean() for gaps in pairs])
    ends = of_mean(pairs[0]) if len(pairs) == 1 else None
    low, high = ends or _students(means, pairs)
    return Difference(float(means.mean()), low, high)


def _students(means: npt.NDArray[np.float64], pairs: Scores) -> tuple[float, float]:
    """Returns Student's interval of the mean over seeds, or over the clients of a single one."""
    within = [gaps.var(ddof=1) / len(gaps) for gaps in pairs if len(gaps) > 1]
    spreads = [np.mean(within)] if within else []
    if len(pairs) > 1:
        spreads.append(means.var(ddof=1))
    if not spreads:
        return -np.inf, np.inf
    free = (len(pairs) if len(pairs) > 1 else len(pairs[0])) - 1
    half = t.ppf((1 + LEVEL) / 2, free) * np.sqrt(max(spreads) / len(pairs))
    return float(means.mean() - half), float(means.mean() + half)


def in_words(best: str, differences: Mapping[str, Difference], metric: Metric) -> list[str]:
    """Returns whom a method is better than, and from whom nothing tells it apart, in words.

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
