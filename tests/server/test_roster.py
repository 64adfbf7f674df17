"""The roster query: who is there, whether all run this source, and who comes late."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from engram.units import Moments, Standard
from federation.errors import AWAITED, RunStopped
from federation.fingerprint import fingerprint, source_root
from federation.roster import describe_node
from federation.schema import Kind, Schema, Told
from federation.wire import BUSY, REFUSED
from server import answers, roster
from server.grid import PatientGrid
from server.membership import Membership
from server.roster import Attendance, Waiting, query_roster
from simulations.grid import InProcessGrid
from tests.support import grid, small, trainer


class Scripted(InProcessGrid):
    """Nodes whose answers to the roster query a test writes."""

    def __init__(self, *answers):
        super().__init__(trainer(small()), [[] for _ in answers])
        self.answers = answers

    def _answer(self, kind, requests):
        return [
            Message(self.answers[r.message.metadata.dst_node_id - 1], reply_to=r.message)
            for r in requests
        ]


def stopped(*answers, num_clients=4):
    with pytest.raises(RunStopped) as caught:
        query_roster(Scripted(*answers), num_clients, patience=0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def warned(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def entry(clients, **change):
    content = describe_node(dict.fromkeys(clients, 10), Kind("float32[1,8,8]", 10))
    content["roster"] = ConfigRecord({**content["roster"], **change})
    return content


def test_maps_clients_to_nodes():
    roster = query_roster(grid(trainer(small()), 3), 20)
    assert roster.nodes[:5] == [1, 2, 3, 1, 2]
    assert roster.examples == [32] * 10 + [16] * 10  # a fifth is held out
    assert roster.kind == Kind("float32[1,8,8]", 10)
    assert roster.by_node([7, 0, 4]) == {1: [0], 2: [4, 7]}


def test_nodes_of_this_process_are_not_waited_for(monkeypatch):
    monkeypatch.setattr("server.roster.time.sleep", lambda seconds: pytest.fail("it waits"))
    with pytest.raises(RunStopped, match=r"1 of 4 clients can take part"):
        query_roster(Scripted(entry([0]), entry([])), 4)


def test_names_what_runs_instead_and_from_where():
    message = stopped(entry([0, 1, 2, 3], fingerprint="0123456789abcdef", source="/somewhere/else"))
    assert "node 1 runs 0123456789abcdef from /somewhere/else" in message
    assert f"this coordinator runs {fingerprint()} from {source_root()}" in message


def test_names_a_node_that_answers_something_else():
    assert "node 1 runs something else" in stopped(RecordDict())
    assert "runs something else" in stopped(entry([0], examples="all"))


def test_names_a_folder_that_a_worker_would_import_instead(tmp_path):
    (tmp_path / "client").mkdir()
    error = Error(2, "<class 'ClientAppException'>:<'No query function is registered'>")
    message = stopped(error)
    assert "node 1 cannot serve this run" in message
    assert "No query function" in message
    assert re.search(rf"a worker started in .* imports {tmp_path}/client first", message)


def test_who_comes_first_keeps_a_client_that_two_nodes_claim(warnings_of_engram):
    g = Scripted(entry([0, 1]), entry([1, 2, 3]))
    assert query_roster(g, 4).nodes == [1, 1, 2, 2]
    (told,) = warned(warnings_of_engram)
    assert told == "node 2 takes no part with clients [1]: other nodes host them already"


def test_data_of_another_kind_are_left_out(warnings_of_engram):
    other = entry([2, 3], outputs=5)
    message = stopped(entry([0]), entry([1]), other)
    assert "2 of 4 clients can take part, but 4 are needed" in message
    assert "clients [2, 3]: it has inputs float32[1,8,8] and 5 outputs, and most" in message
    attendance = Attendance(Scripted(other, entry([0, 1]), entry([4, 5])), 4, patience=0)
    attendance.wait(2)  # what most nodes with clients of the run have; the first of equals
    assert attendance.roster().nodes == [2, 2, None, None]
    assert attendance.roster().kind.outputs == 10
    assert "node 1 takes no part with clients [2, 3]: it has" in warnings_of_engram.text
    attendance = Attendance(
        Scripted(other, entry([0, 1])), 4, kind=Kind("float32[1,8,8]", 5), patience=0
    )
    attendance.wait(2)
    assert attendance.roster() == (
        [None, None, 1, 1],
        [0, 0, 10, 10],
        Kind("float32[1,8,8]", 5),
        {},
        {},
    )


def few_rows(clients, left_out, unscored=()):
    """The answer of a node some of whose clients, called s0, s1, ..., have too few rows."""
    return describe_node(
        dict.fromkeys(clients, 10),
        Kind("float32[1,8,8]", 10),
        {client: f"s{client}" for client in (*clients, *left_out)},
        left_out=dict.fromkeys(left_out, "it has no training rows"),
        unscored=dict.fromkeys(unscored, "it has no test rows to be scored on"),
    )


def test_clients_with_too_few_rows_are_left_out_by_name_and_the_run_goes_on(warnings_of_engram):
    nodes = Scripted(few_rows([0], [1]), few_rows([2, 3], [], [3]))
    attendance = Attendance(nodes, 4, patience=100)  # it waits for nobody
    attendance.wait(3)
    roster = attendance.roster()
    assert roster.nodes == [1, None, 2, 2]
    assert roster.names == {client: f"s{client}" for client in range(4)}
    assert attendance.away == {1: "it has no training rows"}
    assert attendance.notes() == {
        "left-out": {"s1": "it has no training rows"},
        "unscored": {"s3": "it has no test rows to be scored on"},
    }
    assert warnings_of_engram.messages == [
        "the run goes on without some clients: clients [s1]: it has no training rows",
        "some clients train and are not scored: clients [s3]: it has no test rows to be scored on",
    ]
    with pytest.raises(RunStopped) as caught:
        Attendance(nodes, 4, patience=0).wait(4)
    assert "3 of 4 clients can take part, but 4 are needed; clients [s1]: it has" in str(
        caught.value
    )


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


class Moving(Scripted):
    """Some of its nodes are away."""

    away, joins = (), True

    def get_node_ids(self):
        return [node for node in super().get_node_ids() if node not in self.away]


def begun(g, num_clients, least=None, **options):
    attendance = Attendance(g, num_clients, **{"patience": 0, **options})
    attendance.wait(least or num_clients)
    return attendance


def test_begins_with_those_who_are_there_and_takes_in_who_comes_later(caplog, warnings_of_engram):
    g = Moving(entry([0, 1]), entry([2]), entry([3]))
    g.away = {2, 3}
    caplog.set_level("INFO", logger="flwr.engram")
    attendance = begun(g, 4, least=2)
    assert attendance.roster() == (
        [1, 1, None, None],
        [10, 10, 0, 0],
        Kind("float32[1,8,8]", 10),
        {},
        {},
    )
    assert attendance.away == dict.fromkeys([2, 3], "no node hosts it")
    assert "without some clients, for now: clients [2, 3]: no node hosts it" in caplog.text
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


def test_clients_are_called_by_the_names_that_their_nodes_say(caplog, warnings_of_engram):
    caplog.set_level("INFO", logger="flwr.engram")
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
    assert "clients [elm] have come, and take part from now on" in caplog.messages
    g.away = {1}
    assert attendance.look()
    assert attendance.roster().names == {0: "park (number 0)", 1: "park (number 1)", 2: "elm"}
    assert "clients [park (number 1)] are on other nodes now" in warnings_of_engram.messages
    assert "node 3 takes no part with clients [elm]: other" in warnings_of_engram.text


@pytest.mark.parametrize(
    "change",
    [{"named": [7], "names": ["x"]}, {"named": [0], "names": []}, {"named": [0], "names": [b"x"]}],
)
def test_names_of_nobodys_clients_are_refused(change):
    assert "runs something else" in stopped(entry([0, 1], **change), num_clients=2)


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
    clock = [0.0]
    monkeypatch.setattr(answers.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(answers.time, "sleep", lambda s: clock.__setitem__(0, clock[0] + s))

    class Coming(Moving):
        def get_node_ids(self):
            self.away = {node for node in self._hosts if clock[0] < 20 * (node - 1)}
            return super().get_node_ids()

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


def test_nobody_can_say_of_others_clients_that_they_will_not_come(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(answers.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(answers.time, "sleep", lambda s: clock.__setitem__(0, clock[0] + s))

    class Coming(Moving):
        def get_node_ids(self):
            self.away = {node for node in self._hosts if clock[0] < 20 * (node - 1)}
            return super().get_node_ids()

    liar = few_rows([], range(3))
    attendance = begun(Coming(liar, entry([0]), entry([1])), 3, least=2, patience=30)
    assert attendance.roster().nodes == [2, 3, None]


def test_tables_with_the_same_columns_may_be_of_another_kind(warnings_of_engram):
    table = {
        "inputs": "",
        "outputs": 0,
        "schema": json.dumps(Schema.of_numbers(["age", "dose"]).to_json()),
    }
    usual = [entry([client], **table) for client in (0, 1)]
    other = entry([2], **table | {"inputs": "float32[2]"})
    assert begun(Scripted(*usual, other), 3, least=2).roster().nodes == [1, 2, None]
    (told,) = (line for line in warned(warnings_of_engram) if "takes no part" in line)
    assert told == (
        "node 3 takes no part with clients [2]: it has inputs float32[2] and 0 outputs, and "
        "most nodes have a table of 2 columns"
    )


def test_of_nodes_that_tell_unlike_moments_most_decide(warnings_of_engram):
    def telling(client, *means):
        told = Told(targets=Moments(10, means, (10.0,) * len(means)))
        kind = Kind("float32[3]", 2)
        return describe_node({client: 10}, kind, told=told)

    nodes = [telling(0, 1.0), telling(1, 1.0, 2.0), telling(2, 3.0, 4.0), telling(3, 1e30, 0.0)]
    units = begun(Scripted(*nodes), 4).roster().kind.units
    # Sums of squares of 10 each around means of 1 and 3, of 2 and 4.
    assert units.targets == Standard((2.0, 3.0), (2**0.5, 2**0.5))
    odd = [line for line in warned(warnings_of_engram) if "has no part in the units" in line]
    assert [line.split(" has")[0] for line in odd] == ["node 1", "node 4"]


def test_a_client_that_is_listed_twice_is_refused():
    hosted = entry([0, 1])
    hosted["roster"]["clients"] = [0, 0]
    assert "runs something else" in stopped(hosted, num_clients=2)
    twice = {"named": [0, 0], "names": ["elm", "park"]}
    assert "runs something else" in stopped(entry([0, 1], **twice), num_clients=2)


def test_another_nodes_answer_does_not_count():
    class Forged(Scripted):
        def send_and_receive(self, messages, *, timeout=None):
            found = list(super().send_and_receive(messages))
            forged = Message(entry([0, 1]), reply_to=next(iter(messages)))
            forged.metadata.__dict__["_src_node_id"] = 2
            return [*found, forged]

    assert query_roster(Forged(entry([0]), entry([1])), 2).nodes == [1, 2]


def test_a_client_moves_when_its_node_is_away_and_another_hosts_it():
    g = Moving(entry([0, 2]), entry([1, 3]), entry([1, 3]), entry([0, 2]), Error(2, "boom"))
    g.away = {3, 4, 5}
    attendance = begun(g, 4)

    def nodes_without(*away):
        g.away = set(away)
        found = attendance.look()
        return found, attendance.roster().nodes

    assert nodes_without(3, 4, 5) == (False, [1, 2, 1, 2])
    assert nodes_without(4) == (False, [1, 2, 1, 2])  # the dead node is still taken for alive
    assert nodes_without(2, 4) == (True, [1, 3, 1, 3])  # and node 5 is left alone
    assert nodes_without(2) == (False, [1, 3, 1, 3])  # node 1 is still there
    g.answers = [None] * 5  # nobody who serves is asked twice
    assert nodes_without() == (False, [1, 3, 1, 3])
    assert nodes_without(1, 2) == (True, [4, 3, 4, 3])
    assert nodes_without(3, 4) == (True, [1, 2, 1, 2])


def test_a_client_with_other_data_is_not_the_one_that_was_there():
    g = Moving(entry([0, 1]), entry([0, 1], examples=[10, 11]))
    g.away = {2}
    attendance = begun(g, 2)
    g.away = {1}
    assert attendance.look()
    assert attendance.roster().nodes == [2, 1]


def test_a_node_that_is_busy_says_so_and_is_asked_again(monkeypatch, warnings_of_engram):
    g = Scripted(entry([0]), Error(BUSY, "it is in round 7 of run 5"))
    told = "it is in round 7 of run 5"
    attendance = begun(g, 2, least=1)
    (line,) = (m for m in warnings_of_engram.messages if m.endswith("it is asked again"))
    assert line == f"node 2 is busy: {told}; it is asked again"
    assert f"node 2 is busy: {told}" in stopped(*g.answers, num_clients=2)
    g.answers = (entry([0]), entry([1]))
    assert not attendance.look()  # it was asked just now
    later = answers.time.monotonic() + 6
    monkeypatch.setattr(answers.time, "monotonic", lambda: later)
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
    clock = [0.0]
    monkeypatch.setattr(roster.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(roster.time, "sleep", lambda s: clock.__setitem__(0, clock[0] + 10))
    g = Moving(entry([0]), Error(AWAITED, "waits for its site's approval"))
    assert begun(g, 2, least=1, patience=60).roster().nodes == [1, None]
    assert clock[0] < 100


def test_no_site_is_waited_for_longer_than_a_week(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(roster.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(roster.time, "sleep", lambda s: clock.__setitem__(0, clock[0] + 7200))
    g = Moving(entry([0]), Error(AWAITED, "waits for its site's approval"))
    with pytest.raises(RunStopped, match="node 2 waits for its site's approval"):
        begun(g, 2, patience=60)
    assert 6.9 < clock[0] / 86400 < 7.3


# --- Nodes that the SuperLink knows by name --------------------------------------------------


class Named(Moving):
    """Nodes whose keys were registered under names."""

    names: tuple[str, ...] = ()

    def get_nodes(self):
        called = dict(enumerate(self.names, start=1))
        return [
            SimpleNamespace(node_id=n, last_activated_at="", name=called.get(n, ""))
            for n in self.get_node_ids()
        ]


def named(names, *nodes, clients=3, **options):
    g = Named(*nodes)
    g.names = names
    return PatientGrid(g, least=1, membership=Membership(Path("fed/server"), clients, **options))


NAMES = ("client-0", "client-1", "client-2")


def test_a_node_hosts_the_clients_of_its_name_and_no_others(warnings_of_engram):
    liar, honest = entry([0, 1, 2]), (entry([1]), entry([2]))
    attendance = begun(named(NAMES, liar, *honest), 3)
    assert attendance.roster().nodes == [1, 2, 3]
    (told,) = warned(warnings_of_engram)
    assert told.startswith(
        "client-0 (node 1) says that it hosts clients [1, 2], which belong to other nodes"
    )
    # It does not get them by coming first, or alone, either.
    attendance = begun(named(NAMES, liar), 3, least=1)
    assert attendance.roster().nodes == [1, None, None]


def test_a_node_hosts_every_mth_client_from_its_own():
    nodes = [entry(range(i, 50, 3)) for i in range(3)]
    assert query_roster(named(NAMES, *nodes), 50).nodes == [1 + c % 3 for c in range(50)]
    # One was added, and of two it is not known yet how many there are.
    nodes = [entry(range(i, 8, 3)) for i in (0, 1)] + [entry([2, 6]), entry([3, 7])]
    attendance = begun(named((*NAMES, "client-3"), *nodes, clients=4), 8, least=1)
    assert attendance.roster().nodes == [1, 2, 3, 4, None, None, 3, 4]


def test_without_names_who_comes_first_keeps_a_client():
    claims = entry([0, 1]), entry([1, 2])
    for g in (
        named((), *claims),
        named(("client-1", "client-0"), *claims, insecure=True),
        named(("north", "south"), *claims),
    ):
        assert query_roster(g, 3).nodes == [1, 1, 2]


def test_nobody_is_waited_for_when_all_who_are_registered_have_answered():
    nodes = entry([0]), Error(REFUSED, "no such file"), entry([2])
    attendance = begun(named(NAMES, *nodes), 3, least=2, patience=60)  # and yet at once
    assert attendance.roster().nodes == [1, None, 3]
    assert attendance.away == {1: "its node cannot serve this run: no such file"}
    with pytest.raises(RunStopped, match=r"client-1 \(node 2\) cannot serve this run: no such"):
        begun(named(NAMES, *nodes), 3, patience=60)


def test_it_is_said_whom_a_run_waits_for(monkeypatch, warnings_of_engram):
    now = [0.0]
    monkeypatch.setattr(roster.time, "monotonic", lambda: now[0])
    whom, waiting = iter(["clients [1]: a", "clients [1]: a", "clients [1]: b", ""]), Waiting()
    for now[0] in range(14):
        waiting.tell(lambda: next(whom))
    told = ["waiting for clients [1]: a", "waiting for clients [1]: b"]
    assert warnings_of_engram.messages == told


@pytest.mark.parametrize(
    ("clients", "examples"),
    [([0, 1], [5, -5]), ([0, 1], [0, 5]), ([0, 1], [2**62, 5]), ([-1, 0], [5, 5])],
)
def test_impossible_numbers_are_refused(clients, examples):
    assert "runs something else" in stopped(entry(clients, examples=examples), num_clients=2)


def test_a_node_that_does_not_answer_in_time_is_asked_again():
    class Slow(Scripted):
        def send_and_receive(self, messages, *, timeout=None):
            answered.append(list(super().send_and_receive(messages)))
            return answered[-1][1:] if len(answered) == 1 else answered[-1]

    answered = []
    roster = query_roster(Slow(entry([0, 2]), entry([1, 3])), 4)
    assert roster.nodes == [1, 2, 1, 2]
    assert [len(replies) for replies in answered] == [2, 1]
