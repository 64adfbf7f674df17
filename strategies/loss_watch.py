"""Warns before a run diverges: when its training loss grows."""

from collections import deque
from logging import getLogger
from statistics import fmean

__all__ = ["LossWatch"]

_log = getLogger("flwr.engram")

_ROUNDS = 5  # rounds whose mean loss is compared: single cohorts' losses differ
_GROWTH = 10


class LossWatch:
    """Warns once, when the loss exceeds both ten times its minimum and the first round's.

    Below zero, where there are no such multiples, the loss must rise by nine times its minimum.

    Args:
        lower: The settings that the warning advises to lower, in words.
    """

    def __init__(self, lower: str) -> None:
        self._lower = lower
        self._recent: deque[float] = deque(maxlen=_ROUNDS)
        self._first: float | None = None
        self._least, self._best = float("inf"), 0
        self._warned = False

    def see(self, server_round: int, loss: float) -> None:
        """Adds the median training loss of a round's clients."""
        self._recent.append(loss)
        mean = fmean(self._recent)
        if self._first is None:
            self._first = loss
        if mean < self._least:
            self._least, self._best = mean, server_round
        far = self._least + (_GROWTH - 1) * abs(self._least)  # of a loss above 0, ten times as much
        if not self._warned and mean > max(far, self._first):
            self._warned = True
            _log.warning(
                "round %d: the median training loss is %.3g, and was %.3g in round %d (means of %d "
                "rounds): the run may diverge; if inputs and targets are of usual size, lower %s",
                server_round,
                mean,
                self._least,
                self._best,
                len(self._recent),
                self._lower,
            )
