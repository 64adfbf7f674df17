"""Clients' names in messages: short, printable, and no two clients' the same."""

from hypothesis import given
from hypothesis import strategies as st

from engram.data.clients import checked_names
from engram.settings.errors import few


def test_data_name_clients():
    assert checked_names({0: "park", 2: " elm\n"}, 3) == {0: "park", 2: "elm"}
    assert checked_names({0: "0", 1: "", 2: "\t"}, 3) == {}


def test_a_name_that_is_taken_is_followed_by_the_number():
    names = checked_names({0: "park", 1: "elm", 6: "park"}, 7)
    assert names == {0: "park (number 0)", 1: "elm", 6: "park (number 6)"}
    # Schools 1 and 101: the first would be taken for client 1, which has no name.
    assert checked_names({0: "1", 2: "101"}, 3) == {0: "1 (number 0)", 2: "101"}
    forged = checked_names({0: "park", 1: "park", 2: "park (number 1)"}, 3)
    assert len(set(forged.values())) == 3


def test_numbers_that_name_clients_are_their_names():
    assert checked_names({0: "10", 1: "2", 2: "1"}, 3) == {0: "10", 1: "2", 2: "1"}
    assert checked_names({0: "2", 1: "0", 2: "1"}, 3) == {0: "2", 1: "0", 2: "1"}


def test_a_name_is_one_short_line():
    names = checked_names({0: "a\x1b[2Jb\nc", 1: "x" * 10**5, 2: "x" * 10**5}, 3)
    assert names[0] == r"a\x1b[2Jb\nc"
    assert [names[client][-11:] for client in (1, 2)] == [" (number 1)", " (number 2)"]
    assert max(map(len, names.values())) <= 60


ENDS = st.sampled_from(["", " (number 0)", " (number 1)", " (number 2)"])
GIVEN = st.builds(str.__add__, st.text("ab1 \n", max_size=3) | st.just("x" * 70), ENDS)


@given(st.dictionaries(st.integers(0, 5), GIVEN))
def test_no_two_clients_have_one_name(given_names):
    names = checked_names(given_names, 6)
    called = [names.get(client, str(client)) for client in range(6)]
    assert len(set(called)) == 6
    assert all(name.isprintable() and 0 < len(name) <= 60 for name in called)
    assert checked_names(names, 6) == names  # as when they come from another process


def test_messages_call_clients_by_their_names():
    assert few([2, 3, 6], {6: "park"}) == "[2, 3, park]"
    assert few(range(30), {0: "elm"}).startswith("[elm, 1, 2, ")
    assert few(range(30), {0: "elm"}).endswith("19, ... 30 in all]")
