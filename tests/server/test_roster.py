"""The roster query: who is there, whether all run this source, and who comes late."""

import re

import pytest

from engram.data.schema.columns import Kind
from engram.server import roster, roster_query
from engram.server.roster import Attendance, Waiting, query_roster
from engram.settings.errors import AWAITED, BUSY, REFUSED, RunStopped
from engram.settings.fingerprint import fingerprint, source_root
from engram.wire.messages import Error
from tests.server.rosters import (
    NAMES,
    Coming,
    Moving,
    Scripted,
    begun,
    entry,
    named,
    stopped,
    timed,
)
from tests.support import grid, small, trainer


def test_maps_clients_to_nodes():
    roster = query_roster(grid(trainer(small()), 3), 20)
    assert roster.nodes[:5] == [1, 2, 3, 1, 2]
    assert roster.examples == [32] * 10 + [16] * 10  # a fifth is held out
    assert roster.kind == Kind("float32[1,8,8]", 10)
    assert roster.by_node([7, 0, 4]) == {1: [0], 2: [4, 7]}


def test_nodes_of_this_process_are_not_waited_for(monkeypatch):
    monkeypatch.setattr("engram.server.roster.time.sleep", lambda seconds: pytest.fail("it waits"))
    with pytest.raises(RunStopped, match=r"1 of 4 clients can take part"):
        query_roster(Scripted(entry([0]), entry([])), 4)


ELSE = "runs something else"
NAMELESS = (
    {"named": [7], "names": ["x"]},
    {"named": [0], "names": []},
    {"named": [0], "names": [b"x"]},
)
IMPOSSIBLE = ([0, 1], [5, -5]), ([0, 1], [0, 5]), ([0, 1], [2**62, 5]), ([-1, 0], [5, 5])


def test_a_node_that_runs_or_answers_something_else_is_named():
    message = stopped(entry([0, 1, 2, 3], fingerprint="0123456789abcdef", source="/somewhere/else"))
    assert "node 1 runs 0123456789abcdef from /somewhere/else" in message
    assert f"this coordinator runs {fingerprint()} from {source_root()}" in message
    assert f"node 1 {ELSE}" in stopped({})
    assert ELSE in stopped(entry([0], examples="all"))
    twice = entry([0, 1])
    twice["roster"]["clients"] = [0, 0]
    odd = [twice, *(entry([0, 1], named=ids, names=names) for ids, names in NAMELESS)]
    odd += [entry(clients, examples=examples) for clients, examples in IMPOSSIBLE]
    for answer in odd:
        assert ELSE in stopped(answer, num_clients=2), answer


def test_names_a_folder_that_a_worker_would_import_instead(tmp_path):
    (tmp_path / "engram").mkdir()
    error = Error(2, "<class 'ClientAppException'>:<'No query function is registered'>")
    message = stopped(error)
    assert "node 1 cannot serve this run" in message
    assert "No query function" in message
    assert re.search(rf"a worker started in .* imports {tmp_path}/engram first", message)


def test_names_clients_that_nobody_hosts():
    message = stopped(entry([0, 2]))
    assert "2 of 4 clients can take part, but 4 are needed" in message
    assert "clients [1, 3]: no node hosts it; start the missing nodes, or lower" in message
    assert "... 27 in all]" in stopped(entry([0, 1, 2]), num_clients=30)


def test_a_node_that_cannot_serve_is_no_reason_to_stop(warnings_of_engram):
    g = Scripted(entry([0]), Error(REFUSED, "no such file"), entry([2], fingerprint="0" * 16))
    attendance = Attendance(g, 3, patience=0)
    attendance.wait(1)
    assert attendance.roster().nodes == [1, None, None]
    assert "node 2 cannot serve this run: no such file; it is asked again" in (
        warnings_of_engram.messages
    )
    message = stopped(*g.answers, num_clients=3)
    assert "node 2 cannot serve this run: no such file" in message
    assert "node 3 runs 0000000000000000" in message


# --- Who comes late --------------------------------------------------------------------------


