"""Adaptive polling intervals for replies that take about as long in each round."""

from collections import deque

_SLOWER = 1.25  # growth of the pauses after the first
_SOON = 0.8  # the first pause, as a fraction of the shortest of the last waits
_LAST = 4  # number of these, more than messages of one turn of a bandit
_SOONER = 0.5  # factor on the first pause if the first poll already found what it waited for


class Pauses:
    """Pauses between polls, which are costly.

    The first pause of a wait is a little shorter than the shortest of the last four waits. The
    next ones begin at ``shortest`` seconds and grow to at most ``longest``.
    """

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest = shortest
        self._longest = longest
        self._first = shortest
        self._learned: deque[float] = deque(maxlen=_LAST)
        self.begin()

    def begin(self) -> None:
        """Starts a wait."""
        self._next = self._first
        self._waited = 0.0
        self._looks = 0

    def next(self) -> float:
        """Returns the seconds to pause before the next poll."""
        pause = min(self._next, self._longest)
        self._next = self._shortest * _SLOWER ** min(self._looks, 100)  # far beyond the longest
        self._waited += pause
        self._looks += 1
        return pause

    def found(self) -> None:
        """Notes that the last poll was successful, from which the next wait learns."""
        first = self._first * _SOONER if self._looks <= 1 else self._waited * _SOON
        self._learned.append(min(first, self._longest * _SOON))
        self._first = max(min(self._learned), self._shortest)
