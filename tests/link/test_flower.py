"""Messages as bytes: what was sent, and what a stranger sends."""

import numpy as np
from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.supercore.error import ApiErrorCode

from engram.link.flower import KEY_IN_USE, Parcel, pack, unpack
from tests.link.messages import question


def test_a_number_of_flowers_is_the_one_copied():
    assert KEY_IN_USE == ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE


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