def test_clients_with_their_nodes_own_data_are_counted_in_the_first_row():
    g = Scripted(entry([0, 1], **{"own-data": True}), entry([2]))
    roster = begun(g, 3).roster()
    assert roster.own_data == roster.to_row()["own-data"] == 2


def test_begins_with_those_who_are_there_and_takes_in_who_comes_later(warnings_of_engram):
    g = Moving(entry([0, 1]), entry([2]), entry([3]))
    g.away = {2, 3}
    attendance = begun(g, 4, least=2)
    kind = Kind("float32[1,8,8]", 10)
    assert attendance.roster() == ([1, 1, None, None], [10, 10, 0, 0], kind, {}, {}, 0)
    assert attendance.away == dict.fromkeys([2, 3], "no node hosts it")
    assert (
        "without some clients, for now: clients [2, 3]: no node hosts it" in warnings_of_engram.text
    )
    assert not attendance.look()
    g.away = {1, 3}
    assert attendance.look()
    assert attendance.roster().nodes == [1, 1, 2, None]
    assert attendance.away == {**dict.fromkeys([0, 1], "off line"), 3: "no node hosts it"}
    assert "clients [2] have come, and take part from now on" in warnings_of_engram.messages
    g.away = ()
    assert attendance.look()
    assert attendance.away == {}
    assert not attendance.look()


def test_clients_are_called_by_the_names_that_their_nodes_say(warnings_of_engram):
    g = Moving(
        entry([0, 1], named=[0], names=["park"]),
        entry([2], named=[2], names=["elm"]),
        entry([1, 2, 4], named=[1, 2, 4], names=["park", "none", "elm"]),  # it comes too late
    )
    g.away = {2, 3}
    attendance = begun(g, 4, least=2)
    assert attendance.roster().names == {0: "park"}
    g.away = {3}
    assert attendance.look()
    assert "clients [elm] have come, and take part from now on" in warnings_of_engram.messages
    g.away = {1}
    assert attendance.look()
    assert attendance.roster().names == {0: "park (number 0)", 1: "park (number 1)", 2: "elm"}
    assert "clients [park (number 1)] are on other nodes now" in warnings_of_engram.messages
    assert "node 3 takes no part with clients [elm]: other" in warnings_of_engram.text


def test_who_comes_late_with_other_data_is_left_out(warnings_of_engram):
    g = Moving(entry([0]), entry([1], inputs="float32[1,9,9]"))
    g.away = {2}
    attendance = begun(g, 2, least=1)
    g.away = ()
    assert not attendance.look()
    assert attendance.roster().nodes == [1, None]
    reason = "it has inputs float32[1,9,9] and 10 outputs, and most nodes have inputs"
    assert attendance.away[1].startswith(reason)
    assert f"node 2 takes no part with clients [1]: {reason}" in warnings_of_engram.text


def test_waits_without_news_for_no_longer_than_its_patience(monkeypatch):
    clock = timed(monkeypatch)
    nodes = [entry([client]) for client in range(4)]
    attendance = begun(Coming(*nodes), 5, least=1, patience=30)
    assert 60 + 30 <= clock[0] < 60 + 31  # the last of the four came after 60
    assert attendance.roster().nodes == [1, 2, 3, 4, None]
    clock[0] = 0.0
    begun(Coming(*nodes), 4, least=1, patience=30)
    assert 60 <= clock[0] < 61  # all are there
    clock[0] = 0.0
    with pytest.raises(RunStopped, match=r"2 of 5 clients can take part, but 3 are needed"):
        begun(Coming(*nodes[:2]), 5, least=3, patience=30)
    assert 20 + 30 <= clock[0] < 20 + 31


