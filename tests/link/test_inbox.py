"""Replies that come in parts, too many or too large ones, and such as do not come to their end."""

import httpx
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

import engram.link.inbox
from engram.link.flower import message_pb2, node_pb2, pack, runtime_pb2
from engram.link.inbox import Inbox, Limits
from engram.settings.errors import UNFINISHED, UNUSABLE
from tests.link.messages import question

LIMITS = Limits(10**6, 50, seconds=200)


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    monkeypatch.setattr(engram.link.inbox, "time", Clock())
    return engram.link.inbox.time


def reply(size=4, node=7, records=1):
    content = RecordDict({"arrays": ArrayRecord([np.arange(size, dtype=np.float32)])})
    for number in range(1, records):
        content[f"record {number}"] = ConfigRecord({"number": number})
    return Message(content, reply_to=question(node=node))


class Stub:
    """A SuperLink that has some objects of some replies, and forgets others."""

    def __init__(self, *messages):
        self._client = httpx.Client()
        self.parcels = {m.metadata.reply_to_message_id: pack(m) for m in messages}
        self.there = set()
        self.lost = set()
        self.pulls = []
        self.confirmed = []

    def everything(self):
        self.there = {name for parcel in self.parcels.values() for name in parcel.objects}
        return self

    def PullMessages(self, request):  # noqa: N802 - as Flower calls it
        found = [self.parcels[name] for name in request.message_ids if name in self.parcels]
        return runtime_pb2.PullAppMessagesResponse(
            messages_list=[message_pb2.Message.FromString(parcel.header) for parcel in found],
            message_object_trees=[message_pb2.ObjectTree.FromString(p.tree) for p in found],
        )

    def PullObject(self, request):  # noqa: N802
        name = request.object_id
        self.pulls.append(name)
        content = {n: c for parcel in self.parcels.values() for n, c in parcel.objects.items()}
        return message_pb2.PullObjectResponse(
            object_found=name not in self.lost,
            object_available=name in self.there,
            object_content=content[name] if name in self.there else b"",
        )

    def ConfirmMessageReceived(self, request):  # noqa: N802
        self.confirmed.append(request.message_object_id)


class Connection:
    node = node_pb2.Node()
    run = type("Run", (), {"run_id": 1})


def inbox(stub):
    return Inbox(Connection(), stub)


def asked(*messages):
    return [message.metadata.reply_to_message_id for message in messages]


def test_a_reply_is_there_when_all_of_it_is_and_no_look_waits():
    message = reply()
    stub = Stub(message)
    box = inbox(stub)
    for part in list(stub.parcels[asked(message)[0]].objects):
        assert box.replies(asked(message), LIMITS) == []
        stub.there.add(part)
    (found,) = box.replies(asked(message), LIMITS)
    assert found.object_id == message.object_id
    assert stub.confirmed == [message.object_id]


def test_what_does_not_fit_together_is_an_error_and_not_an_exception():
    message = reply()
    stub = Stub(message).everything()
    objects = stub.parcels[asked(message)[0]].objects
    for name, part in objects.items():
        objects[name] = part.replace(b"float32", b"flo\xff\xff32")
    (found,) = inbox(stub).replies(asked(message), LIMITS)
    assert found.error.code == UNUSABLE
    assert found.metadata.reply_to_message_id == message.metadata.reply_to_message_id


def test_what_a_sender_writes_of_itself_counts_for_nothing():
    honest, forged = reply(), reply()
    (name,) = asked(honest)
    forged.metadata.__dict__.update(_src_node_id=99, _reply_to_message_id="another")
    parcel = pack(forged)
    mixed = message_pb2.Message.FromString(pack(honest).header)
    mixed.metadata.message_id = message_pb2.Message.FromString(parcel.header).metadata.message_id
    stub = Stub()
    stub.parcels[name] = parcel._replace(header=mixed.SerializeToString())
    (found,) = inbox(stub.everything()).replies([name], LIMITS)
    assert found.metadata.reply_to_message_id == name
    assert found.metadata.src_node_id == 7


def test_a_reply_that_is_too_large_is_not_fetched_to_its_end():
    message = reply(size=10_000)
    stub = Stub(message).everything()
    (found,) = inbox(stub).replies(asked(message), LIMITS._replace(size=1000))
    assert "more than 1000 bytes" in found.error.reason
    assert stub.confirmed == [message.object_id]


def test_a_part_that_is_too_large_is_not_even_read():
    message = reply(size=10**6)
    stub = Stub(message).everything()
    read = []

    def body():
        for _ in range(400):
            read.append(10_000)
            yield bytes(10_000)

    def large(request):
        # As uvicorn answers: its length is known before its bytes come.
        return httpx.Response(200, headers={"content-length": "4000000"}, content=body())

    stub._client = httpx.Client(transport=httpx.MockTransport(large))
    stub.PullObject = lambda request: stub._client.post("http://127.0.0.1/pull-object")
    (found,) = inbox(stub).replies(asked(message), LIMITS)
    assert "more than 1000000 bytes" in found.error.reason
    assert not read


