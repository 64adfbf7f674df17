"""Messages as bytes: what was sent, and what a stranger sends."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message, MessageType, RecordDict

from engram.link.flower import Parcel, local_run, name_message, pack, unpack


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


def test_a_parcel_holds_a_message_or_an_error():
    message = reply()
    parcel = Parcel.from_bytes(b"".join(pack(message).to_parts()))
    again = unpack(parcel)
    assert again.metadata.message_id == message.metadata.message_id == message.object_id
    assert again.metadata.reply_to_message_id == message.metadata.reply_to_message_id
    assert again.object_id == message.object_id
    assert parcel.size > 16
    message = Message(Error(3, "gone\nfishing"), reply_to=question())
    again = unpack(Parcel.from_bytes(b"".join(pack(message).to_parts())))
    assert (again.error.code, again.error.reason) == (3, "gone\nfishing")
