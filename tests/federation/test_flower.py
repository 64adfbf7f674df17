"""Messages as bytes; and replies that come in pieces, or in such as do not fit."""

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message, MessageType, RecordDict

from federation.flower import Inbox, Parcel, local_run, name_message, pack, unpack


@pytest.fixture(autouse=True)
def _run():
    local_run()


def question():
    message = Message(RecordDict(), dst_node_id=7, message_type=MessageType.TRAIN)
    name_message(message, message.object_id)
    return message


def reply(size=4):
    content = RecordDict({"arrays": ArrayRecord([np.arange(size, dtype=np.float32)])})
    return Message(content, reply_to=question())


def test_a_parcel_holds_a_message():
    message = reply()
    parcel = Parcel.from_bytes(pack(message).to_bytes())
    again = unpack(parcel)
    assert again.metadata.message_id == message.metadata.message_id == message.object_id
    assert again.metadata.reply_to_message_id == message.metadata.reply_to_message_id
    assert again.object_id == message.object_id
    assert parcel.size > 16


def test_a_parcel_holds_an_error():
    message = Message(Error(3, "gone\nfishing"), reply_to=question())
    again = unpack(Parcel.from_bytes(pack(message).to_bytes()))
    assert (again.error.code, again.error.reason) == (3, "gone\nfishing")


class Stub:
    """A SuperLink that has some objects of one reply."""

    def __init__(self, message):
        self.parcel = pack(message)
        self.there = set()
        self.confirmed = []

    def PullMessages(self, _):  # noqa: N802 - as Flower calls it
        from flwr.proto.message_pb2 import Message as Header
        from flwr.proto.message_pb2 import ObjectTree

        header = Header.FromString(self.parcel.header)
        return SimpleNamespace(
            messages_list=[header], message_object_trees=[ObjectTree.FromString(self.parcel.tree)]
        )

    def PullObject(self, request):  # noqa: N802
        found = request.object_id in self.there
        content = self.parcel.objects[request.object_id] if found else b""
        return SimpleNamespace(object_available=found, object_content=content)

    def ConfirmMessageReceived(self, request):  # noqa: N802
        self.confirmed.append(request.message_object_id)


def inbox(stub):
    from flwr.proto.node_pb2 import Node

    return Inbox(SimpleNamespace(_runtime_client=stub, node=Node(), run=SimpleNamespace(run_id=1)))


def test_a_reply_is_there_when_all_of_it_is_and_no_look_waits():
    message = reply()
    stub = Stub(message)
    box, name = inbox(stub), message.metadata.reply_to_message_id
    for part in list(stub.parcel.objects):
        assert box.replies([name], 10**6) == []
        stub.there.add(part)
    (found,) = box.replies([name], 10**6)
    assert found.object_id == message.object_id
    assert stub.confirmed == [message.object_id]


def test_what_does_not_fit_together_is_an_error_and_not_an_exception():
    message = reply()
    stub = Stub(message)
    stub.there = set(stub.parcel.objects)
    for name, part in stub.parcel.objects.items():
        stub.parcel.objects[name] = part.replace(b"float32", b"flo\xff\xff32")
    (found,) = inbox(stub).replies([message.metadata.reply_to_message_id], 10**6)
    assert found.has_error()
    assert found.metadata.reply_to_message_id == message.metadata.reply_to_message_id


def test_what_a_sender_writes_of_itself_counts_for_nothing():
    honest, forged = reply(), reply()
    asked = honest.metadata.reply_to_message_id
    forged.metadata.__dict__.update(_src_node_id=99, _reply_to_message_id="another")
    stub = Stub(forged)
    header = pack(honest)
    from flwr.proto.message_pb2 import Message as Header

    mixed = Header.FromString(header.header)
    mixed.metadata.message_id = Header.FromString(stub.parcel.header).metadata.message_id
    stub.parcel = stub.parcel._replace(header=mixed.SerializeToString())
    stub.there = set(stub.parcel.objects)
    (found,) = inbox(stub).replies([asked], 10**6)
    assert found.metadata.reply_to_message_id == asked
    assert found.metadata.src_node_id == 7


def test_a_reply_that_is_too_large_is_not_fetched_to_its_end():
    message = reply(size=10_000)
    stub = Stub(message)
    stub.there = set(stub.parcel.objects)
    (found,) = inbox(stub).replies([message.metadata.reply_to_message_id], 1000)
    assert "more than 1000 bytes" in found.error.reason


def test_what_came_of_a_reply_that_nobody_waits_for_is_forgotten():
    message = reply()
    stub = Stub(message)
    box, name = inbox(stub), message.metadata.reply_to_message_id
    assert box.replies([name], 10**6) == []
    assert box._arriving
    stub.parcel = stub.parcel._replace(header=b"")
    box.replies([], 10**6)
    assert not box._arriving
