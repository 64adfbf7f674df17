"""What a SuperLink may answer: whatever it is, a node goes on."""

import contextlib
import hashlib
import threading
import time
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from flwr.app import ArrayRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engram.link.credentials import NodeCredentials
from engram.link.flower import (
    FleetStub,
    fab_pb2,
    fleet_pb2,
    message_pb2,
    metadata_of,
    pack,
    run_pb2,
    unpack,
)
from engram.link.node import fleet as fleet_module
from engram.link.node.fleet import Fleet, KeyRefused, RunOver, Unreachable, Unusable
from engram.link.node.session import Session
from engram.link.server.certificates import node_key_files
from engram.settings.errors import EngramError
from engram.sites.policy import USUAL
from tests.link import messages
from tests.link.node.test_fab import bundle

PROJECT = b"[tool.flwr.app.config]\nalpha = 1\n"
OBJECTS = [b"", b"x" * 100, b"y" * 1000]
NAMES = [hashlib.sha256(content).hexdigest() for content in OBJECTS]


class Failed(grpc.RpcError):
    def __init__(self, code, details):
        self._code, self._details = code, details

    def code(self):
        return self._code

    def details(self):
        return self._details

    def trailing_metadata(self):
        return None


class Stub:
    """A SuperLink that hands over one message and its objects, in good faith."""

    def __init__(self, parcel=None):
        self.parcel = parcel
        self.answers = []
        self.confirmed = []

    def PullMessages(self, request, timeout):  # noqa: N802 - as Flower calls it; all below
        header = message_pb2.Message.FromString(self.parcel.header)
        tree = message_pb2.ObjectTree.FromString(self.parcel.tree)
        return fleet_pb2.PullMessagesResponse(messages_list=[header], message_object_trees=[tree])

    def PullObject(self, request, timeout):  # noqa: N802
        content = self.parcel.objects.get(request.object_id)
        there = content is not None
        return message_pb2.PullObjectResponse(
            object_found=there, object_available=there, object_content=content
        )

    def ConfirmMessageReceived(self, request, timeout):  # noqa: N802
        self.confirmed.append(request.message_object_id)
        return message_pb2.ConfirmMessageReceivedResponse()

    def GetRun(self, request, timeout):  # noqa: N802
        fab_hash = hashlib.sha256(bundle(PROJECT)).hexdigest()
        return run_pb2.GetRunResponse(run=run_pb2.Run(run_id=request.run_id, fab_hash=fab_hash))

    def GetFab(self, request, timeout):  # noqa: N802
        return fab_pb2.GetFabResponse(
            fab=fab_pb2.Fab(hash_str=request.hash_str, content=bundle(PROJECT))
        )

    def PushMessages(self, request, timeout):  # noqa: N802
        self.answers.append(request.messages_list[0])
        return fleet_pb2.PushMessagesResponse()


@pytest.fixture(scope="module")
def connect(tmp_path_factory):
    key = tmp_path_factory.mktemp("key") / "key"
    key.write_bytes(node_key_files("client-0")[0])
    key.chmod(0o600)

    def connect(stub, **options):
        fleet = Fleet(NodeCredentials("ward", "there:9092", 0, 1, True, key, key, None), **options)
        fleet._stub = stub
        return fleet

    return connect


def question(size=4):
    content = RecordDict({"arrays": ArrayRecord([np.arange(size, dtype=np.float32)])})
    return pack(messages.question(content, ttl=60.0))


def fetch(fleet):
    run_id, message = fleet.pull()
    return fleet.fetch(run_id, message, until=time.monotonic() + 60)


def test_a_message_comes_whole(connect):
    stub = Stub(question())
    found = fetch(connect(stub))
    assert found == stub.parcel
    assert unpack(found).content.array_records["arrays"]
    assert stub.confirmed == [metadata_of(found).message_id]


def test_a_message_of_too_many_parts_is_not_fetched(connect, monkeypatch):
    monkeypatch.setattr(fleet_module, "_MOST_OBJECTS", 3)
    monkeypatch.setattr(Stub, "PullObject", None)
    with pytest.raises(Unusable, match="the message has more than 3 parts"):
        fetch(connect(Stub(question())))


