"""A node's end of the link: it dials, answers one ask after another, and dials again, for months.

Whenever it connects, it is asked again what has no reply yet. What it has fetched of a model stays
in a file, to be completed; a reply stays until the run has asked more, so that the same question
gets the same reply, without being worked on twice.
"""

import asyncio
import contextlib
import hashlib
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from logging import getLogger
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from engram.link.asks import Ask, Key
from engram.link.blobs import Blob, Part
from engram.link.frames import CHUNK, BadFrame, Frame, pack, unpack
from tests.link.wire.identity import node_credentials, write_file
from engram.link.transport import CONNECT, DELIVER, FETCH, INLINE, PATIENCE, VERSION, Patience, of_node

_log = getLogger("engram.link")
_KEPT, _RUNS = 2, 4  # replies of a run that are kept, and runs of which some are
_WAITING: Final = 64  # most asks that wait
_FIRST: Final = 0.25  # seconds until the second try to connect
_REPLY: Final = "reply"  # the file beside a reply's content
_PAUSE: Final = 1.0  # seconds until a transfer that failed is taken up again
_FINAL: Final = {
    grpc.StatusCode.PERMISSION_DENIED,  # it was removed
    grpc.StatusCode.ALREADY_EXISTS,  # another node has its key
    grpc.StatusCode.FAILED_PRECONDITION,  # the server speaks another version
}


class Refused(Exception):
    """A site does not do what it is asked, or a server does not let a node in."""


class Task(NamedTuple):
    """What is to be answered; ``cancelled`` is set when nobody waits for it any more."""

    run: str
    kind: str
    settings: Mapping[str, Any]
    content: memoryview
    cancelled: threading.Event


class Answer(NamedTuple):
    """An answer: plain data, and the parts of its content."""

    settings: Mapping[str, Any]
    parts: Iterable[bytes | memoryview] = ()


