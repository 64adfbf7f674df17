"""A run's end of the link: it asks nodes by way of the server on this machine."""

import json
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from logging import getLogger
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from engram.link.asks import Listed, pack_ask
from engram.link.blobs import Blob
from engram.link.frames import LARGEST, BadFrame, Frame, pack, unpack
from engram.link.questions import Content, Member, Question, Reply
from engram.link.transport import INLINE, RUN, STATUS, VERSION, socket_options, socket_target
from engram.settings.errors import Refused, RunStopped

_log = getLogger("flwr.engram")
_Name = tuple[str, str]  # a node and a request
_Code = grpc.StatusCode
_FINAL: Final = {_Code.ALREADY_EXISTS, _Code.FAILED_PRECONDITION, _Code.INVALID_ARGUMENT}
_ANSWER: Final = 10.0  # seconds that a server has to answer a query
_LATELY: Final = 4096  # most questions that have ended, of which the server is told again
_KNOWN: Final = 60.0  # seconds that the first list of members is waited for


class Status(NamedTuple):
    """State of a server: its members, the runs that are connected, and its counters."""

    members: dict[str, Member]
    runs: list[str]
    counters: dict[str, float]


class _Asked(NamedTuple):
    """Question without a reply."""

    question: Question
    contents: list[Listed]
    until: float

    def pack(self) -> bytes:
        each = self.question
        inline = zip(each.contents, self.contents, strict=True)
        body = b"".join(part for one, listed in inline if listed.inline for part in one.parts)
        return pack_ask(
            self.contents, body, node=each.node, request=each.request, ask=each.kind, run="",
            settings={**each.settings}, most=each.most,
            ms=max(0, int(1000 * (self.until - time.monotonic()))),
        )  # fmt: skip


