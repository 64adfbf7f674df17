"""A constant chosen by validation, from a grid that grows until its best is inside."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

__all__ = ["Choice", "choose"]

_MOST: Final = 8  # constants that are added at either end
_GAIN: Final = 1e-9  # of a loss: less is a tie, as where a larger constant changes nothing any more


class Choice(NamedTuple):
    """The constant with the least loss."""

    constant: float
    loss: float
    edge: bool  # whether it is at an end all the same, so that a still better one may lie beyond


def choose(loss: Callable[[float], float], grid: Sequence[float]) -> Choice:
    """Returns the best constant of a grid that is extended, by its own ratios, where it ends.

    Args:
        loss: The validation loss of a constant.
        grid: Ascending and positive, or a single constant of any value, which is not extended.
    """
    losses = {c: loss(c) for c in grid}
    for _ in range(_MOST if len(grid) > 1 else 0):
        beyond = _beyond(losses)
        if beyond is None:
            break
        losses[beyond] = loss(beyond)
    best = min(losses, key=lambda c: losses[c])
    return Choice(best, losses[best], edge=len(grid) > 1 and _beyond(losses) is not None)


def _beyond(losses: dict[float, float]) -> float | None:
    """Returns a constant beyond the end at which the loss is least; None if it is inside."""
    low, *_, high = order = sorted(losses)
    for end, inner in ((low, order[1:2]), (high, order[-2:-1])):
        least = min(losses.values()) >= losses[end]
        if least and all(losses[end] < losses[c] * (1 - _GAIN) for c in inner):
            return end * end / inner[0]
    return None
