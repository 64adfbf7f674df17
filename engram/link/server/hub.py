"""The server of a link: nodes connect to it from anywhere, and runs on its own machine.

All that it must not lose is the roll of members, in files: asks and replies come again from the
ends (``asks.py``), and transfers go on from the files they have filled.
"""

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Final

import grpc

from engram.link.frames import BadFrame, Frame, pack, unpack
from engram.link.server.exchange import COUNTED, Exchange
from engram.link.server.live_files import Roll
from engram.link.server.session import Context, Ending, Session, proven_key
from engram.link.server.transfers import Transfers, first_frame
from engram.link.transport import (
    CONNECT,
    DELIVER,
    FETCH,
    PATIENCE,
    RUN,
    SOCKET,
    STATUS,
    VERSION,
    Patience,
    handlers,
    server_options,
    socket_target,
    version_fault,
)
from engram.settings.errors import Refused
from engram.settings.files import locked
from engram.wire.counters import Counters

_log = getLogger("flwr.engram")
_Code = grpc.StatusCode
_RUN: Final = re.compile("[0-9]{1,40}")
_TICK: Final = 1.0  # seconds between looks at files and clocks
_STOP: Final = 1.0  # seconds that open calls may take to end
_WHY: Final = {
    "removed": "{} was removed from the federation by its operator",
    "left": "{} has left the federation",
}