@pytest.mark.parametrize(
    ("options", "whose"),
    [({"max_message": 2**20}, "its --max-message"), ({}, "an eighth of its free memory")],
)
def test_a_message_that_is_too_large_is_left_where_it_is(connect, monkeypatch, options, whose):
    monkeypatch.setattr(fleet_module, "available", lambda device: 2**23)
    pulled = []
    pull = Stub.PullObject
    monkeypatch.setattr(
        Stub, "PullObject", lambda self, r, timeout: pulled.append(r) or pull(self, r, timeout)
    )
    with pytest.raises(Unusable, match=rf"more than the 1\.0 MiB that this node takes, {whose}"):
        fetch(connect(Stub(question(5 * 2**20)), **options))  # 20 MiB, in pieces of 5
    assert len(pulled) < 3
    assert fetch(connect(Stub(question(2**17)), **options)).size > 2**19


def test_a_message_that_is_incomplete_or_forged_is_said_to_be(connect, monkeypatch):
    parcel = question()
    first, *_ = parcel.objects
    with pytest.raises(Unusable, match="is not there"):
        fetch(connect(Stub(parcel._replace(objects={}))))
    with pytest.raises(Unusable, match="other bytes than its name says"):
        fetch(connect(Stub(parcel._replace(objects=parcel.objects | {first: b"other"}))))
    empty = fleet_pb2.PullMessagesResponse(messages_list=[message_pb2.Message()])
    monkeypatch.setattr(Stub, "PullMessages", lambda *_, timeout: empty)
    with pytest.raises(Unusable, match="without a list of its contents"):
        connect(Stub()).pull()


def test_no_part_is_waited_for_when_the_round_is_over(connect):
    with pytest.raises(RunOver, match="its round is over"):
        connect(Stub(question())).fetch(1, question(), until=time.monotonic() - 1)


def test_a_bundle_that_is_none_is_said_to_be(connect, monkeypatch):
    assert connect(Stub()).run_info(5).project == PROJECT
    large = bundle(b"#" * 2**21)
    fab = SimpleNamespace(fab=fab_pb2.Fab(content=large))
    monkeypatch.setattr(Stub, "GetFab", lambda *_, timeout: fab)
    with pytest.raises(Unusable, match="bundle of run 5 is not the one that the run names"):
        connect(Stub()).run_info(5)
    run = run_pb2.Run(run_id=5, fab_hash=hashlib.sha256(large).hexdigest())
    answer = run_pb2.GetRunResponse(run=run)
    monkeypatch.setattr(Stub, "GetRun", lambda *_, timeout: answer)
    with pytest.raises(Unusable, match=r"bundle of run 5 has a pyproject\.toml of more than"):
        connect(Stub()).run_info(5)


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        ("UNAVAILABLE", "Handshake read failed", Unreachable),
        ("UNAVAILABLE", "x" * 10**5, Unreachable),
        ("UNKNOWN", "[" * 900, Unreachable),
        ("PERMISSION_DENIED", "Received http2 header with status: 403", Unreachable),
        ("PERMISSION_DENIED", '{"code": 2007, "public_message": "no"}', RunOver),
        ("FAILED_PRECONDITION", '{"code": 2005, "public_message": "no"}', KeyRefused),
        ("RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (9 vs. 5)", Unusable),
        ("RESOURCE_EXHAUSTED", "Concurrent RPC limit exceeded!", Unreachable),
    ],
)
def test_what_an_error_means(connect, monkeypatch, code, details, kind):
    def fails(*_, timeout):
        raise Failed(getattr(grpc.StatusCode, code), details)

    monkeypatch.setattr(Stub, "PullMessages", fails)
    with pytest.raises(kind) as caught:
        connect(Stub()).pull()
    assert len(str(caught.value)) < 400


