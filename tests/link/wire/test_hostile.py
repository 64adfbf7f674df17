"""Strangers, and members that break the protocol: they are cut off, and all others go on."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest

from engram.link.frames import CHUNK, pack
from engram.link.transport import CONNECT, DELIVER, FETCH, RUN, STATUS
from tests.link.wire.answers import dialing
from tests.link.wire.processes import until
from tests.link.wire.together import NAMES, SMALL, Lab, Together

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


def delivered(fed: Together, lab: Lab, first: bytes, *chunks: bytes) -> tuple[str, str]:
    """Delivers the reply of client-1 to an ask; returns how the call and the ask end."""
    fed.end("client-1")
    until(lambda: not lab.there("client-1"))
    return call(fed, fed.folder / "client-1", [first, *chunks], DELIVER), ""


def asked_mark(fed: Together, lab: Lab) -> str:
    """Asks client-1 while it is away; returns the question's mark, as a node computes it."""
    lab.ask(SMALL, names=NAMES[1:], most=1000, within=20)
    address, credentials, _ = dialing(f"127.0.0.1:{fed.port}", fed.folder / "client-1")()
    with grpc.secure_channel(address, credentials) as channel:
        stream = channel.stream_stream(CONNECT)(iter([HELLO]))
        frames: Iterator = iter(stream)
        from engram.link.asks import Ask, Key
        from engram.link.frames import unpack

        while (frame := unpack(next(frames))).kind != "ask":
            pass
    return Ask.read(frame, Key("", lab.run, "1/train"), 0.0).mark