def test_a_node_that_is_busy_says_so_and_is_asked_again(monkeypatch, warnings_of_engram):
    g = Scripted(entry([0]), Error(BUSY, "it is in round 7 of run 5"))
    told = "it is in round 7 of run 5"
    attendance = begun(g, 2, least=1)
    (line,) = (m for m in warnings_of_engram.messages if m.endswith("it is asked again"))
    assert line == f"node 2 is busy: {told}; it is asked again"
    assert f"node 2 is busy: {told}" in stopped(*g.answers, num_clients=2)
    g.answers = (entry([0]), entry([1]))
    assert not attendance.look()  # it was asked just now
    later = roster_query.time.monotonic() + 6
    monkeypatch.setattr(roster_query.time, "monotonic", lambda: later)
    assert attendance.look()
    assert attendance.roster().nodes == [1, 2]


def test_a_run_waits_for_a_site_that_has_yet_to_approve_it(monkeypatch, warnings_of_engram):
    """After a minute without news it goes on waiting, and begins once the site has approved."""
    clock, told = [0.0], "waits for its site's approval: there, engram approve X 0123"
    g = Moving(entry([0]), Error(AWAITED, told))

    def sleep(seconds):
        clock[0] += 10
        if clock[0] > 1000:
            g.answers = (entry([0]), entry([1]))

    monkeypatch.setattr(roster.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(roster.time, "sleep", sleep)
    attendance = begun(g, 2, patience=60)
    assert attendance.roster().nodes == [1, 2]
    assert clock[0] > 1000
    assert f"node 2 {told}; it is asked again" in warnings_of_engram.messages
    assert not any("busy" in line for line in warnings_of_engram.messages)


def test_a_run_that_may_begin_with_fewer_does_not_wait_for_approval(monkeypatch):
    clock = timed(monkeypatch, 10)
    g = Moving(entry([0]), Error(AWAITED, "waits for its site's approval"))
    assert begun(g, 2, least=1, patience=60).roster().nodes == [1, None]
    assert clock[0] < 100


def test_no_site_is_waited_for_longer_than_a_week(monkeypatch):
    clock = timed(monkeypatch, 7200)
    g = Moving(entry([0]), Error(AWAITED, "waits for its site's approval"))
    with pytest.raises(RunStopped, match="node 2 waits for its site's approval"):
        begun(g, 2, patience=60)
    assert 6.9 < clock[0] / 86400 < 7.3


def test_nobody_is_waited_for_once_it_is_known_who_takes_part(monkeypatch):
    nodes = entry([0]), Error(REFUSED, "no such file"), entry([2])
    attendance = begun(named(NAMES, *nodes), 3, least=2, patience=60)  # and yet at once
    assert attendance.roster().nodes == [1, None, 3]
    assert attendance.away == {1: "its node cannot serve this run: no such file"}
    refused = r"needed; clients \[1\]: its node cannot serve this run: no such file; 3 of"
    with pytest.raises(RunStopped, match=refused):
        begun(named(NAMES, *nodes), 3, patience=60)
    clock = timed(monkeypatch)
    with pytest.raises(RunStopped, match=r"; node 1, node 2 cannot serve this run: no rows; start"):
        begun(Coming(*[Error(REFUSED, "no rows")] * 3), 3, patience=60)
    assert 20 <= clock[0] < 21  # the third would come after 40


def test_it_is_said_whom_a_run_waits_for(monkeypatch, warnings_of_engram):
    now = [0.0]
    monkeypatch.setattr(roster.time, "monotonic", lambda: now[0])
    whom, waiting = iter(["clients [1]: a", "clients [1]: a", "clients [1]: b", ""]), Waiting()
    for now[0] in range(14):
        waiting.tell(lambda: next(whom))
    told = ["waiting for clients [1]: a", "waiting for clients [1]: b"]
    assert warnings_of_engram.messages == told


def test_a_node_that_does_not_answer_in_time_is_asked_again():
    class Slow(Scripted):
        def ask(self, messages, *, timeout=None):
            answered.append(list(super().ask(messages, timeout=60)))
            return answered[-1][1:] if len(answered) == 1 else answered[-1]

    answered = []
    roster = query_roster(Slow(entry([0, 2]), entry([1, 3])), 4)
    assert roster.nodes == [1, 2, 1, 2]
    assert [len(replies) for replies in answered] == [2, 1]
