"""Verdict on the best method, as far as a comparison can tell, by paired intervals."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy.special import stdtrit

from engram.core.arrays import Array
from engram.simulations.job_pool import Row

_LEVEL: Final = 0.95
_NAMED: Final = 4  # most methods that are named as no worse


class Interval(NamedTuple):
    """A mean difference of two methods' losses, with its limits."""

    mean: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


class Nouns(NamedTuple):
    """Subject of a comparison, for ``in_words``."""

    one: str  # one of those compared
    best: str  # says of one that it is the best
    loss: str  # what is compared; less is better
    all: str  # says what the comparison is made of


PREDICTIONS: Final = Nouns("method", "predicts best", "mean loss", "this table")
REGRETS: Final = Nouns("policy", "is best", "mean regret", "these worlds")


def paired(own: Array, other: Array, ratio: float) -> Interval:
    """Returns the interval of level 0.95 of a mean difference ``own - other``.

    Tasks and splits are both drawn at random: the variance is the sum of that of the tasks' means
    over splits, ``s^2 / M``, and of that of the splits' means over tasks. Splits of the same rows
    are correlated, so the latter is ``s^2 (1 / S + ratio)`` (Nadeau and Bengio 2003). The quantile
    is Student's, with the degrees of freedom of the sum (Satterthwaite 1946).

    Args:
        own: A method's losses, by split and task, shape (S, M).
        other: Another method's, of the same rows.
        ratio: Number of rows to be predicted, over the number of those learned from.
    """
    gaps = own - other
    splits, tasks = gaps.shape
    each = [  # variance of the mean, and degrees of freedom
        (float(gaps.mean(axis=1 - axis).var(ddof=1)) * factor, count - 1)
        for axis, count, factor in ((1, tasks, 1 / tasks), (0, splits, 1 / splits + ratio))
        if count > 1
    ]
    mean, variance = float(gaps.mean()), sum(part for part, _ in each)
    if not each:
        return Interval(mean, -np.inf, np.inf)
    if variance == 0:
        return Interval(mean, mean, mean)
    freedom = variance**2 / sum(part**2 / count for part, count in each)
    half = float(stdtrit(freedom, (1 + _LEVEL) / 2)) * variance**0.5
    return Interval(mean, mean - half, mean + half)


def in_words(rows: Sequence[Row], nouns: Nouns = PREDICTIONS) -> str:
    """Names the best method only if its losses are surely lower than every other's.

    Otherwise, it names the methods that may do as well, and the simplest of them.

    Args:
        rows: The methods in the order of their simplicity, each with ``method``, its name;
            ``loss``; ``gap-low``, the lower limit of by how much its loss is above the least; and
            ``reason``, why it could not be fitted, or None.
        nouns: What is compared.
    """
    fitted = [row for row in rows if row["reason"] is None]
    if not fitted:
        return f"No {nouns.one} could be fitted."
    best = min(fitted, key=lambda row: row["loss"])
    close = [row for row in fitted if row is not best and row["gap-low"] <= 0]
    near = [row["method"] for row in sorted(close, key=lambda row: row["loss"])]
    name = best["method"]
    if not near:
        others = f"every other {nouns.one}'s" if len(fitted) > 1 else f"no other {nouns.one}'s"
        return f"{name} {nouns.best}: its {nouns.loss} is below {others}, beyond chance."
    # A wide interval makes nothing that is worse than the simplest of all enough.
    able = [row for row in fitted if row["loss"] <= fitted[0]["loss"]]
    simplest = next(row["method"] for row in able if row["method"] in near or row is best)
    text = f"No {nouns.one} is surely the best: {name} has the lowest {nouns.loss}, but "
    more = f" and {len(near) - _NAMED} others" if len(near) > _NAMED else ""
    text += f"{', '.join(near[:_NAMED])}{more} may do as well (the interval includes 0)."
    if simplest == name:
        worse = {*near} - {row["method"] for row in able}
        but = f" that do no worse than {fitted[0]['method']}" if worse else ""
        return f"{text} {name} is the simplest of them{but}."
    return f"{text} {simplest} is simpler than {name}, and enough as far as {nouns.all} can tell."
