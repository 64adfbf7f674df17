"""A node's agenda: asks that wait, and the one at work. No files, sockets or clocks."""

import threading
from typing import Final

from engram.link.asks import Ask
from engram.link.frames import BadFrame

_WAITING: Final = 64  # most asks that wait
_Name = tuple[str, str]  # a run and a request


class Due:
    """Ask that waits, or is worked on.

    Attributes:
        since: When it came.
        cancelled: Set when nobody waits for its reply any more.
        again: Whether it was asked again since it was last attended to.
        open: Whether the server has asked it by the present connection.
    """

    def __init__(self, ask: Ask, since: float) -> None:
        self.ask, self.since = ask, since
        self.cancelled, self.again, self.open = threading.Event(), False, True


class Agenda:
    """Asks of a node. Runs take turns.

    Attributes:
        at: The ask at work.
    """

    def __init__(self) -> None:
        self._due: dict[_Name, Due] = {}
        self._last_run = ""
        self.at: Due | None = None

    def take(self, ask: Ask, now: float) -> None:
        """Takes an ask, in place of a former one of its name.

        Raises:
            BadFrame: Too many wait.
        """
        if len(self._due) >= _WAITING:
            raise BadFrame("the server asks for too much at a time")
        if self.at is not None and self.at.ask.key == ask.key:
            if self.at.ask.mark == ask.mark and not self.at.cancelled.is_set():
                self.at.again = self.at.open = True
                return
            self.at.cancelled.set()
        self._due[ask.key[1:]] = Due(ask, now)

    def cancel(self, run: str, request: str | None = None) -> None:
        """Gives up an ask, or all of a run."""
        for due in [*self._due.values(), *([self.at] if self.at else [])]:
            _, of_run, name = due.ask.key
            if of_run == run and request in (None, name):
                due.cancelled.set()
                self._due.pop((of_run, name), None)

    def clear(self) -> None:
        """Forgets asks that wait: once the node has connected anew, it is asked again."""
        self._due.clear()
        if self.at is not None:
            self.at.open = False

    def settle(self) -> None:
        """Gives up the ask at work unless the server still lists it among its open ones."""
        if self.at is not None and not self.at.open:
            self.at.cancelled.set()

    def begin(self) -> Due | None:
        """Returns the next ask: the first of another run than the last one's, if there is one."""
        others = [name for name in self._due if name[0] != self._last_run]
        names = others or [*self._due]
        if not names:
            return None
        self.at = self._due.pop(names[0])
        self._last_run = names[0][0]
        return self.at

    def end(self, *, again: bool) -> None:
        """Notes that the ask at work is done with, or is to be taken up once more."""
        due, self.at = self.at, None
        if again and due is not None and not due.cancelled.is_set():
            due.again = False
            self._due.setdefault(due.ask.key[1:], due)

    def overlooked(self, now: float, turn: float) -> list[Due]:
        """Removes and returns asks that have waited too long for another run's work to end."""
        if (at := self.at) is None:
            return []
        waiting = [due for due in self._due.values() if due.ask.key.run != at.ask.key.run]
        found = [due for due in waiting if now - due.since > turn]
        for due in found:
            del self._due[due.ask.key[1:]]
        return found