def test_calls_for_anything_else_may_be_answered_at_any_length():
    stub = Stub(reply())
    large = httpx.MockTransport(lambda request: httpx.Response(200, content=bytes(10**7)))
    stub._client = httpx.Client(transport=large)
    inbox(stub)
    assert len(stub._client.get("http://127.0.0.1/").content) == 10**7


def test_of_a_reply_in_too_many_parts_none_is_fetched():
    message = reply(records=20_000)
    stub = Stub(message).everything()
    (found,) = inbox(stub).replies(asked(message), LIMITS)
    assert found.error.code == UNUSABLE
    assert found.error.reason == "it is made of more than 50 parts"
    assert not stub.pulls


def test_a_reply_in_many_parts_does_not_keep_others_waiting():
    many, one = reply(records=40), reply(size=5, node=8)
    stub = Stub(many, one).everything()
    box = inbox(stub)
    (found,) = box.replies(asked(many, one), LIMITS)
    assert found.metadata.src_node_id == 8
    assert len(stub.pulls) <= 16 + 5
    (found,) = box.replies(asked(many), LIMITS)  # and nobody else keeps it waiting
    assert len(found.content.config_records) == 39
    assert len(stub.pulls) == len(set(stub.pulls)), "what is there is not fetched again"


def test_a_look_ends_though_there_is_more(clock):
    class Slow(Stub):
        def PullObject(self, request):  # noqa: N802
            clock.now += 0.3
            return super().PullObject(request)

    message = reply(records=45)
    stub = Slow(message).everything()
    box = inbox(stub)
    assert box.replies(asked(message), LIMITS) == []
    assert len(stub.pulls) == 16
    while not (found := box.replies(asked(message), LIMITS)):
        pass
    assert len(found[0].content.config_records) == 44


@pytest.mark.parametrize("parts", [0, 2])
def test_what_the_superlink_has_given_up_is_not_waited_for(parts):
    message = reply()
    stub = Stub(message)
    names = list(stub.parcels[asked(message)[0]].objects)
    stub.there, stub.lost = set(names[:parts]), set(names[parts:])
    (found,) = inbox(stub).replies(asked(message), LIMITS)
    assert found.error.code == UNFINISHED
    assert found.error.reason == f"{len(names) - parts} of its {len(names)} parts did not come"
    assert stub.confirmed == [message.object_id]


def test_a_reply_that_trickles_is_not_waited_for_either(clock):
    message = reply(records=40)
    stub = Stub(message)
    box, start = inbox(stub), clock.now
    for part in stub.parcels[asked(message)[0]].objects:
        clock.now += 150  # always in time for the SuperLink
        stub.there.add(part)
        if found := box.replies(asked(message), LIMITS):
            break
    assert found[0].error.code == UNFINISHED
    assert 200 <= clock.now - start <= 200 + 2 * 150


def test_what_has_come_meanwhile_counts_however_late(clock):
    message = reply()
    stub = Stub(message)
    box = inbox(stub)
    assert box.replies(asked(message), LIMITS) == []
    clock.now += 3600  # a round of training in which nobody asks for it
    stub.everything()
    (found,) = box.replies(asked(message), LIMITS)
    assert found.object_id == message.object_id


def test_what_came_of_a_reply_that_nobody_waits_for_is_deleted():
    message = reply()
    stub = Stub(message)
    box = inbox(stub)
    assert box.replies(asked(message), LIMITS) == []
    assert box._arriving
    box.replies([], LIMITS)
    assert not box._arriving
    assert stub.confirmed == [message.object_id]


# --- Large replies ---------------------------------------------------------------------------


@pytest.fixture
def large(monkeypatch):
    """Two replies of several parts each, which count as large from their first part on."""
    monkeypatch.setattr(engram.link.inbox, "LARGE", 0)
    monkeypatch.setattr(engram.link.inbox, "_SLICE", 1)
    return reply(records=6), reply(node=8, records=6)


def test_large_replies_are_fetched_one_after_the_other(large):
    stub = Stub(*large).everything()
    box = inbox(stub)
    (first,) = box.replies(asked(*large), LIMITS)
    (second,) = box.replies(asked(*large)[1:], LIMITS)
    assert [first.object_id, second.object_id] == [each.object_id for each in large]
    own = [set(stub.parcels[name].objects) for name in asked(*large)]
    assert set(stub.pulls[: len(own[0])]) <= own[0]


def test_a_large_reply_that_does_not_go_on_delays_no_other(large):
    stub = Stub(*large)
    stub.there = set(stub.parcels[asked(large[1])[0]].objects)
    (found,) = inbox(stub).replies(asked(*large), LIMITS)
    assert found.object_id == large[1].object_id