def test_an_answer_that_is_too_large_is_not_taken(connect, monkeypatch):
    """With gRPC itself, since its words tell."""
    from concurrent.futures import ThreadPoolExecutor

    class Service(grpc.GenericRpcHandler):
        def service(self, details):
            answer = fleet_pb2.PullMessagesResponse(
                messages_list=[message_pb2.Message(error={"reason": "x" * 2**20})]
            )
            return grpc.unary_unary_rpc_method_handler(lambda *_: answer.SerializeToString())

    for compression in (None, grpc.Compression.Gzip):
        server = grpc.server(ThreadPoolExecutor(1), compression=compression)
        server.add_generic_rpc_handlers((Service(),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        address = f"127.0.0.1:{port}"
        channel = grpc.insecure_channel(address, [("grpc.max_receive_message_length", 2**16)])
        with pytest.raises(Unusable, match="sends more than 512 MiB at once"):
            connect(FleetStub(channel)).pull()
        channel.close()
        server.stop(None)


# --- Whatever it is --------------------------------------------------------------------------

TEXTS = st.sampled_from(["", "x", *NAMES, "0" * 64]) | st.text(max_size=9)
NUMBERS = st.floats() | st.sampled_from([0.0, 60.0, time.time()])
TREES = st.recursive(
    st.builds(message_pb2.ObjectTree, object_id=TEXTS),
    lambda trees: st.builds(
        message_pb2.ObjectTree, object_id=TEXTS, children=st.lists(trees, max_size=4)
    ),
    max_leaves=12,
)
METADATA = st.builds(
    message_pb2.Metadata,
    run_id=st.sampled_from([0, 1, 2**64 - 1]),
    message_id=TEXTS,
    src_node_id=st.integers(0, 2**64 - 1),
    dst_node_id=st.integers(0, 9),
    reply_to_message_id=TEXTS,
    ttl=NUMBERS,
    created_at=NUMBERS,
    message_type=TEXTS | st.just("train"),
)
MESSAGES = st.builds(message_pb2.Message) | st.builds(message_pb2.Message, metadata=METADATA)
ERRORS = st.builds(
    Failed,
    st.sampled_from(list(grpc.StatusCode)),
    TEXTS | st.sampled_from(["[" * 9000, '{"code": 1}', None]),
)
BOOLEANS, HASH = st.booleans(), st.just(hashlib.sha256(bundle(PROJECT)).hexdigest())
RUN = st.builds(run_pb2.Run, fab_hash=TEXTS | HASH)
FAB = st.builds(fab_pb2.Fab, hash_str=TEXTS, content=st.binary() | st.just(bundle(PROJECT)))
ANSWERS = {
    "PullMessages": st.builds(
        fleet_pb2.PullMessagesResponse,
        messages_list=st.lists(MESSAGES, max_size=2),
        message_object_trees=st.lists(TREES, max_size=2),
    ),
    "PullObject": st.builds(
        message_pb2.PullObjectResponse,
        object_found=BOOLEANS,
        object_available=BOOLEANS,
        object_content=st.sampled_from(OBJECTS) | st.binary(max_size=9),
    ),
    "ConfirmMessageReceived": st.builds(message_pb2.ConfirmMessageReceivedResponse),
    "GetRun": st.builds(run_pb2.GetRunResponse, run=RUN),
    "GetFab": st.builds(fab_pb2.GetFabResponse, fab=FAB),
    "PushMessages": st.builds(
        fleet_pb2.PushMessagesResponse, objects_to_push=st.lists(TEXTS, max_size=3)
    ),
    "PushObject": st.builds(message_pb2.PushObjectResponse, stored=BOOLEANS),
}


class Stranger:
    """Answers each call by something that its answer could be, or by an error."""

    def __init__(self, data, stop):
        self._data = data
        self._left = 12
        self._stop = stop

    def __getattr__(self, name):
        def call(request, timeout):
            self._left -= 1
            if self._left < 0:
                self._stop.set()
                raise Failed(grpc.StatusCode.UNAVAILABLE, "enough")
            answer = self._data.draw(ANSWERS[name] | ERRORS)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


class Echo:
    """A worker that sends each message back."""

    def begin(self, work):
        from concurrent.futures import Future

        done = Future()
        done.set_result(work.message)
        return done


@given(st.data())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_answer_ends_a_node(connect, monkeypatch, data):
    stop = threading.Event()
    fleet = connect(Stranger(data, stop))
    monkeypatch.setattr(stop, "wait", lambda seconds: None)
    monkeypatch.setattr(fleet._stop, "wait", lambda seconds: None)
    with contextlib.suppress(
        EngramError
    ):  # which are for engram/link/node/node.py: it connects again
        Session(fleet, Echo(), 7, stop, policy=lambda: USUAL, audit=None).serve()