class Node:
    """A node.

    Args:
        address: HOST:PORT of the server.
        folder: The client's folder, with its identity; its ``state`` is kept there, too.
        answer: Answers asks, in a thread. It raises ``Refused`` with a reason for the asker.
        most: Most bytes of content that it takes.
        patience: How long it waits for what.
    """

    def __init__(
        self,
        address: str,
        folder: Path,
        answer: Callable[[Task], Answer],
        *,
        most: int = 2**30,
        patience: Patience = PATIENCE,
    ) -> None:
        self._address, self._folder, self._answer = address, folder, answer
        self._most, self._patience = most, patience
        self._asked, self._replies = folder / "state" / "asked", folder / "state" / "replies"
        self._due: dict[tuple[str, str], Ask] = {}
        self._wake, self._saying = asyncio.Event(), asyncio.Lock()
        self._at: tuple[tuple[str, str], threading.Event] | None = None
        self._channel: grpc.aio.Channel | None = None
        self._call: Any = None

    async def serve(self) -> None:
        """Stays connected until it is cancelled.

        Raises:
            Refused: It was removed, or another node has connected with its key.
        """
        working, wait = asyncio.create_task(self._work()), _FIRST
        try:
            while True:
                begun = time.monotonic()
                try:
                    await self._session()
                except grpc.aio.AioRpcError as error:
                    if error.code() in _FINAL:
                        raise Refused(error.details()) from error
                    _log.warning("%s; connecting again", error.details())
                except BadFrame as error:
                    _log.warning("the server makes no sense: %s", error)
                # Sessions that end soon may all end alike, so the pauses grow.
                longest = self._patience.longest
                wait = _FIRST if time.monotonic() - begun > longest else min(longest, 2 * wait)
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))
        finally:
            working.cancel()

    async def _session(self) -> None:
        options, credentials = of_node(self._patience), node_credentials(self._folder)
        async with grpc.aio.secure_channel(self._address, credentials, options) as channel:
            call = channel.stream_stream(CONNECT)()
            await call.write(pack("hello", version=VERSION))
            self._channel, self._call = channel, call
            try:
                while (data := await call.read()) is not grpc.aio.EOF:
                    self._hear(unpack(data))
            finally:
                self._channel = self._call = None
                self._due.clear()  # it is asked again

    def _hear(self, frame: Frame) -> None:
        run = frame.text("run", 64)
        if frame.kind == "ask":
            name = run, frame.text("request", 256)
            if len(self._due) >= _WAITING:
                raise BadFrame("it asks for too much at a time")
            self._due[name] = Ask.of(frame, Key("", *name), time.monotonic())
            self._wake.set()
        elif frame.kind in ("cancel", "over"):
            over = frame.kind == "over"
            request = "" if over else frame.text("request", 256)
            gone = [name for name in self._due if name[0] == run and (over or name[1] == request)]
            for name in gone:
                del self._due[name]
            if self._at and self._at[0][0] == run and (over or self._at[0][1] == request):
                self._at[1].set()
            if over:
                _clear(self._replies / _hashed(run), keep=0)

    # --- Work ----------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Answers what is due, one after the other."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due:
                name = next(iter(self._due))
                cancelled = threading.Event()
                self._at = name, cancelled
                try:
                    await self._handle(ask := self._due.pop(name), cancelled)
                except (grpc.aio.AioRpcError, OSError, ValueError) as error:
                    await self._again(name, ask, error)
                except asyncio.CancelledError:  # by a channel that was closed, or for good
                    if (task := asyncio.current_task()) is None or task.cancelling():
                        raise
                finally:
                    self._at = None

    async def _again(self, name: tuple[str, str], ask: Ask, error: Exception) -> None:
        """Takes up once more what has gone wrong on the way, unless it will be asked again."""
        rpc = error if isinstance(error, grpc.aio.AioRpcError) else None
        _log.warning("%s of run %s: %s", name[1], name[0], rpc.details() if rpc else error)
        awaited = rpc is None or rpc.code() != grpc.StatusCode.NOT_FOUND
        await asyncio.sleep(_PAUSE)
        if awaited and self._channel is not None and ask.until > time.monotonic():
            self._due.setdefault(name, ask)

    async def _handle(self, ask: Ask, cancelled: threading.Event) -> None:
        place = self._replies / _hashed(ask.key.run) / _hashed(ask.key.request)
        reply = _kept(place, ask.mark)
        if reply is None:
            if ask.until < time.monotonic():
                return
            if ask.size > self._most:
                why = f"it takes at most {self._most} bytes, got {ask.size}"
                await self._say("reply", ask, settings={}, error="refused", reason=why)
                return
            content = await self._content(ask)
            await self._say("began", ask)
            task = Task(ask.key.run, ask.kind, ask.settings, content, cancelled)
            reply = await asyncio.to_thread(self._answered, task, ask, place)
            del content, task
            _clear(self._asked, keep=1)
        if not cancelled.is_set():
            await self._send(ask, reply, place)

    def _answered(self, task: Task, ask: Ask, place: Path) -> Frame:
        """Has a task answered, and keeps the reply."""
        found, error, reason = Answer({}), "", ""
        try:
            found = self._answer(task)
        except Refused as refusal:
            error, reason = "refused", str(refusal)
        except Exception as fault:  # told to the asker, whoever's fault it is
            error, reason = "failed", f"{type(fault).__name__}: {fault}"
        if task.cancelled.is_set():
            return Frame("reply", {}, memoryview(b""))
        blob = Blob.write(place, found.parts)
        said = {"settings": dict(found.settings), "error": error, "reason": reason[:1000]}
        frame = pack("reply", mark=ask.mark, digest=blob.digest, size=blob.size, **said)
        write_file(place / _REPLY, frame)
        _clear(place.parent, keep=_KEPT)
        _clear(self._replies, keep=_RUNS)
        return unpack(frame)

    async def _content(self, ask: Ask) -> memoryview:
        """Returns an ask's content; what is there of it already is not fetched again."""
        if len(ask.body) == ask.size:
            return memoryview(ask.body)
        path = self._asked / ask.digest
        if path.is_file():
            return Blob(ask.digest, ask.size, path).view()
        part = await asyncio.to_thread(Part, path, ask.size, ask.digest)
        try:
            request = pack("fetch", offset=part.held, **_named(ask))
            call = self._there().unary_stream(FETCH)(request)
            while (chunk := await self._within(call.read())) is not grpc.aio.EOF:
                part.add(chunk)
            return part.finish().view()
        finally:
            part.close()

    async def _send(self, ask: Ask, reply: Frame, folder: Path) -> None:
        said = {
            name: reply.fields[name] for name in ("settings", "error", "reason", "digest", "size")
        }
        blob = Blob(reply.digest(), reply.number("size", 2**48), folder / said["digest"])
        if blob.size <= INLINE:
            await self._say("reply", ask, b"".join(blob.chunks(0, INLINE)), **said)
            return
        call = self._there().stream_stream(DELIVER)()
        await call.write(pack("reply", **_named(ask), **said))
        start = unpack(await self._within(call.read())).number("offset", blob.size)
        for chunk in blob.chunks(start, CHUNK):
            await self._within(call.write(chunk))
        await call.done_writing()
        await self._within(call.read())

    async def _say(self, kind: str, ask: Ask, body: bytes = b"", **fields: Any) -> None:
        self._there()
        async with self._saying:
            await self._within(self._call.write(pack(kind, body, **_named(ask), **fields)))

    def _there(self) -> grpc.aio.Channel:
        if self._channel is None:
            raise ConnectionError("the server is away")
        return self._channel

    async def _within(self, awaited: Any) -> Any:
        try:
            return await asyncio.wait_for(awaited, self._patience.stall)
        except TimeoutError as error:
            raise ConnectionError("the connection stands still") from error


def _named(ask: Ask) -> dict[str, str]:
    return {"run": ask.key.run, "request": ask.key.request, "mark": ask.mark}


def _hashed(text: str) -> str:
    """Returns a name for files, of a name that a server has made up."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _kept(place: Path, mark: str) -> Frame | None:
    """Returns a reply that is kept, if it is one to the same question."""
    with contextlib.suppress(OSError, BadFrame):
        reply = unpack((place / _REPLY).read_bytes())
        blob = place / reply.digest()
        if reply.text("mark") == mark and blob.stat().st_size == reply.number("size", 2**48):
            return reply
    return None


def _clear(folder: Path, keep: int) -> None:
    """Removes all but the newest entries of a folder."""
    there = sorted(folder.glob("*"), key=lambda path: path.stat().st_mtime_ns)
    for old in there[: len(there) - keep]:
        shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
