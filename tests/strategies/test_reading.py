"""The border that replies cross: whatever one makes its reader raise is its sender's fault."""

import pytest
from flwr.app import Error, Message, RecordDict

from engram.link.flower import local_run, name_message
from engram.scoring.evaluation import Impossible
from engram.strategies.reply_border import Rejected, read_reply
from engram.wire.wire import DIVERGED
from tests.samples import entry


@pytest.fixture
def asked():
    local_run()
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    name_message(message, "1")
    return message


RAISED = {
    "key": (KeyError("ids"), "malformed", "its reply lacks 'ids'"),
    "type": (TypeError("ids must be whole"), "malformed", "ids must be whole"),
    "value": (ValueError("a\nb"), "malformed", "a\\nb"),
    "score": (Impossible("accuracy of 2"), "scores", "accuracy of 2"),
    "overflow": (OverflowError(34, "too large"), "malformed", "its reply cannot be read: Overflow"),
    "end": (StopIteration(), "malformed", "its reply cannot be read: StopIteration()"),
    "depth": (RecursionError("deep"), "malformed", "its reply cannot be read: RecursionError"),
    "room": (MemoryError(), "malformed", "its reply cannot be read: MemoryError()"),
    "place": (IndexError("out of range"), "malformed", "its reply cannot be read: IndexError"),
    "other": (AttributeError("x" * 10**5), "malformed", "its reply cannot be read: Attribute"),
}


def test_whatever_a_reply_makes_its_reader_raise_is_its_senders_fault(asked):
    for name, (error, kind, reason) in RAISED.items():

        def read(content, error=error):
            raise error

        with entry(name):
            found = read_reply(Message(RecordDict(), reply_to=asked), read)
            assert isinstance(found, Rejected)
            assert found.kind == kind
            assert found.reason.startswith(reason)
            assert found.reason.isprintable()
            assert len(found.reason) <= 300


def test_what_is_read_is_returned_and_errors_are_not_read(asked):
    assert read_reply(Message(RecordDict(), reply_to=asked), len) == 0
    for code, kind in ((2, "error"), (DIVERGED, "diverged")):
        found = read_reply(Message(Error(code, "out of\ndisk"), reply_to=asked), len)
        assert found == Rejected(kind, "out of\\ndisk")
    assert read_reply(Message(Error(2, ""), reply_to=asked), len).reason == "no reason given"
