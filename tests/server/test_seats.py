"""Seats of a run: the node of each client, among claims, kinds of data, names and rows."""

import shutil
from pathlib import Path

import pytest

from engram.core.standardization import Moments, Standard
from engram.data.schema.columns import Kind, Told
from engram.link.server.identity import new_client_key
from engram.link.server.membership import Membership
from engram.link.server.registration import remove_client
from engram.server.roster import Attendance, query_roster
from engram.settings.errors import RunStopped
from engram.wire.messages import Error
from engram.wire.roster import describe_node
from tests.link.server.federations import make
from tests.server.rosters import (
    NAMES,
    Coming,
    Moving,
    Scripted,
    begun,
    entry,
    few_rows,
    named,
    stopped,
    timed,
    warned,
)


def test_who_comes_first_keeps_a_client_that_two_nodes_claim(warnings_of_engram):
    g = Scripted(entry([0, 1]), entry([1, 2, 3]))
    assert query_roster(g, 4).nodes == [1, 1, 2, 2]
    (told,) = warned(warnings_of_engram)
    assert told == "node 2 takes no part with clients [1]: other nodes host them already"


def test_data_of_another_kind_are_left_out(warnings_of_engram):
    other = entry([2, 3], outputs=5)
    question = stopped(entry([0]), entry([1]), other)
    assert "2 of 4 clients can take part, but 4 are needed" in question
    assert "clients [2, 3]: it has inputs float32[1,8,8] and 5 outputs, and most" in question
    attendance = Attendance(Scripted(other, entry([0, 1]), entry([4, 5])), 4, patience=0)
    attendance.wait(2)  # what most nodes with clients of the run have; the first of equals
    assert attendance.roster().nodes == [2, 2, None, None]
    assert attendance.roster().kind.outputs == 10
    assert "node 1 takes no part with clients [2, 3]: it has" in warnings_of_engram.text
    kind = Kind("float32[1,8,8]", 5)
    attendance = Attendance(Scripted(other, entry([0, 1])), 4, kind=kind, patience=0)
    attendance.wait(2)
    assert attendance.roster() == ([None, None, 1, 1], [0, 0, 10, 10], kind, {}, {}, 0)


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
        named(("north", "south"), *claims),
    ):
        assert query_roster(g, 3).nodes == [1, 1, 2]


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


def test_nobody_can_say_of_others_clients_that_they_will_not_come(monkeypatch):
    timed(monkeypatch)
    liar = few_rows([], range(3))
    attendance = begun(Coming(liar, entry([0]), entry([1])), 3, least=2, patience=30)
    assert attendance.roster().nodes == [2, 3, None]


@pytest.mark.parametrize(
    ("removed", "says"), [((), "2 of the federation's 3"), ((1, 2), "1 of the federation's 1")]
)
def test_says_how_many_nodes_are_on_line(removed, says):
    make(clients=3)
    for client in removed:
        remove_client(Path("fed/server"), str(client))
    here = [entry([client]) for client in range(2) if client not in removed]
    with pytest.raises(RunStopped) as caught:
        begun(named(("client-0", "client-1"), *here), 3)
    gone = ", 2 removed or left" if removed else ""
    assert f"; {says} nodes are on line{gone}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nodes_of_removed_clients_are_barred_until_they_have_other_keys():
    make(clients=3)
    federation = Membership(Path("fed/server"), 3)
    assert (federation.members(), federation.barred()) == ({0, 1, 2}, set())
    remove_client(federation.folder, "1")
    shutil.copy("fed/client-2/client.pub", "fed/server/clients/client-2.71.left")
    assert (federation.members(), federation.barred()) == ({0}, {2, 3})
    new_client_key(Path("fed"), 1)
    assert (federation.members(), federation.barred()) == ({0, 1}, {3})
