"""Strangers, and members that break the protocol: they are cut off, and all others go on."""

import asyncio
import contextlib
import hashlib
import queue
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from engram.link.asks import Ask, Key
from engram.link.frames import CHUNK, LARGEST, pack, unpack
from engram.link.node.connection import Connection, Lost
from engram.link.questions import NODE_ERRORS, Content
from engram.link.server.session import Session
from engram.link.transport import CONNECT, DELIVER, FETCH, RUN, STATUS
from tests.link.wire.answers import PATIENCE, dialing
from tests.link.wire.hostile import HostileNode, HostileServer
from tests.link.wire.processes import new_federation, until
from tests.link.wire.together import NAMES, SMALL, Lab, Together, together

HELLO = pack("hello", version=1)
JUNK = pack("reply", run="1", request="y", mark="z", settings={}, error="", reason="")


def call(fed: Together, folder: Path, frames: Sequence[bytes], method: str = CONNECT) -> str:
    """Makes a call as a node would; returns how it ends."""
    address, credentials, _ = dialing(f"127.0.0.1:{fed.port}", folder)()
    options = [("grpc.max_send_message_length", -1)]
    with grpc.secure_channel(address, credentials, options) as channel:
        try:
            list(channel.stream_stream(method)(iter(frames), timeout=30))
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"


@pytest.mark.parametrize(
    ("frames", "method", "code"),
    [
        ([b"junk"], CONNECT, "INVALID_ARGUMENT"),
        ([], CONNECT, "INVALID_ARGUMENT"),
        ([pack("hello", version=99)], CONNECT, "FAILED_PRECONDITION"),
        ([HELLO, b"junk"], CONNECT, "INVALID_ARGUMENT"),
        ([HELLO, pack("reply", run=1, request="y", mark="z")], CONNECT, "INVALID_ARGUMENT"),
        ([HELLO, pack("boo", run="1", request="y", mark="z")], CONNECT, "OK"),
        ([HELLO, bytes(3 * CHUNK)], CONNECT, "RESOURCE_EXHAUSTED"),
        ([JUNK], DELIVER, "NOT_FOUND"),
        ([b"junk"], DELIVER, "INVALID_ARGUMENT"),
        ([b"junk"], FETCH, "INVALID_ARGUMENT"),
        ([JUNK], FETCH, "NOT_FOUND"),
        ([HELLO], RUN, "UNIMPLEMENTED"),
        ([HELLO], STATUS, "UNIMPLEMENTED"),
    ],
)
def test_hostile_calls_end(
    fed: Together, lab: Lab, frames: list[bytes], method: str, code: str
) -> None:
    fed.end("client-1")
    assert call(fed, fed.folder / "client-1", frames, method) == code
    lab.ask(SMALL, names=NAMES[:1])
    lab.assert_right(SMALL, names=NAMES[:1])