class Link:
    """A run's connection to a server that may be away: questions without a reply are asked again.

    Its name ``run`` has decimal digits. A run that is resumed has the same one.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._folder, self._run = folder, run
        self._members: Mapping[str, Member] = {}
        self._asked: dict[_Name, _Asked] = {}
        self._written: set[str] = set()  # hashes of contents that are in files
        self._ended: dict[_Name, bytes] = {}  # last words on questions, which may be lost
        self._inbox: queue.Queue[Frame | None] = queue.Queue()
        self._outbox: queue.Queue[bytes | None] = queue.Queue()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._known, self._fault, self._away = threading.Event(), "", False
        self._anew = False  # whether the server has been heard of since contents were looked for
        self._thread = threading.Thread(target=self._stay, daemon=True)
        self._thread.start()

    def members(self) -> Mapping[str, Member]:
        """Returns the federation's members as the server described them last.

        Raises:
            RunStopped: The server refuses this run.
        """
        self._known.wait(_KNOWN)
        self._check()
        return self._members

    def ask(self, questions: Iterable[Question], *, seconds: float) -> None:
        """Asks; each reply is awaited for so many seconds from now.

        Raises:
            OSError: Large contents could not be written into the server's folder.
            RunStopped: The server refuses this run.
            ValueError: A question's settings are too long, or it has too many contents.
        """
        self._check()
        until, new = time.monotonic() + seconds, list[_Asked]()
        for each in questions:
            new.append(asked := _Asked(each, [*self._listed(each.contents)], until))
            self._put(asked)
        self._tidy(new)

    def replies(self, *, seconds: float) -> Iterator[Reply]:
        """Yields replies to all that was asked, each once, as they come.

        Ends when none is outstanding, or none has come after so many seconds, which may be 0;
        others come in a later call.

        Raises:
            RunStopped: The server refuses this run, or another process goes on with it.
        """
        end = time.monotonic() + seconds
        while self._asked:
            self._check()
            if self._anew:  # the server may have dropped this run, which was away
                self._anew = False
                _ = [[*self._listed(each.question.contents)] for each in self._asked.values()]
            try:
                found = self._inbox.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return
            if found is None:
                continue
            name = found.text("node"), found.text("request")
            with self._lock:
                awaited = self._asked.pop(name, None)
            if awaited is not None:  # else it has come twice
                try:
                    reply = _read(found)
                except FileNotFoundError:  # the server has dropped this run, which was away
                    self._say("taken", *name)
                    self._put(awaited)
                    continue
                self._say("taken", *name)  # the server removes the file, whose bytes stay mapped
                del found, awaited
                yield reply
                del reply

    def drop(self, nodes: Iterable[str]) -> None:
        """Gives up questions to some nodes, so that they stop working on them."""
        gone = {*nodes}
        for name in [name for name in self._asked if name[0] in gone]:
            with self._lock:
                self._asked.pop(name, None)
            self._say("cancel", *name)

    def close(self, *, over: bool) -> None:
        """Ends; without ``over``, the server keeps open questions for a while."""
        self._closed.set()
        if over:
            self._outbox.put(pack("over"))
        self._outbox.put(None)
        self._thread.join(10)

    def _put(self, asked: _Asked) -> None:
        frame = asked.pack()
        with self._lock:
            name = asked.question.node, asked.question.request
            self._asked[name] = asked
            self._ended.pop(name, None)
            self._outbox.put(frame)

    def _say(self, kind: str, node: str, request: str) -> None:
        """Reports the end of a question, and again after a new connection."""
        frame = pack(kind, node=node, request=request)
        with self._lock:
            self._ended[node, request] = frame
            if len(self._ended) > _LATELY:
                del self._ended[next(iter(self._ended))]
            self._outbox.put(frame)

    def _check(self) -> None:
        if self._fault:
            raise RunStopped(self._fault)

    # --- Contents ------------------------------------------------------------------------------

    def _listed(self, contents: Iterable[Content]) -> Iterator[Listed]:
        """Yields the contents as listed; the large ones are written, unless they are there."""
        left = INLINE
        for each in contents:
            if inline := each.size <= left:
                left -= each.size
            elif each.digest not in self._written or not (self._blobs / each.digest).is_file():
                Blob.write(self._blobs, each.parts)
                self._written.add(each.digest)
            yield Listed(each.digest, each.size, inline)

    def _tidy(self, new: Iterable[_Asked]) -> None:
        """Removes the files that nothing outstanding and nothing just asked needs."""
        with self._lock:
            asked = [*self._asked.values(), *new]
        needed = {listed.digest for each in asked for listed in each.contents}
        for path in self._blobs.glob("*") if self._blobs.is_dir() else ():
            if path.name not in needed:
                path.unlink(missing_ok=True)
        self._written &= needed

    @property
    def _blobs(self) -> Path:
        return self._folder / "runs" / self._run / "blobs"

    # --- The connection ------------------------------------------------------------------------

    def _stay(self) -> None:
        """Keeps a connection, until the link is closed or refused."""
        wait = 0.1
        while not self._closed.is_set():
            try:
                with (
                    socket_target(self._folder) as target,
                    grpc.insecure_channel(target, socket_options()) as channel,
                ):
                    self._serve(channel)
                wait = 0.1
            except grpc.RpcError as error:
                if error.code() in _FINAL:
                    self._fail(error.details())
                    return
                if not self._away:
                    _log.warning("the server of %s is away", self._folder)
                self._away = True
            except (BadFrame, OSError) as error:
                self._fail(str(error))
                return
            self._closed.wait(wait)
            wait = min(2.0, 2 * wait)

    def _fail(self, fault: str) -> None:
        self._fault = fault
        self._known.set()
        self._inbox.put(None)

    def _serve(self, channel: grpc.Channel) -> None:
        with self._lock:  # all that is outstanding, in place of what the last connection had left
            outbox: queue.Queue[bytes | None] = queue.Queue()
            self._outbox = outbox
            outbox.put(pack("hello", run=self._run, version=VERSION))
            for sent in (*self._ended.values(), *map(_Asked.pack, self._asked.values())):
                outbox.put(sent)
        try:
            for data in channel.stream_stream(RUN)(iter(outbox.get, None)):
                frame = unpack(data)
                if frame.kind == "members":
                    self._members = _members(json.loads(bytes(frame.body)))
                    self._known.set()
                    self._away, self._anew = False, True
                else:
                    self._inbox.put(frame)
        finally:
            outbox.put(None)


def status(folder: Path, *, patience: float = 0.0) -> Status:
    """Returns the state of the server of a folder.

    ``patience`` is the seconds to wait for a server that has just been started.

    Raises:
        Refused: No server answers.
    """
    end = time.monotonic() + patience
    while True:
        try:
            with (
                socket_target(folder) as target,
                grpc.insecure_channel(target, socket_options()) as channel,
            ):
                found = json.loads(channel.unary_unary(STATUS)(b"", timeout=_ANSWER))
        except (grpc.RpcError, OSError) as error:
            if time.monotonic() > end:
                start = f"start it with `engram superlink {folder}`"
                raise Refused(f"no server answers for {folder}: {start}") from error
            time.sleep(0.1)
        else:
            return Status(_members(found["members"]), found["runs"], found["counters"])


def _members(said: Mapping[str, Any]) -> dict[str, Member]:
    return {name: Member(*each) for name, each in said.items()}


def _read(frame: Frame) -> Reply:
    """Reads a reply, of which only the server's part is trusted."""
    content = frame.body
    if "file" in frame.fields:
        path = Path(frame.text("file"))
        content = Blob("", frame.number("size", LARGEST), path).view()
    return Reply(
        frame.text("node"), frame.text("request"), frame.table("settings"), content,
        frame.text("error"), frame.text("reason"),
    )  # fmt: skip
