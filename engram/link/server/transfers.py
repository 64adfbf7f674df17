"""Transfers of large contents between a server and its nodes, each from an offset on."""

import asyncio
import contextlib
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

import grpc

from engram.link.asks import Ask
from engram.link.blobs import Blob, Part
from engram.link.frames import CHUNK, LARGEST, BadFrame, Frame, pack, unpack
from engram.link.server.exchange import Exchange, check_reply
from engram.link.server.session import Context
from engram.link.transport import Patience
from engram.wire.counters import Counters

_Code = grpc.StatusCode
_MOST: Final = 2  # of a node at a time
_SPARE: Final = 2**26  # bytes of the disk that stay free
_Call = Callable[..., Awaitable[None]]


def _ended(call: _Call) -> _Call:
    """Ends a call with a status where its node breaks the rules, or does not read."""

    @wraps(call)
    async def handle(self: "Transfers", name: str, first: Frame, context: Context) -> None:
        try:
            await call(self, name, first, context)
        except BadFrame as error:
            await context.abort(_Code.INVALID_ARGUMENT, str(error))
        except TimeoutError:
            await context.abort(_Code.DEADLINE_EXCEEDED, "the transfer stands still")
        except (asyncio.InvalidStateError, grpc.aio.InternalError):
            return  # the node has ended the call

    return handle


class Transfers:
    """Contents of asks on their way to nodes, and of replies on their way from them."""

    def __init__(self, exchange: Exchange, patience: Patience, counters: Counters) -> None:
        self._exchange, self._stall, self._counters = exchange, patience.stall, counters
        self._calls = defaultdict[str, set[asyncio.Task[Any]]](set)  # by node
        self._filling: dict[Path, asyncio.Task[Any]] = {}
        self._promised: dict[Path, int] = {}  # bytes that are still to come

    def end(self, name: str) -> None:
        """Ends the transfers of a node that has dialed anew."""
        for call in self._calls.pop(name, ()):
            call.cancel()

    @_ended
    async def fetch(self, name: str, first: Frame, context: Context) -> None:
        """Sends a content of an ask."""
        ask, digest = await self._ask(name, first, context), first.digest()
        size = next((each.size for each in ask.contents if each.digest == digest), None)
        if size is None:
            raise BadFrame("an ask must have the content that is fetched for it")
        blob = Blob(digest, size, self._exchange.run_folder(ask.key.run) / "blobs" / digest)
        with self._counted(name):
            try:
                for chunk in blob.chunks(first.number("offset", size), CHUNK):
                    async with asyncio.timeout(self._stall):  # wait_for may swallow an `end`
                        await context.write(chunk)
                    self._counters.add("content_bytes", len(chunk))
            except FileNotFoundError:  # its run asks anew, or is over
                await context.abort(_Code.UNAVAILABLE, "the content is not here (yet)")

    @_ended
    async def deliver(self, name: str, first: Frame, context: Context) -> None:
        """Takes the content of a reply."""
        ask = await self._ask(name, first, context)
        size, digest = first.number("size", LARGEST), first.digest()
        check_reply(first)
        if self._exchange.refuse_large(ask, size):
            await context.abort(_Code.OUT_OF_RANGE, "the reply is too large")
        folder = self._exchange.reply_folder(ask.key)
        with self._counted(name):
            async with self._alone(folder):
                for other in folder.glob("*"):
                    if not other.name.startswith(digest):
                        other.unlink()
                blob = await self._fill(folder / digest, size, digest, ask, context)
        if self._exchange.is_awaited(ask):  # it has not been cancelled meanwhile
            self._exchange.reply(ask, first._replace(body=memoryview(b"")), size, blob.path)
        await context.write(pack("done"))

    async def _fill(self, path: Path, size: int, digest: str, ask: Ask, context: Context) -> Blob:
        """Fills a file; a disk that is full has the node try again."""
        try:
            part = await asyncio.to_thread(Part, path, size, digest)  # it may have much to hash
            try:
                self._promised[path] = size - part.held
                self._check_disk(path.parent)
                await context.write(pack("from", offset=part.held))
                while part.held < size:
                    async with asyncio.timeout(self._stall):
                        chunk = await context.read()
                    if chunk is grpc.aio.EOF:
                        raise BadFrame("the reply ends too early")
                    if not self._exchange.is_awaited(ask):
                        await context.abort(_Code.NOT_FOUND, "it is not awaited any more")
                    part.add(chunk)
                    self._promised[path] = size - part.held
                return part.finish()
            finally:
                self._promised.pop(path, None)
                part.close()
        except BadFrame:
            raise
        except ValueError as error:
            await context.abort(_Code.DATA_LOSS, str(error))
            raise
        except OSError as error:
            reason = f"the server's disk cannot take it: {error.strerror or error}"
            self._exchange.delay(ask, reason)
            await context.abort(_Code.RESOURCE_EXHAUSTED, reason)
            raise

    def _check_disk(self, folder: Path) -> None:
        """Raises ``OSError`` if the disk has no room for all that is on its way."""
        free, needed = max(0, shutil.disk_usage(folder).free - _SPARE), sum(self._promised.values())
        if needed > free:
            raise OSError(f"{needed >> 20} MiB are on their way, and {free >> 20} MiB free")

    async def _ask(self, name: str, frame: Frame, context: Context) -> Ask:
        """Returns the ask that a transfer belongs to."""
        ask = self._exchange.awaited(name, frame)
        if ask is None:
            await context.abort(_Code.NOT_FOUND, "it is not awaited (yet, or any more)")
        if len(self._calls[name]) >= _MOST:
            await context.abort(_Code.RESOURCE_EXHAUSTED, f"a node may have {_MOST} transfers")
        assert ask is not None
        return ask

    @contextlib.contextmanager
    def _counted(self, name: str) -> Any:
        """Counts a node's transfers."""
        call = asyncio.current_task()
        assert call is not None
        self._calls[name].add(call)
        try:
            yield
        finally:
            self._calls[name].discard(call)

    @contextlib.asynccontextmanager
    async def _alone(self, path: Path) -> AsyncIterator[None]:
        """Ends a former call that fills the same file: its node has tried again since."""
        call = asyncio.current_task()
        assert call is not None
        if (former := self._filling.get(path)) is not None:
            former.cancel()
            await asyncio.wait([former])
        self._filling[path] = call
        try:
            yield
        finally:
            if self._filling.get(path) is call:
                del self._filling[path]


async def first_frame(context: Context, stall: float) -> Frame:
    """Returns the first word of a call."""
    try:
        return unpack(await asyncio.wait_for(context.read(), stall))
    except (BadFrame, TimeoutError, TypeError) as error:  # the last: it has said nothing
        await context.abort(_Code.INVALID_ARGUMENT, str(error))
        raise
