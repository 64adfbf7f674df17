"""Messages as bytes: what was sent, and what a stranger sends."""

import numpy as np
from flwr.app import ArrayRecord, Error, Message, RecordDict

from engram.link.flower import Parcel, pack, unpack
from tests.link.messages import question


def test_a_parcel_holds_a_message_or_an_error():
    content = RecordDict({"arrays": ArrayRecord([np.arange(4, dtype=np.float32)])})
    message = Message(content, reply_to=question())
    parcel = Parcel.from_bytes(b"".join(pack(message).to_parts()))
    again = unpack(parcel)
    assert again.metadata.message_id == message.metadata.message_id == message.object_id
    assert again.metadata.reply_to_message_id == message.metadata.reply_to_message_id
    assert again.object_id == message.object_id
    assert parcel.size > 16
    message = Message(Error(3, "gone\nfishing"), reply_to=question())
    again = unpack(Parcel.from_bytes(b"".join(pack(message).to_parts())))
    assert (again.error.code, again.error.reason) == (3, "gone\nfishing")
