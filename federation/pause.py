"""How long to wait before looking whether something has come that comes in rounds."""

_SLOWER = 1.25
_SOON = 0.8  # of the time that it took last time, before the first look
_SOONER = 0.7  # of that, if the first look came too late


class Pauses:
    """Pauses between looks. A look costs, and rounds resemble each other.

    The first pause of a wait is a little shorter than the last wait, or than the first pause of
    it, if that was all of it. The next ones are short, and grow.

    The shortest is of those after the first, in seconds.
    """

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest = shortest
        self._longest = longest
        self._first = shortest
        self.begin()

    def begin(self) -> None:
        """Starts a wait."""
        self._next = self._first
        self._waited = 0.0
        self._looks = 0

    def next(self) -> float:
        """Returns how long to pause before the next look."""
        pause = min(self._next, self._longest)
        self._next = self._shortest * _SLOWER ** min(self._looks, 100)  # far beyond the longest
        self._waited += pause
        self._looks += 1
        return pause

    def found(self) -> None:
        """Notes that the last look found what was waited for: the next wait learns from it."""
        if self._looks <= 1:
            self._first = max(self._first * _SOONER, self._shortest)
        else:
            self._first = self._waited * _SOON