class Server:
    """Server of a federation.

    Args:
        folder: Its folder, with the socket for runs, and below ``runs`` what is on its way.
        roll: Who may connect.
        credentials: What it listens with; calls are of those whose key TLS has proven.
        announcements: What nodes are told when they connect, and whenever it changes.
        most_reply: Upper bound on the bytes of a reply's content.
        patience: How long it waits for what.
        counters: Counters of ``COUNTED``, if others read them.
    """

    def __init__(
        self,
        folder: Path,
        roll: Roll,
        credentials: grpc.ServerCredentials,
        announcements: Callable[[], Mapping[str, str]] = dict,
        *,
        most_reply: int,
        patience: Patience = PATIENCE,
        counters: Counters | None = None,
    ) -> None:
        self._folder, self._roll, self._credentials = folder, roll, credentials
        self._announcements, self._patience = announcements, patience
        self._counters = counters or Counters(COUNTED)
        self._exchange = Exchange(folder, most_reply, self._counters)
        self._transfers = Transfers(self._exchange, patience, self._counters)
        self._nodes, self._runs = self._exchange.nodes, self._exchange.runs
        self._names, self._announced = roll.names(), dict(announcements())
        self._keys: dict[str, str] = {}  # fingerprints, of the nodes that are connected
        self._since: dict[str, float] = {}  # when nodes went away
        self._left: dict[str, float] = {}  # when the asks of runs that are away are dropped
        self._back = time.monotonic() + patience.grace  # by then runs are back, or are over; or 0

    async def serve(self, address: str) -> None:
        """Listens at HOST:PORT until it is cancelled.

        Raises:
            Refused: The address cannot be used, or another server has the folder.
        """
        with contextlib.ExitStack() as stack:
            nodes, runs = (grpc.aio.server(options=server_options(self._patience)) for _ in "12")
            nodes.add_generic_rpc_handlers((self._node_calls(),))
            runs.add_generic_rpc_handlers((handlers({RUN: self._run, STATUS: self._status}),))
            try:
                stack.enter_context(locked(self._folder / "link.lock"))
                nodes.add_secure_port(address, self._credentials)
                self._folder.chmod(0o700)  # the socket in it is this user's and root's alone
                (self._folder / SOCKET).unlink(missing_ok=True)
                target = stack.enter_context(socket_target(self._folder))
                self._sweep()
            except BlockingIOError as error:
                raise Refused(f"another server runs in {self._folder}") from error
            except RuntimeError as error:
                raise Refused(f"{address} cannot be listened at: is it taken?") from error
            except OSError as error:
                raise Refused(f"a server cannot use {self._folder}: {error.strerror}") from error
            try:
                runs.add_insecure_port(target)
            except RuntimeError as error:
                no_socket = "is it on a file system that has sockets?"
                raise Refused(f"no socket can be made in {self._folder}: {no_socket}") from error
            await asyncio.gather(nodes.start(), runs.start())
            _log.info("listening at %s", address)
            try:
                while True:
                    await asyncio.sleep(min(_TICK, self._patience.grace))
                    self._look()
            finally:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.gather(nodes.stop(0), runs.stop(0)), _STOP)

    def _sweep(self) -> None:
        """Gives runs that were there before time to come back."""
        (runs := self._folder / "runs").mkdir(mode=0o700, exist_ok=True)
        self._left = dict.fromkeys(os.listdir(runs), self._back)

    def _look(self) -> None:
        """Ends former members and overdue asks; tells nodes the news."""
        now, before, held = time.monotonic(), self._names, self._roll.holders()
        self._names = frozenset(held.values())
        for name, key in [*self._keys.items()]:
            if held.get(key) != name:
                (session := self._nodes[name]).end(*self._refusal(key, name))
                self._gone(name, session)  # now, even if it does not read this
                self._transfers.end(name)
        for name in before - self._names:
            self._exchange.end_member(name)
        self._exchange.end_overdue()
        for run in [run for run, end in self._left.items() if end < now]:
            self._drop(run)
        if 0 < self._back < now:
            self._back = 0
            self._exchange.settle(self._nodes.values(), self._known_runs())
        if before != self._names:
            self._tell()
        if (said := dict(self._announcements())) != self._announced:
            self._announced = said
            for session in self._nodes.values():
                session.send(self._welcome)

    def _refusal(self, key: str, name: str = "this key's node") -> Ending:
        """Returns the status and the words of a key's refusal."""
        if why := _WHY.get(self._roll.ended(key)):
            return _Code.PERMISSION_DENIED, why.format(name)
        return _Code.UNAUTHENTICATED, f"{name} is no member of this federation with this key (yet)"

    # --- Nodes ---------------------------------------------------------------------------------

    def _node_calls(self) -> grpc.GenericRpcHandler:
        async def deliver(_: object, context: Context) -> None:
            name = await self._member(context)
            first = await first_frame(context, self._patience.stall)
            await self._transfers.deliver(name, first, context)

        async def fetch(asked: bytes, context: Context) -> None:
            name = await self._member(context)
            try:
                first = unpack(asked)
            except BadFrame as error:
                await context.abort(_Code.INVALID_ARGUMENT, str(error))
            await self._transfers.fetch(name, first, context)

        return handlers({CONNECT: self._connect, FETCH: fetch, DELIVER: deliver})

    async def _member(self, context: Context) -> str:
        """Returns the member that calls, by the key that TLS has proven."""
        key = proven_key(context)
        if (name := self._roll.name(key)) is None:
            await context.abort(*self._refusal(key))
        assert name is not None
        return name

    async def _connect(self, _: object, context: Context) -> None:
        name, session = await self._member(context), Session()
        first = await first_frame(context, self._patience.stall)
        if fault := version_fault(first.fields.get("version"), "the node"):
            await context.abort(_Code.FAILED_PRECONDITION, fault)
        if (errand := first.fields.get("errand")) is not None:
            await self._errand(errand, name, context)
            return
        if name in self._nodes:  # which may be dead, without a word
            self._nodes[name].end(_Code.ALREADY_EXISTS, f"another node has connected as {name}")
        self._transfers.end(name)
        self._nodes[name], self._keys[name] = session, proven_key(context)
        self._counters.add("connections")
        session.send(self._welcome)
        self._exchange.greet(name, session, None if self._back else self._known_runs())
        self._tell()
        hear, over = partial(self._hear, name, session), partial(self._gone, name, session)
        await session.run(context, hear, self._patience.stall, over)

    def _gone(self, name: str, session: Session) -> None:
        """Notes that a session of a node is over."""
        if self._nodes.get(name) is session:
            del self._nodes[name], self._keys[name]
            self._since[name] = time.time()
            self._tell()

    async def _errand(self, errand: object, name: str, context: Context) -> None:
        """Answers a client that has come to look, or to leave, beside the session of its node."""
        if errand == "leave":
            try:
                self._roll.leave(name)
            except Refused as error:
                await context.abort(_Code.INTERNAL, f"the server cannot note it: {error}")
            _log.info("%s has left the federation", name)
        await context.write(pack("welcome", time=time.time(), connected=name in self._nodes))

    def _hear(self, name: str, session: Session, frame: Frame) -> None:
        """Hears a word of a node."""
        if self._nodes.get(name) is session:  # else a newer one has replaced it
            self._exchange.hear(name, session, frame)

    def _welcome(self) -> bytes:
        return pack("welcome", version=VERSION, time=time.time(), announcements=self._announced)

    # --- Runs ----------------------------------------------------------------------------------

    async def _run(self, _: object, context: Context) -> None:
        first = await first_frame(context, self._patience.stall)
        run = str(first.fields.get("run"))
        if fault := version_fault(first.fields.get("version"), "this run"):
            await context.abort(_Code.FAILED_PRECONDITION, fault)
        if not _RUN.fullmatch(run):
            await context.abort(_Code.INVALID_ARGUMENT, "a run must be called by decimal digits")
        if run in self._runs:
            self._runs[run].end(_Code.ALREADY_EXISTS, f"another process goes on with run {run}")
        session = self._runs[run] = Session()
        self._left.pop(run, None)
        session.send(self._members)
        order, over = partial(self._order, run, session), partial(self._away, run, session)
        await session.run(context, order, self._patience.stall, over)

    def _away(self, run: str, session: Session) -> None:
        """Notes that a session of a run is over."""
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
        else:
            self._exchange.order(run, frame, self._names)

    def _known_runs(self) -> list[str]:
        """Returns the runs that are there, or may come back."""
        return [*self._runs, *self._left]

    def _drop(self, run: str) -> None:
        self._left.pop(run, None)
        self._exchange.drop(run)

    def _states(self) -> dict[str, tuple[bool, float, str]]:
        """Returns the members' states, as ``questions.Member`` has them."""
        return {
            name: (True, each.since, each.at)
            if (each := self._nodes.get(name)) is not None
            else (False, self._since.get(name, 0.0), "")
            for name in sorted(self._names)
        }

    def _members(self) -> bytes:
        return pack("members", json.dumps(self._states()).encode())

    def _tell(self) -> None:
        """Tells runs the members' states."""
        for session in self._runs.values():
            session.send_once(self._members)

    async def _status(self, _: bytes, context: Context) -> bytes:  # noqa: ARG002 - gRPC's
        counters = self._counters.counts()
        state = {"members": self._states(), "runs": sorted(self._runs), "counters": counters}
        return json.dumps(state).encode()
