"""A node's end of the link: it dials, answers one ask after another, and dials again, for months.

Whenever it connects, it is asked again what has no reply yet, so that nothing it is asked need be
stored; what it has fetched and answered is (``store.py``).
"""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from errno import ENOENT
from logging import getLogger
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from engram.link.asks import Ask, Key
from engram.link.blobs import Blob
from engram.link.frames import BadFrame, Frame, pack
from engram.link.node.agenda import Agenda, Due
from engram.link.node.connection import Connection, Dial, Lost
from engram.link.node.store import Store
from engram.link.transport import INLINE, PATIENCE, Patience
from engram.settings.errors import Refused

_log = getLogger("flwr.engram")
_Code = grpc.StatusCode
_FIRST: Final = 0.25  # seconds until the second try to connect
_PAUSE: Final = 1.0  # seconds until a transfer that failed is taken up again
_ALIVE: Final = 5.0  # seconds between signs of life of a connection
_REASON: Final = 1000  # most letters of an error's reason
_DROPPED: Final = {_Code.NOT_FOUND, _Code.OUT_OF_RANGE}  # replies that are not sent again


class Task(NamedTuple):
    """A question to be answered.

    Attributes:
        contents: Small ones as bytes, and large ones as files.
        until: When the reply is no longer awaited, by ``time.monotonic()``.
        most: Upper bound on the bytes of the reply's content.
        place: Folder for the reply's content, if another process writes it (``Blob.write``).
        cancelled: Set when nobody waits for the reply any more.
        key: What the reply's content is encrypted with then.
    """

    run: str
    request: str
    kind: str
    settings: Mapping[str, Any]
    contents: Sequence[bytes | Blob]
    until: float
    most: int
    place: Path
    cancelled: threading.Event
    key: bytes | None = None


class Answer(NamedTuple):
    """Answer to a task.

    Attributes:
        settings: Plain data, up to 60 kB as JSON.
        content: A file in the task's ``place``, or parts of the bytes.
        error: "" or one of ``questions.NODE_ERRORS``, with its reason in words.
    """

    settings: Mapping[str, Any]
    content: Blob | Sequence[bytes | memoryview] = ()
    error: str = ""
    reason: str = ""


