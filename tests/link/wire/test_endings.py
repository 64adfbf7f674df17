"""Endings: of asks, transfers and sessions, after which nothing is left and nobody waits."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from engram.link.asks import Ask, Key
from engram.link.blobs import Blob
from engram.link.frames import Frame, pack, unpack
from engram.link.questions import Content
from engram.link.server.exchange import COUNTED, Exchange
from engram.link.server.registration import remove_client
from engram.link.server.session import Session
from engram.link.server.transfers import Transfers
from engram.link.transport import CONNECT, DELIVER, FETCH, PATIENCE, socket_target
from engram.wire.counters import Counters
from tests.link.wire.answers import dialing
from tests.link.wire.processes import until
from tests.link.wire.together import LARGE, NAMES, SMALL, Lab, together

_ASKED = {"settings": {}, "ask": "train", "most": 100, "contents": []}


def _asked(ms: int) -> Frame:
    return unpack(pack("ask", node="client-0", request="1/train", ms=ms, **_ASKED))


@pytest.mark.parametrize("member", [True, False], ids=["late", "gone"])
def test_who_begins_anew_after_a_deadline_is_answered_anew(tmp_path: Path, member: bool) -> None:
    exchange, node = Exchange(tmp_path, 1000, Counters(COUNTED)), Session()
    exchange.runs["1"], exchange.nodes["client-0"] = Session(), node
    exchange.order("1", _asked(0), {"client-0"} if member else set())
    exchange.end_overdue()  # the run dies before it hears of it
    exchange.runs["1"] = run = Session()
    exchange.order("1", _asked(60_000), {"client-0"})
    exchange.end_overdue()
    assert run._outbox.empty()
    while not node._outbox.empty():
        last = unpack(node._outbox.get_nowait()())
    assert last.kind == "ask"
    ask = Ask.read(_asked(0), Key("client-0", "1", "1/train"), 0.0)
    exchange.reply(
        ask, Frame("reply", {"settings": {}, "error": "", "reason": ""}, memoryview(b"")), 0
    )
    assert unpack(run._outbox.get_nowait()()).text("error") == ""


def test_a_run_that_was_dropped_brings_its_contents_again(lab: Lab) -> None:
    lab.ask(SMALL, names=NAMES[:1])
    lab.assert_right(SMALL, names=NAMES[:1])
    with lab.waiting("client-0"):
        lab.ask(SMALL, names=NAMES[:1], kind="wait", request="2/train")
        lab.ask(LARGE, names=NAMES[:1], request="3/train")
        shutil.rmtree(lab.server / "runs" / lab.run / "blobs")  # as of a run that was away
        lab.link._anew = True
        assert not [*lab.link.replies(seconds=0)]
    found = {reply.request: reply.error for reply in lab.link.replies(seconds=20)}
    assert found == {"2/train": "", "3/train": ""}


def test_who_is_removed_hears_no_more_of_a_model(tmp_path: Path) -> None:
    with together(tmp_path / "fed") as fed:
        fed.start("server")
        lab = fed.lab()
        address, secret, _ = dialing(f"127.0.0.1:{fed.port}", fed.folder / "client-1")()
        with grpc.secure_channel(address, secret) as channel:
            said = channel.stream_stream(CONNECT)(_saying(pack("hello", version=1)))
            until(lambda: lab.there("client-1"))
            lab.ask(Content([bytes(2**27)]), names=NAMES[1:])
            while (frame := unpack(next(said))).kind != "ask":
                pass
            ask = Ask.read(frame, Key("", frame.text("run"), frame.text("request")), 0.0)
            request = pack("fetch", offset=0, digest=ask.contents[0].digest, **ask.name)
            chunks = channel.unary_stream(FETCH)(request, timeout=5)
            next(chunks)
            remove_client(fed.server, "1")
            until(lambda: "client-1" not in lab.link.members())
            come = list[int]()
            with pytest.raises(grpc.RpcError):  # the whole of it would come in a moment
                come.extend(map(len, chunks))
            assert sum(come) < 2**26


def test_a_transfer_ends_whatever_it_is_at(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path, 1000, Counters(COUNTED))
    transfers, chunks = Transfers(exchange, PATIENCE, Counters(COUNTED)), list[bytes]()
    blob = Blob.write(exchange.run_folder("1") / "blobs", [bytes(2**23)])
    listed = {"digest": blob.digest, "size": blob.size, "inline": False}
    asked = pack("ask", node="client-0", request="1/train", ms=9, **_ASKED | {"contents": [listed]})
    exchange.order("1", unpack(asked), {"client-0"})
    name = Ask.read(unpack(asked), Key("client-0", "1", "1/train"), 0.0).name

    class Call:
        async def write(self, chunk: bytes) -> None:
            await asyncio.sleep(0)
            chunks.append(chunk)
            if len(chunks) == 3:
                transfers.end("client-0")

    first = unpack(pack("fetch", offset=0, digest=blob.digest, **name))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(transfers.fetch("client-0", first, Call()))
    assert len(chunks) == 3


def test_a_reply_that_is_cancelled_on_its_way_ends_there(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with together(tmp_path / "fed") as fed:
        fed.start("server")
        lab = fed.lab()
        address, secret, _ = dialing(f"127.0.0.1:{fed.port}", fed.folder / "client-1")()
        with grpc.secure_channel(address, secret) as channel:
            said = channel.stream_stream(CONNECT)(_saying(pack("hello", version=1)))
            until(lambda: lab.there("client-1"))
            lab.ask(SMALL, names=NAMES[1:])
            while (frame := unpack(next(said))).kind != "ask":
                pass
            ask = Ask.read(frame, Key("", frame.text("run"), frame.text("request")), 0.0)
            promised = {"settings": {}, "error": "", "reason": "", "digest": "a" * 64, "size": 2000}

            def parts() -> Iterator[bytes]:
                yield pack("reply", **ask.name, **promised)
                yield bytes(500)
                until(lambda: [*lab.server.glob("runs/*/replies/*/*")])
                lab.link.drop(NAMES)
                until(lambda: not [*lab.server.glob("runs/*/replies/*")])
                yield bytes(1500)

            with pytest.raises(grpc.RpcError) as ended:
                list(channel.stream_stream(DELIVER)(parts(), timeout=20))
            assert ended.value.code() is grpc.StatusCode.NOT_FOUND
    assert "disk" not in caplog.text


def _saying(frame: bytes) -> Iterator[bytes]:
    yield frame
    until(lambda: False, seconds=60)


def test_a_fault_of_the_server_ends_a_session(tmp_path: Path) -> None:
    class Call:
        async def read(self) -> bytes:
            return pack("began")

        async def write(self, frame: bytes) -> None: ...

        async def abort(self, code: grpc.StatusCode, reason: str) -> None:
            raise RuntimeError(f"{code.name} {reason}")

    def hear(frame: Frame) -> None:
        raise KeyError("fault")

    with pytest.raises(RuntimeError, match="INTERNAL KeyError: 'fault'"):
        asyncio.run(asyncio.wait_for(Session().run(Call(), hear, 1.0, lambda: None), 5))


def test_a_socket_is_in_its_own_folder(tmp_path: Path) -> None:
    (folder := tmp_path / "a%20b").mkdir()
    with socket_target(folder) as target:
        assert target == f"unix:{tmp_path}/a%2520b/link.sock"
