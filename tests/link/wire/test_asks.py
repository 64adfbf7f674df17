"""Asks, without files or sockets: each comes to one reply, whatever is repeated."""

import hashlib

import hypothesis
from hypothesis import strategies as st

from engram.link.asks import Ask, Desk, Key
from engram.link.frames import unpack

KEY = Key("client-0", "17", "3/train")


def ask(key: Key = KEY, body: bytes = b"model", until: float = 10.0) -> Ask:
    """Returns an ask."""
    digest = hashlib.sha256(body).hexdigest()
    return Ask(key, f"mark of {body!r}", "train", {}, digest, len(body), body, until, 100)


def test_an_ask_travels_whole() -> None:
    found = Ask.of(unpack(ask().pack(4.0)), KEY, 100.0)
    assert found._replace(mark="", until=0) == ask()._replace(mark="", until=0)
    assert found.until == 106.0  # seconds that are left, by no clock that both must have
    again = Ask.of(unpack(ask(until=50).pack(4.0)), KEY, 100.0)
    assert again.mark == found.mark  # which time does not change


def test_a_question_that_is_repeated_gets_the_reply_that_is_there() -> None:
    desk = Desk()
    assert desk.ask(ask()) is None
    assert desk.ask(ask()) is None
    assert desk.open("client-0") == [ask()]
    desk.reply(KEY, b"reply")
    assert desk.open("client-0") == []
    assert desk.ask(ask()) == b"reply"


def test_a_reply_that_is_repeated_is_not_awaited() -> None:
    desk = Desk()
    desk.ask(ask())
    assert desk.awaited(KEY, ask().mark) == ask()
    desk.reply(KEY, b"reply")
    assert desk.awaited(KEY, ask().mark) is None
    assert desk.awaited(KEY._replace(node="client-1"), ask().mark) is None


def test_a_changed_question_drops_the_reply_to_the_former() -> None:
    desk = Desk()
    desk.ask(ask())
    desk.reply(KEY, b"reply")
    assert desk.ask(ask(body=b"other")) is None
    assert desk.awaited(KEY, ask().mark) is None
    assert desk.awaited(KEY, ask(body=b"other").mark) is not None


def test_what_is_forgotten_was_at_work_unless_it_was_answered() -> None:
    desk, other = Desk(), KEY._replace(node="client-1")
    for key in (KEY, other):
        desk.ask(ask(key))
    desk.reply(KEY, b"reply")
    assert desk.overdue(20.0) == [other]
    assert desk.forget([KEY, other]) == [other]
    assert desk.forget(desk.of_run("17")) == []


@hypothesis.given(
    st.lists(st.sampled_from(["ask", "reply", "take", "lose the server"]), max_size=40)
)
def test_a_run_takes_each_reply_once_whatever_happens(events: list[str]) -> None:
    """The run asks again after each loss; its node gives the same reply as often as it is asked."""
    desk, taken, outstanding = Desk(), 0, False
    for event in events:
        if event == "lose the server":
            desk = Desk()
        if event == "ask" and not taken:
            outstanding = True
        if outstanding:
            desk.ask(ask())
        if event == "reply" and desk.awaited(KEY, ask().mark):
            desk.reply(KEY, b"reply")
        if event == "take" and outstanding and desk.ask(ask()) is not None:
            taken, outstanding = taken + 1, False
            desk.forget([KEY])
    assert taken <= 1
