"""A run's end of the link: the engine whose clients are nodes of other machines."""

import contextlib
import hashlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from engram.link import content
from engram.link.blobs import Blob
from engram.link.questions import Member, Question, Reply, Tensors
from engram.link.frames import CHUNK, HEADER, Frame, pack, unpack
from engram.link.transport import INLINE, RUN

_log = getLogger("engram.link")
_Name = tuple[str, str]  # a node and a request


class _Content(NamedTuple):
    """Tensors as they travel: inline, or in a file of the run."""

    digest: str
    size: int
    body: bytes


class Link:
    """An engine over a server's socket. The server may be away; what has no reply is asked again.

    Args:
        folder: The server's folder.
        run: The run's name. A run that is resumed has the same one.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._folder, self._run = folder, run
        self._members: Mapping[str, Member] = {}
        self._asked: dict[_Name, Callable[[], bytes]] = {}
        self._inbox: queue.Queue[Frame | Exception] = queue.Queue()
        self._outbox: queue.Queue[bytes | None] = queue.Queue()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._known = threading.Event()
        self._thread = threading.Thread(target=self._stay, daemon=True)
        self._thread.start()

    def members(self) -> Mapping[str, Member]:
        """Returns the members, as the server has told them last."""
        self._known.wait(60)
        return self._members

    def ask(self, questions: Iterable[Question], *, seconds: float) -> None:
        """Asks; equal tensors are written once, and read by the server as often as it needs."""
        until, shared = time.monotonic() + seconds, dict[int, _Content]()
        for each in questions:
            if id(each.tensors) not in shared:
                shared[id(each.tensors)] = self._content(each.tensors)
            make = _maker(each, shared[id(each.tensors)], until)
            with self._lock:
                self._asked[each.node, each.request] = make
                self._outbox.put(make())

    def replies(self, *, seconds: float) -> Iterator[Reply]:
        """Yields replies as they come."""
        end = time.monotonic() + seconds
        while self._asked and (left := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                found = self._inbox.get(timeout=left)
                if isinstance(found, Exception):
                    raise found
                name = found.text("node"), found.text("request")
                with self._lock:
                    awaited = self._asked.pop(name, None)
                if awaited is not None:  # else it has come twice
                    yield self._read(found)
                    self._say("taken", *name)

    def drop(self, nodes: Iterable[str]) -> None:
        """Gives up what is outstanding of some nodes."""
        gone = {*nodes}
        for name in [name for name in self._asked if name[0] in gone]:
            with self._lock:
                self._asked.pop(name, None)
            self._say("cancel", *name)

    def close(self, *, over: bool) -> None:
        """Ends; without ``over``, the server keeps what is outstanding for a while."""
        self._closed.set()
        if over:
            self._outbox.put(pack("over"))
        self._outbox.put(None)
        self._thread.join(10)

    def _say(self, kind: str, node: str, request: str) -> None:
        self._outbox.put(pack(kind, node=node, request=request))

    def _content(self, tensors: Tensors) -> _Content:
        parts = [*content.parts(tensors)]
        if sum(map(len, parts)) <= INLINE:
            body = b"".join(parts)
            return _Content(hashlib.sha256(body).hexdigest(), len(body), body)
        blobs = self._folder / "runs" / self._run / "blobs"
        before = [*blobs.glob("*")]
        blob = Blob.write(blobs, parts)
        for old in before if not self._asked else ():
            if old != blob.path:
                old.unlink(missing_ok=True)
        return _Content(blob.digest, blob.size, b"")

    def _read(self, frame: Frame) -> Reply:
        """Reads a reply, of which only the server's part is trusted."""
        node, request = frame.text("node"), frame.text("request")
        settings, error = frame.table("settings"), frame.text("error")
        reason = frame.text("reason")
        if error:
            return Reply(node, request, settings, {}, error, reason)
        try:
            data = frame.body
            if "file" in frame.fields:
                path = Path(frame.text("file"))
                data = Blob("", frame.number("size", 2**48), path).view()
            return Reply(node, request, settings, content.read(data))
        except ValueError as fault:
            return Reply(node, request, settings, {}, "unusable", str(fault))

    # --- The connection ------------------------------------------------------------------------

    def _stay(self) -> None:
        """Keeps a connection, until the engine is closed."""
        wait, options = 0.1, [("grpc.max_receive_message_length", HEADER + CHUNK + 4)]
        while not self._closed.is_set():
            with grpc.insecure_channel(f"unix:{self._folder / 'run.sock'}", options) as channel:
                try:
                    self._serve(channel)
                    wait = 0.1
                except grpc.RpcError as error:
                    if error.code() != grpc.StatusCode.UNAVAILABLE:
                        self._inbox.put(ConnectionError(error.details()))
                        return
                    _log.warning("the server is away: %s", error.details())
            self._closed.wait(wait)
            wait = min(2.0, 2 * wait)

    def _serve(self, channel: grpc.Channel) -> None:
        with self._lock:  # all that is outstanding, in place of what the last connection had left
            outbox: queue.Queue[bytes | None] = queue.Queue()
            self._outbox = outbox
            outbox.put(pack("hello", run=self._run))
            for make in self._asked.values():
                outbox.put(make())
        try:
            for data in channel.stream_stream(RUN)(iter(outbox.get, None)):
                frame = unpack(data)
                if frame.kind == "members":
                    told = json.loads(bytes(frame.body)).items()
                    self._members = {name: Member(*each) for name, each in told}
                    self._known.set()
                else:
                    self._inbox.put(frame)
        finally:
            outbox.put(None)


def _maker(each: Question, found: _Content, until: float) -> Callable[[], bytes]:
    """Returns what makes an ask's frame, whenever it is sent."""

    def make() -> bytes:
        settings: dict[str, Any] = {**each.settings}
        return pack(
            "ask", found.body, node=each.node, request=each.request, ask=each.kind, run="",
            settings=settings, digest=found.digest, size=found.size, most=each.most,
            ms=max(0, int(1000 * (until - time.monotonic()))),
        )  # fmt: skip

    return make