class Node:
    """Node of a client.

    Args:
        dial: Where and as whom to connect.
        state: Folder of its contents and replies.
        answer: Answers tasks in a thread, one after another. It may raise ``Refused``.
        lost: Called in a thread when there is no connection (any more), with the reason, which it
            tells; it raises an ``EngramError`` that ends the node if there is to be none again.
        key: What contents and replies are encrypted with.
        most: Upper bound on the bytes of an ask's contents.
        patience: How long it waits for what.
        welcomed: Called with ``version``, ``time`` and ``announcements`` whenever they come.
        on_word: Called every few seconds while it is connected.
    """

    def __init__(
        self,
        dial: Dial,
        state: Path,
        answer: Callable[[Task], Answer],
        lost: Callable[[Lost], None],
        *,
        key: bytes | None = None,
        most: int = 2**34,
        patience: Patience = PATIENCE,
        welcomed: Callable[[Mapping[str, Any]], None] = lambda _: None,
        on_word: Callable[[], None] = lambda: None,
    ) -> None:
        self._dial, self._store, self._answer = dial, Store(state, key), answer
        self._most, self._patience = most, patience
        self._welcomed, self._lost, self._on_word = welcomed, lost, on_word
        self._agenda = Agenda()
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "answer")
        self._connection: Connection | None = None

    async def serve(self) -> None:
        """Stays connected until it is cancelled.

        Raises:
            EngramError: As ``lost``.
        """
        tasks = [asyncio.create_task(each) for each in (self._stay(), self._work(), self._turns())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in tasks:
                each.cancel()
            if self._agenda.at is not None:
                self._agenda.at.cancelled.set()
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _stay(self) -> None:
        """Keeps a connection, until it is refused for good."""
        wait, longest = _FIRST, self._patience.longest
        while True:
            begun, fault = time.monotonic(), Lost(_Code.OK, "the server has ended the connection")
            try:
                await self._session()
            except Lost as error:
                fault = error
            except (BadFrame, OSError, Refused) as error:  # such as a key that cannot be read
                fault = Lost(_Code.UNKNOWN, str(error))
            await asyncio.to_thread(self._lost, fault)
            # Sessions that end soon may all end alike, so the pauses grow.
            wait = _FIRST if time.monotonic() - begun > longest else min(longest, 2 * wait)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _session(self) -> None:
        async with Connection.open(self._dial, self._patience) as connection:
            alive = asyncio.create_task(self._live())
            self._connection = connection
            try:
                while (frame := await connection.read()) is not None:
                    self._hear(frame)
            finally:
                alive.cancel()
                self._connection = None
                self._agenda.clear()

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(_ALIVE)
            self._on_word()

    # --- Words of the server -------------------------------------------------------------------

    def _hear(self, frame: Frame) -> None:
        if frame.kind == "welcome":
            self._on_word()
            self._welcomed(frame.fields)
            return
        if frame.kind == "asked":
            self._agenda.settle()
            self._store.keep_only(frame.text("runs").split())
            return
        run = frame.text("run", 64)
        if frame.kind == "ask":
            key = Key("", run, frame.text("request", 256))
            self._agenda.take(Ask.read(frame, key, now := time.monotonic()), now)
            self._wake.set()
        elif frame.kind == "cancel":
            self._agenda.cancel(run, frame.text("request", 256))
        elif frame.kind == "over":
            self._agenda.cancel(run)
            self._store.over(run)

    # --- Work ----------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Answers due questions, one after another; runs take turns."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (due := self._agenda.begin()) is not None:
                left = max(0.0, due.ask.until - time.monotonic())
                overdue = asyncio.get_running_loop().call_later(left, due.cancelled.set)
                again = False
                try:
                    await self._handle(due)
                    again = due.again
                except (Lost, OSError, ValueError) as error:
                    again = await self._is_repeated(due, error)
                finally:
                    overdue.cancel()
                    self._agenda.end(again=again)

    async def _is_repeated(self, due: Due, error: Exception) -> bool:
        """Whether to try again after a failure on the way."""
        _, run, request = due.ask.key
        code = error.code if isinstance(error, Lost) else None
        if due.cancelled.is_set():
            return False
        _log.warning("%s of run %s: %s", request, run, error)
        if isinstance(error, OSError) and error.errno not in (None, ENOENT):  # a full disk, say
            reason = f"this site's disk: {error.strerror or error}"
            with contextlib.suppress(Lost, OSError):  # it is asked again
                await self._say("reply", due.ask, **_error("failed", reason))
            return due.again
        if code == _Code.DATA_LOSS or isinstance(error, ValueError):
            self._store.forget(due.ask)
        await asyncio.sleep(_PAUSE)
        return due.again or (code not in _DROPPED and self._connection is not None)

    async def _turns(self) -> None:
        """Answers asks in place of a worker that is at work for another run."""
        while True:
            await asyncio.sleep(min(1.0, self._patience.turn / 4))
            for due in self._agenda.overlooked(time.monotonic(), self._patience.turn):
                if (at := self._agenda.at) is not None:
                    reason = f"it is at work on {at.ask.kind} of run {at.ask.key.run}"
                    with contextlib.suppress(Lost, OSError):  # it is asked again
                        await self._say("reply", due.ask, **_error("busy", reason))

    async def _handle(self, due: Due) -> None:
        ask = due.ask
        found: Answer | tuple[Frame, Blob] | None = self._store.reply(ask)
        if found is None:
            if ask.until < time.monotonic():
                return
            if (size := sum(each.size for each in ask.contents)) > self._most:
                why = f"this site takes models of at most {self._most} bytes, got {size}"
                await self._say("reply", ask, **_error("refused", why))
                return
            contents = await self._store.contents(ask, self._there().fetch)
            await self._say("began", ask)
            task = Task(
                ask.key.run, ask.key.request, ask.kind, ask.settings, contents, ask.until, ask.most,
                self._store.place(ask), due.cancelled, self._store.key,
            )  # fmt: skip
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._thread, self._answered, task, ask)
            del task, contents
        if due.cancelled.is_set():
            return
        due.again = False
        if isinstance(found, Answer):
            await self._say("reply", ask, **_error(found.error, found.reason, found.settings))
        else:
            await self._send(ask, *found)

    def _answered(self, task: Task, ask: Ask) -> Answer | tuple[Frame, Blob]:
        """Has a task answered, and keeps the reply unless it is an error."""
        try:
            found = self._answer(task)
            if not found.error and not task.cancelled.is_set():
                return self._store.keep(ask, found.settings, found.content)
        except Refused as refusal:
            return Answer({}, (), "refused", str(refusal))
        except Exception as error:  # told to the run, whoever's fault it is
            _log.exception("%s of run %s has failed", task.kind, task.run)
            return Answer({}, (), "failed", f"{type(error).__name__}: {error}")
        return found

    # --- Transfers -----------------------------------------------------------------------------

    async def _send(self, ask: Ask, reply: Frame, blob: Blob) -> None:
        said = {name: reply.fields[name] for name in ("settings", "error", "reason")}
        said |= {"digest": blob.digest, "size": blob.size}
        if blob.size <= INLINE:
            await self._say("reply", ask, b"".join(blob.chunks(0, INLINE)), **said)
        else:
            await self._there().deliver(pack("reply", **ask.name, **said), blob)

    async def _say(self, kind: str, ask: Ask, body: bytes = b"", **fields: Any) -> None:
        await self._there().write(pack(kind, body, **ask.name, **fields))

    def _there(self) -> Connection:
        if self._connection is None:
            raise ConnectionError("the server is away")
        return self._connection


def _error(error: str, reason: str, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"settings": dict(settings or {}), "error": error, "reason": reason[:_REASON]}
