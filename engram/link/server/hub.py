"""The server of a link: nodes connect to it from anywhere, and runs on its own machine.

It passes asks and replies on. All that it must not lose is the roll of members, in files: asks and
replies come again from the ends (``asks.py``), and transfers go on from the files they have filled.
It loads no model and no PyTorch; of content it holds a chunk for each transfer.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any, Final

import grpc

from engram.link.asks import Ask, Desk, Key
from engram.link.blobs import Blob, Part
from engram.link.frames import CHUNK, BadFrame, Frame, pack, unpack
from tests.link.wire.identity import NAME, Members, fingerprint, server_credentials
from engram.link.server.session import Session
from engram.link.transport import (
    CONNECT,
    DELIVER,
    FETCH,
    PATIENCE,
    RUN,
    VERSION,
    Patience,
    handlers,
    of_server,
)

_log = getLogger("engram.link")
_Code = grpc.StatusCode
_Context = Any  # grpc.aio.ServicerContext, which has no types
_TRANSFERS: Final = 2  # of a node at a time
_REASON: Final = 1000  # most letters of an error's reason


class Server:
    """The server.

    Args:
        folder: Its folder: certificates, the roll, and, below ``runs``, what is on its way.
        patience: How long it waits for what.
    """

    def __init__(self, folder: Path, patience: Patience = PATIENCE) -> None:
        self._folder, self._patience = folder, patience
        self._members, self._desk = Members(folder), Desk()
        self._roll = self._members.names()
        self._nodes: dict[str, Session] = {}
        self._runs: dict[str, Session] = {}
        self._left: dict[str, float] = {}  # when the asks of runs that are away are dropped
        self._transfers = Counter[str]()
        self._spooled: dict[Key, Path] = {}  # content of replies that their runs have not taken
        self._delivering: dict[Path, asyncio.Task[Any]] = {}

    async def serve(self, address: str) -> None:
        """Listens at HOST:PORT until it is cancelled.

        Raises:
            RuntimeError: The port is taken.
        """
        nodes, runs = (grpc.aio.server(options=of_server(self._patience)) for _ in range(2))
        calls = {CONNECT: self._connect, FETCH: self._fetch, DELIVER: self._deliver}
        nodes.add_generic_rpc_handlers((handlers(calls),))
        runs.add_generic_rpc_handlers((handlers({RUN: self._run}),))
        self._folder.chmod(0o700)  # the socket in it is this user's and root's alone
        nodes.add_secure_port(address, server_credentials(self._folder))
        (socket := self._folder / "run.sock").unlink(missing_ok=True)
        runs.add_insecure_port(f"unix:{socket}")
        self._sweep()
        await asyncio.gather(nodes.start(), runs.start())
        _log.info("listening at %s", address)
        try:
            while True:
                await asyncio.sleep(min(1.0, self._patience.grace))
                self._look()
        finally:
            await asyncio.gather(nodes.stop(0), runs.stop(0))

    def _sweep(self) -> None:
        """Gives runs that were there before time to come back."""
        (runs := self._folder / "runs").mkdir(mode=0o700, exist_ok=True)
        self._left = dict.fromkeys(os.listdir(runs), time.monotonic() + self._patience.grace)

    def _look(self) -> None:
        """Drops whoever was removed, and whatever is too late."""
        now, before = time.monotonic(), self._roll
        self._roll = self._members.names()
        for name in set(before.values()) - set(self._roll.values()):
            if name in self._nodes:
                self._nodes[name].end(_Code.PERMISSION_DENIED, f"{name} was removed")
            self._refuse(self._desk.open(name), "gone", "it is no member any more")
        for key in self._desk.overdue(now):
            self._cancel([key])
            self._refuse([ask for ask in self._desk.open(key.node) if ask.key == key], "late", "")
        for run in [run for run, end in self._left.items() if end < now]:
            self._drop(run)
        if before != self._roll:
            self._tell()

    # --- Nodes ---------------------------------------------------------------------------------

    async def _member(self, context: _Context) -> str:
        """Returns who calls: the member whose key TLS has proven."""
        key = fingerprint(context.auth_context()["x509_pem_cert"][0])
        if key not in self._roll:  # unless it has just come
            self._look()
        if (name := self._roll.get(key)) is None:
            await context.abort(_Code.PERMISSION_DENIED, "this key is no member's (any more)")
        assert name is not None
        return name

    async def _connect(self, _: object, context: _Context) -> None:
        name, session = await self._member(context), Session()
        if (await self._first(context)).fields.get("version") != VERSION:
            await context.abort(_Code.FAILED_PRECONDITION, f"this server speaks version {VERSION}")
        if name in self._nodes:  # which may be dead, without a word
            self._nodes[name].end(_Code.ALREADY_EXISTS, f"another node has connected as {name}")
        self._nodes[name] = session
        for ask in self._desk.open(name):
            session.send(partial(_packed, ask))
        self._tell()
        try:
            await session.pump(context, partial(self._hear, name, session), self._patience.stall)
        finally:
            if self._nodes.get(name) is session:
                del self._nodes[name]
                self._tell()

    def _hear(self, name: str, session: Session, frame: Frame) -> None:
        """Hears a word of a node."""
        key = Key(name, frame.text("run", 64), frame.text("request", 256))
        ask = self._desk.awaited(key, frame.text("mark", 64))
        if ask is None:  # it has crossed a cancellation, or was sent twice
            session.strikes += 1
        elif frame.kind == "began":
            session.strikes += bool(session.at)
            session.at = f"{ask.kind} of run {key.run}"
        elif frame.kind == "reply":
            if len(frame.body) > ask.most:
                self._refuse([ask], "unusable", f"it must have at most {ask.most} bytes")
            else:
                self._replied(ask, _honest(frame), size=len(frame.body))
        else:
            raise BadFrame(f"a node must not say {frame.kind!r}")

    def _replied(self, ask: Ask, frame: Frame, **more: Any) -> None:
        """Notes a reply, and passes it on if its run is there."""
        key, session = ask.key, self._nodes.get(ask.key.node)
        said = {
            "settings": frame.table("settings"),
            "error": frame.text("error", 64),
            "reason": frame.text("reason")[:_REASON],
        }
        reply = pack("reply", frame.body, node=key.node, request=key.request, **said, **more)
        if session is not None:
            session.at, session.strikes = "", 0
        self._desk.reply(key, reply)
        if (run := self._runs.get(key.run)) is not None:
            run.send(lambda: reply)

    def _refuse(self, asks: list[Ask], error: str, reason: str) -> None:
        """Answers some asks in place of their nodes."""
        frame = Frame("reply", {"settings": {}, "error": error, "reason": reason}, memoryview(b""))
        for ask in asks:
            self._replied(ask, frame, size=0)

    async def _fetch(self, asked: bytes, context: _Context) -> AsyncIterator[bytes]:
        name = await self._member(context)
        ask, frame = await self._of(unpack(asked), name, context)
        blob = Blob(ask.digest, ask.size, self._run_folder(ask.key.run) / "blobs" / ask.digest)
        with self._counted(name):
            for chunk in blob.chunks(frame.number("offset", ask.size), CHUNK):
                yield chunk

    async def _deliver(self, _: object, context: _Context) -> None:
        name, stall = await self._member(context), self._patience.stall
        ask, frame = await self._of(await self._first(context), name, context)
        size, digest = frame.number("size", 2**48), _honest(frame).digest()
        if size > ask.most:
            self._refuse([ask], "unusable", f"it must have at most {ask.most} bytes, got {size}")
            await context.abort(_Code.OUT_OF_RANGE, "the reply is too large")
        path = self._run_folder(ask.key.run) / "spool" / f"{name}.{digest}"
        with self._counted(name):
            async with self._alone(path):
                part = await asyncio.to_thread(Part, path, size, digest)  # it may have much to hash
                try:
                    await context.write(pack("from", offset=part.held))
                    while part.held < size:
                        chunk = await asyncio.wait_for(context.read(), stall)
                        if chunk is grpc.aio.EOF:
                            raise ValueError("the reply ends too early")
                        part.add(chunk)
                    blob = part.finish()
                except (ValueError, OSError) as error:
                    await context.abort(_Code.DATA_LOSS, str(error))
                finally:
                    part.close()
        if self._desk.awaited(ask.key, ask.mark):
            self._spooled[ask.key] = blob.path
            self._replied(ask, frame._replace(body=memoryview(b"")), size=size, file=str(blob.path))
        await context.write(pack("done"))

    async def _first(self, context: _Context) -> Frame:
        """Returns the first word of a call."""
        try:
            return unpack(await asyncio.wait_for(context.read(), self._patience.stall))
        except (BadFrame, TimeoutError, TypeError) as error:  # the last: it has said nothing
            await context.abort(_Code.INVALID_ARGUMENT, str(error))
            raise

    async def _of(self, frame: Frame, name: str, context: _Context) -> tuple[Ask, Frame]:
        """Returns the ask that a transfer belongs to."""
        key = Key(name, frame.text("run", 64), frame.text("request", 256))
        ask = self._desk.awaited(key, frame.text("mark", 64))
        if ask is None:
            await context.abort(_Code.NOT_FOUND, "it is not awaited (yet, or any more)")
        if self._transfers[name] >= _TRANSFERS:
            await context.abort(_Code.RESOURCE_EXHAUSTED, f"{_TRANSFERS} transfers at a time")
        assert ask is not None
        return ask, frame

    @contextlib.contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        """Counts a node's transfers."""
        self._transfers[name] += 1
        try:
            yield
        finally:
            self._transfers[name] -= 1

    @contextlib.asynccontextmanager
    async def _alone(self, path: Path) -> AsyncIterator[None]:
        """Ends a former call that fills the same file: its node may have dialed again since."""
        own = asyncio.current_task()
        assert own is not None
        if (former := self._delivering.get(path)) is not None:
            former.cancel()
            await asyncio.wait([former])
        self._delivering[path] = own
        try:
            yield
        finally:
            if self._delivering.get(path) is own:
                del self._delivering[path]

    # --- Runs ----------------------------------------------------------------------------------

    async def _run(self, _: object, context: _Context) -> None:
        run = (await self._first(context)).text("run", 64)
        if not NAME.fullmatch(run):
            await context.abort(_Code.INVALID_ARGUMENT, f"a run must be called like {NAME.pattern}")
        if run in self._runs:
            self._runs[run].end(_Code.ALREADY_EXISTS, f"another process goes on with run {run}")
        session = self._runs[run] = Session()
        self._left.pop(run, None)
        session.send(self._members_frame)
        try:
            await session.pump(context, partial(self._order, run, session), self._patience.stall)
        finally:
            if self._runs.get(run) is session:
                del self._runs[run]
                self._left[run] = time.monotonic() + self._patience.grace

    def _order(self, run: str, session: Session, frame: Frame) -> None:
        """Hears a word of a run, which is a program of this user's."""
        if self._runs.get(run) is not session:  # another process goes on with it
            return
        if frame.kind == "over":
            self._drop(run)
            session.end(_Code.OK, "")
            return
        node, request = frame.text("node", 64), frame.text("request", 256)
        key = Key(node, run, request)
        if frame.kind == "ask":
            ask = Ask.of(frame, key, time.monotonic())
            if (reply := self._desk.ask(ask)) is not None:
                session.send(lambda: reply)
            elif node not in self._roll.values():
                self._refuse([ask], "gone", "it is no member (any more)")
            elif node in self._nodes:
                self._nodes[node].send(partial(_packed, ask))
            return
        at_work = self._desk.forget([key])
        if (spooled := self._spooled.pop(key, None)) is not None:  # the run has it open
            spooled.unlink(missing_ok=True)
        if frame.kind == "cancel":
            self._cancel(at_work)

    def _cancel(self, keys: list[Key]) -> None:
        for key in keys:
            if key.node in self._nodes:
                self._nodes[key.node].send(
                    partial(pack, "cancel", run=key.run, request=key.request)
                )

    def _drop(self, run: str) -> None:
        """Forgets a run that is over, and has nodes forget what they keep for it."""
        self._left.pop(run, None)
        keys = self._desk.of_run(run)
        self._desk.forget(keys)
        for key in keys:
            self._spooled.pop(key, None)
        for session in self._nodes.values():
            session.send(partial(pack, "over", run=run))
        shutil.rmtree(self._run_folder(run), ignore_errors=True)

    def _run_folder(self, run: str) -> Path:
        return self._folder / "runs" / run

    def _members_frame(self) -> bytes:
        there = self._nodes
        roll = {n: [n in there, there[n].at if n in there else ""] for n in self._roll.values()}
        return pack("members", json.dumps(roll).encode())

    def _tell(self) -> None:
        """Tells runs who is there."""
        for session in self._runs.values():
            session.send(self._members_frame)


def _honest(frame: Frame) -> Frame:
    """Returns a node's reply; raises ``BadFrame`` if its error is one that only a server gives."""
    if frame.text("error", 64) not in ("", "refused", "failed"):
        raise BadFrame("a node must have refused, or failed, or neither")
    return frame


def _packed(ask: Ask) -> bytes:
    return ask.pack(time.monotonic())


async def main(folder: Path, address: str) -> None:
    """Serves until the process is told to end."""
    serving = asyncio.create_task(Server(folder).serve(address))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
