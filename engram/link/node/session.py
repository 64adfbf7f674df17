"""One session with a SuperLink: the worker answers its messages one after another.

Work whose reply is no longer awaited is ended, so that it does not delay other messages; meanwhile
another run's message is answered by an error that says that the node is busy.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import UTC, datetime
from logging import getLogger
from threading import Event
from typing import NamedTuple

from flwr.app import Error, Message, MessageType

from engram.link.backoff import Pauses
from engram.link.flower import ErrorCode, Parcel, error_instead, metadata_of, pack
from engram.link.node.fleet import (
    Fleet,
    KeyRefused,
    RunInfo,
    RunOver,
    Unreachable,
    Untrusted,
    Unusable,
)
from engram.link.node.worker import Work, Worker, WorkerDied
from engram.settings.errors import BUSY, REFUSED, EngramError, Refused, one_line
from engram.sites.audit import ENDED, Audit
from engram.sites.policy import USUAL, Policy

_log = getLogger("flwr.engram")

_EAGER, _IDLE = 0.03, 1.0  # shortest and longest seconds between polls for messages
# While the worker is at work, seconds between checks
_STOP = 0.2  # whether the node is to stop,
_ASIDE = 2.0  # for further messages,
_RUN, _SELDOM = 5.0, 60.0  # whether the run goes on: a tenth of the time at work, within these
_TURN = 10.0  # seconds after which another run's waiting message is answered as busy
_MOST_WAITING = 16  # most messages that wait here; further ones wait at the SuperLink
_LONGEST = 30 * 86400.0  # most seconds of work, whatever its message says


class _Letter(NamedTuple):
    """A message without its content, and the ``time.monotonic`` of its arrival and expiry."""

    run_id: int
    message: Parcel
    came: float
    until: float


class _Job(NamedTuple):
    """The message that the worker is answering, since when, for how long, and its future reply."""

    letter: _Letter
    since: float
    seconds: float  # that the site's policy allows
    reply: Future[Parcel]

    def __str__(self) -> str:
        now = time.monotonic()
        until = datetime.fromtimestamp(time.time() + self.letter.until - now, UTC)
        return (
            f"at work for run {self.letter.run_id}, since {now - self.since:.0f} s, and until "
            f"{until:%Y-%m-%d %H:%M:%S} UTC at the latest"
        )


class Session:
    """A node's work while it is connected.

    Args:
        fleet: The connection.
        worker: Answers the messages.
        node_id: The node's id.
        stop: Event that ends the session.
        policy: Reads the site's policy.
        audit: Where work that did not come to its end is noted.
    """

    def __init__(
        self,
        fleet: Fleet,
        worker: Worker,
        node_id: int,
        stop: Event,
        *,
        policy: Callable[[], Policy],
        audit: Audit,
    ) -> None:
        self._policy = policy
        self._audit = audit
        self._fleet = fleet
        self._worker = worker
        self._node_id = node_id
        self._stop = stop
        self._run = RunInfo(0, b"", {})
        self._waiting: deque[_Letter] = deque()
        self._broken: EngramError | None = None

    def serve(self) -> None:
        """Answers one message after another, as long as the session lasts.

        Raises:
            Unreachable: The SuperLink does not answer.
            KeyRefused: It does not know this node any more.
            Untrusted: It is another one.
        """
        pauses = Pauses(_EAGER, _IDLE)
        while not self._stop.is_set():
            begun = time.monotonic()
            letter = self._waiting.popleft() if self._waiting else self._pull()
            if letter is None:
                self._stop.wait(pauses.next(time.monotonic() - begun))
                continue
            pauses.found()
            try:
                self._handle(letter)
            except RunOver as error:
                _log.info("a message is dropped: %s", error)
            if self._broken is not None:
                raise self._broken
            pauses.begin()
            self._stop.wait(0 if self._waiting else pauses.next())

    def _pull(self) -> _Letter | None:
        """Returns the next message; None if there is none, or none that can be answered."""
        try:
            pulled = self._fleet.pull()
            if pulled is None:
                return None
            run_id, message = pulled
            now = time.monotonic()
            return _Letter(run_id, message, now, now + _lifetime(message))
        except (RunOver, Unusable) as error:
            _log.warning("a message is dropped: %s", error)
            return None

    def _handle(self, letter: _Letter) -> None:
        """Answers a message; raises ``RunOver`` where the answer is no longer awaited."""
        try:
            message = self._fleet.fetch(letter.run_id, letter.message, until=letter.until)
            if self._run.run_id != letter.run_id:
                self._run = self._run_info(letter.run_id)
        except Unusable as error:
            _log.warning("a message of run %d is refused: %s", letter.run_id, error)
            self._refuse(letter, REFUSED, str(error))
            return
        reply = self._worker.begin(Work(message, self._run, self._node_id))
        del message  # which may be large, and is the worker's now
        job = _Job(letter, time.monotonic(), self._seconds(), reply)
        if self._wait(job):
            self._push(letter, self._reply(job))

    def _seconds(self) -> float:
        try:
            return self._policy().seconds
        except Refused:  # by which the worker refuses the message
            return USUAL.seconds

    def _run_info(self, run_id: int) -> RunInfo:
        try:
            return self._fleet.run_info(run_id)
        except EngramError:
            raise
        except Exception as error:  # untrusted bytes: Flower may raise anything
            raise Unusable(f"run {run_id} cannot be read: {one_line(repr(error))}") from error

    def _refuse(self, letter: _Letter, code: int, reason: str) -> None:
        """Answers a message by an error, without fetching its content."""
        self._fleet.confirm(letter.run_id, letter.message)
        self._push(letter, _error(letter, code, reason))

    def _push(self, letter: _Letter, reply: Parcel) -> None:
        try:
            self._fleet.push(letter.run_id, reply)
        except Unusable as error:
            raise RunOver(str(error)) from error

    # --- While the worker is at work -----------------------------------------------------------

    def _wait(self, job: _Job) -> bool:
        """Waits for a reply; returns False if it is no longer awaited and the work was ended."""
        look, aside = job.since + _RUN, job.since + _ASIDE
        while not wait([job.reply], _STOP).done:
            now = time.monotonic()
            if self._stop.is_set():
                return False
            if now > job.letter.until:
                return self._end(job, "its round is over")
            if now > job.since + job.seconds:
                why = f"this site's policy allows {job.seconds:g} s of work for a round"
                self._end(job, why)
                self._push(job.letter, _error(job.letter, REFUSED, f"{why}, which it has taken"))
                return False
            try:
                if now > look:
                    look = now + min(_SELDOM, max(_RUN, (now - job.since) / 10))
                    self._fleet.check_run(job.letter.run_id)
                if now > aside and not self._look_aside(job):
                    aside = now + _ASIDE
            except RunOver as error:
                return self._end(job, str(error))
            except (Unreachable, KeyRefused, Untrusted, Unusable) as error:
                # Finish the work, and then connect again: a message may have been lost, and is
                # sent again only to a node that does.
                self._broken, aside = error, now + _ASIDE
        return True

    def _end(self, job: _Job, why: str) -> bool:
        seconds = time.monotonic() - job.since
        _log.warning("work for run %d ended after %.0f s: %s", job.letter.run_id, seconds, why)
        self._worker.stop_work()
        self._note(job, f"after {seconds:.0f} s: {why}")
        return False

    def _reply(self, job: _Job) -> Parcel:
        try:
            return job.reply.result()
        except WorkerDied as error:
            _log.warning("%s", error)
            self._note(job, str(error))
            return _error(job.letter, ErrorCode.CLIENT_APP_CRASHED, str(error))

    def _note(self, job: _Job, why: str) -> None:
        """Adds a line to the audit; it counts as a round if it was to train."""
        kind = metadata_of(job.letter.message).message_type
        line = {"kind": ENDED, "run": job.letter.run_id, "why": why}
        with contextlib.suppress(OSError):  # the worker says so, with the next message
            self._audit.append(line, trained=kind == MessageType.TRAIN)

    def _look_aside(self, job: _Job) -> bool:
        """Takes one further message while the worker is busy; returns whether there was one.

        Runs take turns: another run's message waits for a while, and is then answered by an error
        that says that the node is busy. ``RunOver``: it is of another run, and the work's is over.
        """
        letter = self._pull() if len(self._waiting) < _MOST_WAITING else None
        if letter is not None:
            self._waiting.append(letter)
            if letter.run_id != job.letter.run_id:
                self._fleet.check_run(job.letter.run_id)
        soonest = time.monotonic() - _TURN
        others = [other for other in self._waiting if other.run_id != job.letter.run_id]
        for other in [other for other in others if other.came < soonest]:
            try:
                self._refuse(other, BUSY, f"this node is {job}")
            except RunOver as error:
                _log.info("a message is dropped: %s", error)
            self._waiting.remove(other)
        return letter is not None


def _lifetime(message: Parcel) -> float:
    """Seconds from now until the reply to a message is too late.

    At most its time to live, even if this machine's clock is behind the sender's.
    """
    try:
        metadata = metadata_of(message)
    except Exception as error:  # as in _run_info
        raise Unusable(f"it cannot be read: {one_line(repr(error))}") from error
    left = metadata.ttl + min(0.0, metadata.created_at - time.time())
    if not left > 0:  # or not a number
        raise RunOver(f"its round has been over for {-left:.0f} s, by this machine's clock")
    return min(left, _LONGEST)


def _error(letter: _Letter, code: int, reason: str) -> Parcel:
    question = error_instead(letter.message, ErrorCode.UNKNOWN, "")
    return pack(Message(Error(code, reason), reply_to=question))
