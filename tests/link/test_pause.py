"""Looks get used to the pace of the rounds, whatever it is and becomes."""

from engram.link.backoff import Pauses
from tests.samples import entry


def wait(pauses, seconds):
    """One wait for what comes after so many seconds; returns how late and how often was looked."""
    pauses.begin()
    at, looks = 0.0, 0
    while at < seconds:
        at += pauses.next()
        looks += 1
    pauses.found()
    return at - seconds, looks


def test_finds_soon_what_comes_at_its_pace_with_few_looks():
    for pace in [0.01, 0.2, 0.9, 7.0]:
        with entry(pace):
            pauses = Pauses(0.03, 1.0)
            found = [wait(pauses, pace) for _ in range(40)]
            late, looks = map(max, zip(*found[10:], strict=True))
            assert late <= 0.05 + 0.25 * pace
            assert looks <= 20


def test_gets_faster_with_what_it_waits_for():
    pauses = Pauses(0.03, 5.0)
    for _ in range(5):
        wait(pauses, 2.0)
    late = [wait(pauses, 0.1)[0] for _ in range(30)]
    assert late[0] > 0.5
    assert max(late[15:]) < 0.06


def test_a_long_wait_between_turns_delays_none_of_their_messages():
    pauses = Pauses(0.03, 1.0)
    for _ in range(10):
        wait(pauses, 3.0)
        assert [late for late, _ in (wait(pauses, 0.05) for _ in range(4))][1] <= 0.4
        wait(pauses, 3.0)
        late = [wait(pauses, 0.05)[0] for _ in range(4)]
    assert max(late) < 0.06


def test_no_pause_is_longer_than_the_longest():
    pauses = Pauses(0.03, 1.0)
    wait(pauses, 50.0)
    pauses.begin()
    assert max(pauses.next() for _ in range(20_000)) == 1.0  # hours of nothing
