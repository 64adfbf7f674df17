"""A constant chosen by validation, from a grid that grows until its best is inside."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from engram.core.arrays import Array

_MOST: Final = 8  # constants that are added at either end
_GAIN: Final = 1e-9  # of a loss: less is a tie, as where a larger constant changes nothing any more


class Choice(NamedTuple):
    """A constant, and what it was chosen by."""

    constant: float
    losses: Array  # validation losses with it, by task
    edge: bool  # whether the least loss is at an end all the same: a lower one may lie beyond


def choose(
    losses: Callable[[float], Array], grid: Sequence[float], *, simplest: bool = False
) -> Choice:
    """Returns the best constant of a grid that is extended, by its own ratios, where it ends.

    Args:
        losses: The validation losses of a constant, by task. The best has the least mean.
        grid: Ascending and positive, or a single constant of any value, which is not extended.
        simplest: Whether to return the largest constant that ``is_tie`` does not tell from it.
    """
    found = {c: losses(c) for c in grid}
    for _ in range(_MOST if len(grid) > 1 else 0):
        beyond = _beyond(found)
        if beyond is None:
            break
        found[beyond] = losses(beyond)
    best = min(found, key=lambda c: found[c].mean())
    edge = len(grid) > 1 and _beyond(found) is not None
    if simplest:
        best = max(c for c in found if is_tie(found[c], found[best]))
    return Choice(best, found[best], edge)


def is_tie(own: Array, best: Array) -> bool:
    """Returns whether losses exceed the best ones by at most one standard error, over tasks.

    It is the rule of Breiman, Friedman, Olshen, Stone. Classification and Regression Trees. 1984,
    Sec. 3.4.3, for paired differences.
    """
    gaps = own - best
    if len(gaps) == 1:
        return bool(gaps[0] <= 0)
    return bool(gaps.mean() <= gaps.std(ddof=1) / len(gaps) ** 0.5)


def _beyond(found: dict[float, Array]) -> float | None:
    """Returns a constant beyond the end at which the loss is least; None if it is inside."""
    means = {c: float(each.mean()) for c, each in found.items()}
    low, *_, high = order = sorted(means)
    for end, inner in ((low, order[1:2]), (high, order[-2:-1])):
        least = min(means.values()) >= means[end]
        if least and all(means[end] < means[c] * (1 - _GAIN) for c in inner):
            return end * end / inner[0]
    return None
