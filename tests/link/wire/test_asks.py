"""Asks, without files or sockets: each comes to one reply, whatever is repeated."""

import hypothesis
import pytest
from hypothesis import strategies as st

from engram.link.asks import Ask, Desk, Key, Listed
from engram.link.frames import BadFrame, pack, unpack
from engram.link.node.agenda import Agenda

KEY = Key("client-0", "17", "3/train")
FILE = Listed("f" * 64, 2**20, inline=False)


def ask(key: Key = KEY, body: bytes = b"model", until: float = 10.0) -> Ask:
    """Returns an ask of two contents, the first of which is inline."""
    contents = Listed(body.hex().ljust(64, "0"), len(body), inline=True), FILE
    return Ask(key, f"mark of {body!r}", "train", {}, contents, body, until, 100)


def test_an_ask_travels_whole() -> None:
    found = Ask.read(unpack(ask().pack(4.0)), KEY, 100.0)
    assert found._replace(mark="", until=0) == ask()._replace(mark="", until=0)
    assert found.until == 106.0  # seconds that are left, by no clock that both must have
    again = Ask.read(unpack(ask(until=50).pack(4.0)), KEY, 100.0)
    assert again.mark == found.mark  # which time does not change
    other = Ask.read(unpack(ask(body=b"other").pack(4.0)), KEY, 100.0)
    assert other.mark != found.mark
    assert other.inline == {b"other".hex().ljust(64, "0"): b"other"}


@pytest.mark.parametrize(
    "contents",
    [
        7,
        [7],
        [FILE._asdict()] * 65,
        [{**FILE._asdict(), "inline": True}],  # whose bytes are not there
        [{**FILE._asdict(), "inline": 1}],
        [{**FILE._asdict(), "digest": "../../../etc/passwd"}],
        [{**FILE._asdict(), "size": -1}],
    ],
)
def test_impossible_contents_are_refused(contents: object) -> None:
    said = {"settings": {}, "ask": "train", "ms": 1, "most": 1, "contents": contents}
    with pytest.raises(BadFrame):
        Ask.read(unpack(pack("ask", **said)), KEY, 0.0)


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
    assert desk.overdue(20.0) == [ask(other)]
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


# --- A node's agenda -----------------------------------------------------------------------------


def of_run(run: str, request: str = "1/train", body: bytes = b"model") -> Ask:
    """Returns an ask as a node has it."""
    return ask(Key("", run, request), body)


def test_runs_take_turns_at_a_node() -> None:
    agenda, order = Agenda(), []
    for run, request in [("1", "a"), ("1", "b"), ("1", "c"), ("2", "a"), ("3", "a")]:
        agenda.take(of_run(run, request), 0.0)
    while (due := agenda.begin()) is not None:
        order.append(due.ask.key.run)
        agenda.end(again=False)
    assert order == ["1", "2", "1", "3", "1"]


def test_the_same_question_is_worked_on_once_at_a_time() -> None:
    agenda = Agenda()
    agenda.take(of_run("1"), 0.0)
    due = agenda.begin()
    assert due is not None
    agenda.take(of_run("1"), 1.0)
    assert (due.again, due.cancelled.is_set()) == (True, False)
    agenda.end(again=due.again)
    assert agenda.begin() is due


def test_a_changed_question_ends_work_on_the_former() -> None:
    agenda = Agenda()
    agenda.take(of_run("1"), 0.0)
    former = agenda.begin()
    agenda.take(of_run("1", body=b"other"), 1.0)
    assert former is not None
    assert former.cancelled.is_set()
    agenda.end(again=True)
    due = agenda.begin()
    assert due is not None
    assert due.ask.body == b"other"


def test_cancelled_asks_are_not_begun() -> None:
    agenda = Agenda()
    for run, request in [("1", "a"), ("1", "b"), ("1", "c"), ("2", "a")]:
        agenda.take(of_run(run, request), 0.0)
    at = agenda.begin()
    agenda.cancel("1", "b")
    assert at is not None
    assert not at.cancelled.is_set()
    agenda.cancel("1")
    assert at.cancelled.is_set()
    agenda.end(again=True)
    due = agenda.begin()
    assert due is not None
    assert due.ask.key.run == "2"
    agenda.end(again=False)
    assert agenda.begin() is None


def test_asks_of_other_runs_do_not_wait_for_long() -> None:
    agenda = Agenda()
    assert agenda.overlooked(100.0, 10.0) == []
    for run, request, now in [("1", "a", 0.0), ("1", "b", 0.0), ("2", "a", 0.0), ("3", "a", 5.0)]:
        agenda.take(of_run(run, request), now)
    agenda.begin()
    assert [due.ask.key.run for due in agenda.overlooked(11.0, 10.0)] == ["2"]
    assert agenda.overlooked(11.0, 10.0) == []


def test_a_server_asks_for_64_things_at_most() -> None:
    agenda = Agenda()
    for number in range(64):
        agenda.take(of_run("1", str(number)), 0.0)
    with pytest.raises(BadFrame, match="too much at a time"):
        agenda.take(of_run("1"), 0.0)
