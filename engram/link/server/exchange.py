"""Asks and replies between the runs and the nodes that are connected to a server."""

import hashlib
import shutil
import time
from collections.abc import Collection, Iterable
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any, Final

from engram.link.asks import Ask, Desk, Key
from engram.link.frames import BadFrame, Frame, pack
from engram.link.questions import GONE, LATE, NODE_ERRORS, UNUSABLE
from engram.link.server.session import Session
from engram.wire.counters import Counters

_log = getLogger("flwr.engram")
_REASON: Final = 1000  # most letters of an error's reason

COUNTED: Final = {
    "replies": "Replies that nodes have sent, including those that they sent again",
    "reply_bytes": "Bytes of their contents",
    "refused_replies": "Replies that were too large",
    "content_bytes": "Bytes of the contents that nodes have fetched",
    "connections": "Connections of nodes",
}
"""Counters of a server."""


class Exchange:
    """Asks of runs, and the replies of nodes that their runs have not taken.

    Args:
        folder: The server's. What is on its way is below ``runs``.
        most_reply: Upper bound on the bytes of a reply's content.
        counters: Counters of ``COUNTED``.

    Attributes:
        nodes: Sessions of the nodes that are connected, by name.
        runs: Sessions of the runs that are connected, by name.
    """

    def __init__(self, folder: Path, most_reply: int, counters: Counters) -> None:
        self.nodes: dict[str, Session] = {}
        self.runs: dict[str, Session] = {}
        self._runs_folder, self._most_reply, self._counters = folder / "runs", most_reply, counters
        self._desk = Desk()
        self._reasons: dict[Key, str] = {}  # why replies are not here yet

    def run_folder(self, run: str) -> Path:
        """Returns the folder of the contents that are on their way for a run."""
        return self._runs_folder / run

    def reply_folder(self, key: Key) -> Path:
        """Returns the folder of a reply's content, of one file at a time."""
        request = hashlib.sha256(key.request.encode(errors="surrogatepass")).hexdigest()[:32]
        return self.run_folder(key.run) / "replies" / f"{key.node}.{request}"

    # --- Words of nodes ------------------------------------------------------------------------

    def greet(self, name: str, session: Session, runs: Iterable[str] | None) -> None:
        """Sends a node that has connected all it is asked; says so if all ``runs`` are known."""
        for ask in self._desk.open(name):
            session.send(partial(_packed, ask))
        if runs is not None:
            self.settle([session], runs)

    def settle(self, sessions: Iterable[Session], runs: Iterable[str]) -> None:
        """Tells nodes the runs, and that nothing else than they were asked by now is open."""
        for session in sessions:
            session.send(partial(pack, "asked", runs=" ".join(runs)))

    def awaited(self, name: str, frame: Frame) -> Ask | None:
        """Returns the ask that a word of a node belongs to; None if none is awaited."""
        key = Key(name, frame.text("run", 64), frame.text("request", 256))
        return self._desk.awaited(key, frame.text("mark", 64))

    def is_awaited(self, ask: Ask) -> bool:
        """Whether the reply to an ask is still awaited."""
        return self._desk.awaited(ask.key, ask.mark) is not None

    def hear(self, name: str, session: Session, frame: Frame) -> None:
        """Hears a word of a node.

        Raises:
            BadFrame: No honest node says it.
        """
        ask = self.awaited(name, frame)
        if ask is None:  # it has crossed a cancellation, or was sent twice
            session.strikes += 1
        elif frame.kind == "began":
            session.strikes += session.work is not None
            session.begin(ask.key, f"{ask.kind} of run {ask.key.run}")
            self._forget(self._desk.later(ask))
        elif frame.kind == "reply":
            if not self.refuse_large(ask, len(frame.body)):
                self.reply(ask, frame, size=len(frame.body))
        else:
            raise BadFrame(f"a node must not say {frame.kind!r}")

    def refuse_large(self, ask: Ask, size: int) -> bool:
        """Answers in place of a node if its reply is too large; returns whether it is."""
        if size <= ask.most:
            return False
        self._counters.add("refused_replies")
        bound = " (--max-reply)" if ask.most == self._most_reply else ""
        reason = f"its reply must have at most {ask.most} bytes{bound}, got {size}"
        _log.warning("the reply of %s is refused: %s", ask.key.node, reason)
        self._answer([ask], UNUSABLE, reason)
        return True

    def reply(self, ask: Ask, frame: Frame, size: int, file: Path | None = None) -> None:
        """Notes a node's reply, and passes it on if its run is there.

        Raises:
            BadFrame: No honest node says it.
        """
        check_reply(frame)
        self._counters.add("replies")
        self._counters.add("reply_bytes", size)
        self._pass(
            ask, frame, {"size": size} if file is None else {"size": size, "file": str(file)}
        )

    def _pass(self, ask: Ask, frame: Frame, where: dict[str, Any]) -> None:
        key = ask.key
        said = {
            **where,
            "settings": frame.table("settings"),
            "error": frame.text("error", 64),
            "reason": frame.text("reason")[:_REASON],
        }
        reply = pack("reply", frame.body, node=key.node, request=key.request, **said)
        if (session := self._idle(key)) is not None:
            session.strikes = 0
        self._desk.reply(key, reply)
        self._reasons.pop(key, None)
        if (run := self.runs.get(key.run)) is not None:
            run.send(lambda: reply)

    def _answer(self, asks: Iterable[Ask], error: str, reason: str) -> None:
        """Answers asks in place of their nodes."""
        frame = Frame("reply", {"settings": {}, "error": error, "reason": reason}, memoryview(b""))
        for ask in asks:
            self._pass(ask, frame, {"size": 0})
            if error != UNUSABLE:  # a run that begins anew may ask it again
                self._desk.forget([ask.key])

    # --- Words of runs -------------------------------------------------------------------------

    def order(self, run: str, frame: Frame, members: Collection[str]) -> None:
        """Hears a word of a run: ``ask``, ``taken``, or ``cancel``.

        Raises:
            BadFrame: No run says it.
        """
        key = Key(frame.text("node", 64), run, frame.text("request", 256))
        if frame.kind == "ask":
            self._ask(Ask.read(frame, key, time.monotonic()), members)
        elif frame.kind in ("taken", "cancel"):
            self._forget([key])
        else:
            raise BadFrame(f"a run must not say {frame.kind!r}")

    def _ask(self, ask: Ask, members: Collection[str]) -> None:
        key = ask.key
        ask = ask._replace(most=min(ask.most, self._most_reply))
        if (reply := self._desk.ask(ask)) is not None:
            self.runs[key.run].send(lambda: reply)
        elif key.node not in members:
            self._answer([ask], GONE, "it is no member (any more)")
        elif key.node in self.nodes:
            self.nodes[key.node].send(partial(_packed, ask))

    def drop(self, run: str) -> None:
        """Forgets a run that is over, as its nodes do."""
        self._forget(self._desk.of_run(run))
        for session in self.nodes.values():
            session.send(partial(pack, "over", run=run))
        shutil.rmtree(self.run_folder(run), ignore_errors=True)

    def _forget(self, keys: list[Key]) -> None:
        """Forgets asks; cancels those that nodes may be at work on."""
        self._cancel(self._desk.forget(keys))
        for key in keys:
            self._reasons.pop(key, None)
            shutil.rmtree(self.reply_folder(key), ignore_errors=True)  # the run has its file open

    def _cancel(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if (session := self._idle(key)) is not None:
                session.send(partial(pack, "cancel", run=key.run, request=key.request))

    def _idle(self, key: Key) -> Session | None:
        """Notes that a node is not at work on an ask; returns its session."""
        session = self.nodes.get(key.node)
        if session is not None and session.work == key:
            session.begin(None, "")
        return session

    # --- Time ----------------------------------------------------------------------------------

    def delay(self, ask: Ask, reason: str) -> None:
        """Notes why a reply cannot come now, for the case that it comes too late."""
        if self._reasons.get(ask.key) != reason:
            _log.warning("the reply of %s to %s has to wait: %s", *ask.key[::2], reason)
        self._reasons[ask.key] = reason

    def end_overdue(self) -> None:
        """Answers overdue asks, and cancels them."""
        for ask in self._desk.overdue(time.monotonic()):
            self._cancel([ask.key])
            self._answer([ask], LATE, self._reasons.pop(ask.key, ""))

    def end_member(self, name: str) -> None:
        """Answers the asks of somebody who is no member any more."""
        self._answer(self._desk.open(name), GONE, "it is no member any more")


def check_reply(frame: Frame) -> None:
    """Raises ``BadFrame`` if no honest node says such a reply."""
    frame.table("settings"), frame.text("reason")
    if frame.text("error", 64) not in NODE_ERRORS:
        raise BadFrame(f"the error of a node's reply must be one of {', '.join(NODE_ERRORS[1:])}")


def _packed(ask: Ask) -> bytes:
    return ask.pack(time.monotonic())