def test_who_says_what_nobody_asked_is_heard_slowly_and_cut_off(
    fed: Together, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed.end("client-1")
    monkeypatch.setattr("engram.link.server.session._STRIKES", 5)
    assert call(fed, fed.folder / "client-1", [HELLO, *[JUNK] * 7]) == "INVALID_ARGUMENT"
    assert lab.there("client-0")


# --- Members that are connected ------------------------------------------------------------------


class Raw:
    """A node of a member whose every word a test makes up."""

    def __init__(self, fed: Together, lab: Lab, content: Content = SMALL, asks: int = 1) -> None:
        fed.end("client-1")
        until(lambda: not lab.there("client-1"))
        address, credentials, _ = dialing(f"127.0.0.1:{fed.port}", fed.folder / "client-1")()
        self._channel = grpc.secure_channel(address, credentials)
        self._outbox: queue.Queue[bytes | None] = queue.Queue()
        self.say(HELLO)
        self.call = self._channel.stream_stream(CONNECT)(iter(self._outbox.get, None))
        until(lambda: lab.there("client-1"))
        for number in range(asks):
            lab.ask(content, request=f"{number}/train", names=NAMES[1:], most=2000, within=20)

    def say(self, frame: bytes) -> None:
        """Says a word."""
        self._outbox.put(frame)

    def asked(self) -> dict[str, Any]:
        """Returns how it calls the next ask that it hears."""
        while (frame := unpack(next(self.call))).kind != "ask":
            pass
        return Ask.read(frame, Key("", frame.text("run"), frame.text("request")), 0.0).name

    def ends(self, method: str, *frames: bytes) -> str:
        """Makes a call; returns with which status it ends."""
        if method == FETCH:
            call = self._channel.unary_stream(FETCH)(frames[0], timeout=10)
        else:
            call = self._channel.stream_stream(method)(iter(frames), timeout=10)
        try:
            list(call)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    def close(self) -> None:
        """Ends."""
        self._outbox.put(None)
        self._channel.close()


@pytest.fixture
def raw(fed: Together, lab: Lab) -> Iterator[Raw]:
    """Yields a node that has been asked once."""
    found = Raw(fed, lab)
    yield found
    found.close()


REPLY = {"settings": {}, "error": "", "reason": ""}
PROMISED = {"digest": hashlib.sha256(b"a" * 1000).hexdigest(), "size": 1000}


def test_a_reply_must_be_what_it_promises(lab: Lab, raw: Raw) -> None:
    name = raw.asked()
    first = pack("reply", **name, **REPLY, **PROMISED)
    assert raw.ends(DELIVER, first, b"b" * 1000) == "DATA_LOSS"
    assert raw.ends(DELIVER, first, b"a" * 400, b"a" * 601) == "DATA_LOSS"
    assert raw.ends(DELIVER, first, b"a" * 300) == "INVALID_ARGUMENT"  # it ends too early
    for wrong in ({"error": "late"}, {"digest": "../x"}, {"size": LARGEST + 1}, {"settings": 1}):
        frame = pack("reply", **{**name, **REPLY, **PROMISED, **wrong})
        assert raw.ends(DELIVER, frame, b"a" * 1000) == "INVALID_ARGUMENT"
    assert raw.ends(DELIVER, first, b"a" * 300) == "OK"  # 700 bytes are there
    assert bytes(lab.replies()["client-1"].content) == b"a" * 1000
    assert raw.ends(DELIVER, first, b"a" * 1000) == "NOT_FOUND"  # it is not awaited any more


def test_an_ask_has_one_file_of_a_reply_at_a_time(lab: Lab, raw: Raw) -> None:
    name = raw.asked()
    for number in range(5):
        digest = hashlib.sha256(bytes([number])).hexdigest()
        frame = pack("reply", **name, **REPLY, digest=digest, size=2000)
        assert raw.ends(DELIVER, frame, b"a" * 1500) == "INVALID_ARGUMENT"
    assert len([*(lab.server / "runs" / lab.run / "replies").glob("*/*")]) == 1


def test_contents_are_of_an_ask(raw: Raw) -> None:
    name = raw.asked()
    assert raw.ends(FETCH, pack("fetch", **name, digest="a" * 64, offset=0)) == "INVALID_ARGUMENT"
    assert raw.ends(FETCH, pack("fetch", **name, digest=SMALL.digest, offset=501)) == (
        "INVALID_ARGUMENT"
    )


def test_who_does_not_read_is_cut_off(tmp_path: Path) -> None:
    with together(tmp_path / "fed", stall=0.5) as fed:
        fed.start("server", *NAMES)
        lab = fed.lab()
        until(lab.there)
        raw = Raw(fed, lab, Content([bytes(250_000)]), asks=64)
        until(lambda: not lab.there("client-1"))
        with pytest.raises(grpc.RpcError, match="does not read what it is sent"):
            list(raw.call)
        raw.close()


def test_words_to_a_server_that_has_ended_are_lost(fed: Together, lab: Lab) -> None:
    """gRPC answers a write on an ended call with an error of asyncio's, which nobody expects."""
    fed.end("client-1")

    async def write() -> str:
        dial = dialing(f"127.0.0.1:{fed.port}", fed.folder / "client-1")
        async with Connection.open(dial, PATIENCE) as connection:
            await connection.read()
            await connection.write(b"junk")
            with contextlib.suppress(Lost):
                while await connection.read() is not None:
                    pass
            with pytest.raises(Lost) as caught:
                await connection.write(HELLO)
        return str(caught.value.code.name)

    assert fed.do(write()) == "INVALID_ARGUMENT"
    assert lab.there("client-0")


def test_a_session_ends_with_its_call() -> None:
    class Ended:
        async def read(self) -> bytes:
            await asyncio.sleep(10)
            return b""

        async def write(self, _: bytes) -> None:
            raise asyncio.InvalidStateError

    session = Session()
    session.send(lambda: b"frame")
    over = list[str]()
    running = session.run(Ended(), lambda _: None, 1.0, lambda: over.append("over"))
    asyncio.run(asyncio.wait_for(running, 5))
    assert over == ["over"]


# --- Generated frames ----------------------------------------------------------------------------


def test_a_server_hears_generated_frames(tmp_path: Path) -> None:
    node = HostileNode(tmp_path / "fed")
    node.hear(3000)
    assert node.refused > 1000
    assert len(node.replies) > 50  # honest ones, or in place of those that are too large
    for reply in node.replies:
        assert reply.text("error") in (*NODE_ERRORS, "unusable")
        assert len(reply.text("reason")) <= 1000
        assert len(reply.body) <= 100


def test_a_node_hears_generated_frames(tmp_path: Path) -> None:
    server = HostileServer(tmp_path / "state")
    server.hear(3000)
    assert server.refused > 1000
    assert not [*tmp_path.glob("state/*/*")]


# --- Strangers -----------------------------------------------------------------------------------


def test_strangers_get_no_further_than_tls_and_take_not_all_connections(
    fed: Together, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_federation(tmp_path / "other", 1)
    stranger = tmp_path / "other" / "client-0"
    assert call(fed, stranger, [HELLO]) == "UNAVAILABLE"  # it trusts another authority
    (stranger / "ca.crt").write_bytes((fed.folder / "ca.crt").read_bytes())
    assert call(fed, stranger, [HELLO]) == "UNAVAILABLE"  # its key is no member's
    assert lab.there()
    monkeypatch.setattr("engram.link.transport._MOST", 3)
    with together(tmp_path / "fed", 1) as small, contextlib.ExitStack() as stack:
        small.start("server", "client-0")
        other = small.lab()
        until(lambda: other.there("client-0"))
        for _ in range(2):  # who say nothing
            stack.enter_context(socket.create_connection(("127.0.0.1", small.port), 20))
        third = stack.enter_context(socket.create_connection(("127.0.0.1", small.port), 20))
        assert third.recv(1) == b""
        other.ask(SMALL, names=["client-0"])
        other.assert_right(SMALL, names=["client-0"])
