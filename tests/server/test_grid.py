"""What a round waits for, what is sent again, and who is not asked: on a clock of our own."""

import logging

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from engram.link.server.membership import Membership
from engram.link.server.registration import remove_client, roll
from engram.server.roster_query import Answers
from engram.settings.errors import AWAITED, UNUSABLE
from engram.wire.flower import HostGrid
from engram.wire.messages import EVALUATE, TRAIN, Error
from engram.wire.wire import ARRAYS, ROSTER_QUERY
from tests.link.server.federations import make
from tests.server.links import (
    ANSWER,
    CUT_OFF,
    NODE_GONE,
    RUBBISH,
    Link,
    Node,
    answered,
    ask,
    error_instead,
    exchange,
    off_line,
    patient,
)


def test_returns_when_the_slowest_has_answered(clock):
    nodes = {1: Node(0.1), 2: Node(2.0), 3: Node(0.5)}
    who, took, grid = exchange(clock, nodes)
    assert who == [1, 2, 3]
    assert 2.0 <= took < 2.6
    latencies = grid.last.latencies
    assert latencies[1] < latencies[3] < latencies[2]
    costs = grid.last.costs()
    parts = [costs[f"seconds-{part}"] for part in ("training", "transfer", "waiting")]
    assert sum(parts) == pytest.approx(took)
    assert costs["bytes-sent"] > 3 * 3 * 4 * 8  # three models of 3 x 4 float64
    assert costs["bytes-received"] > 3 * 2 * 8
    grid.stage(2, training=True)
    assert exchange(clock, nodes, grid=grid)[2].costs["bytes-sent"] == costs["bytes-sent"]
    assert grid.get_node_ids() == [1, 2, 3]


def test_a_node_that_died_and_came_back_is_asked_again(clock):
    begin = clock.now
    nodes = {1: Node(1.0), 2: Node(3.0, away=[(begin + 1, begin + 5)])}
    who, took, _ = exchange(clock, nodes, least=2)
    assert who == [1, 2]
    assert 8.0 <= took < 10.0  # back after 5, asked again within a look, 3 for the work
    assert nodes[2].handled == [TRAIN] * 2


def test_a_node_that_is_gone_costs_one_timeout_and_later_rounds_nothing(clock):
    nodes = {1: Node(1.0), 2: Node(1.0), 3: Node(5.0, away=[(clock.now + 2, np.inf)])}
    who, took, grid = exchange(clock, nodes, least=3, timeout=30)
    assert who == [1, 2]
    assert 30 <= took < 31
    for _ in range(3):
        who, took, grid = exchange(clock, nodes, grid=grid, timeout=30)
        assert who == [1, 2]
        assert took < 2


def test_a_straggler_spoils_its_round_only_and_is_asked_again_when_it_is_free(clock):
    nodes = {1: Node(1.0), 2: Node(25.0)}
    who, took, grid = exchange(clock, nodes, timeout=10)
    assert who == [1]
    assert took >= 10
    assert grid.get_node_ids() == [1]
    nodes[2].work = 1.0
    rounds = 0
    while grid.get_node_ids() == [1]:
        who, took, _ = exchange(clock, nodes, grid=grid, timeout=10)
        assert (who, took < 2) == ([1], True)
        rounds += 1
    assert 8 <= rounds <= 16  # the 15 seconds or so that it was late
    assert exchange(clock, nodes, grid=grid, timeout=10)[0] == [1, 2]
    assert nodes[2].handled == [TRAIN, ROSTER_QUERY, TRAIN]


def test_a_roster_query_that_takes_longer_than_it_is_waited_for_is_answered_once(clock):
    nodes = {1: Node(), 2: Node()}
    nodes[2].free = clock.now + 5  # it loads data
    grid = patient(Link(clock, nodes), least=1)
    queries = ask([1, 2], ROSTER_QUERY)
    for query in queries:
        del query.content[ARRAYS]
    assert answered(grid.ask(queries, timeout=2)) == [1]
    clock.now += 10
    assert grid.get_node_ids() == [1, 2]
    assert list(grid.said) == [2]
    assert nodes[2].handled == [ROSTER_QUERY]


def test_it_is_said_once_which_clients_a_round_waits_for(clock, warnings_of_engram):
    gone = [(clock.now + 1, clock.now + 200)]
    nodes = {1: Node(1.0), 2: Node(1.5, away=gone), 3: Node(80.0)}
    patient(Link(clock, nodes), least=3).ask([*ask([1, 2]), *ask([3], several=0)], timeout=100)
    assert [line for line in warnings_of_engram.messages if "waiting" in line] == [
        "waiting for clients [2]: their node is off line",
        "waiting for clients of a node: at work",
    ]
    warnings_of_engram.clear()
    exchange(clock, {1: Node(3.0), 2: Node(50.0)}, least=2)
    assert not warnings_of_engram.messages


def test_what_nobody_fetched_in_its_round_is_never_delivered(clock):
    nodes = {1: Node(1.0), 2: Node(1.0, away=[(clock.now + 0.01, clock.now + 40)])}
    grid = patient(Link(clock, nodes), least=2)
    questions = ask([1, 2])
    clock.now += 0.02  # it has gone off line in between
    assert answered(grid.ask(questions, timeout=20)) == [1]
    clock.now += 60
    while 2 not in grid.get_node_ids():
        clock.now += 1
    assert TRAIN not in nodes[2].handled


def test_works_over_a_grid_that_knows_no_activations(clock):
    class Plain(Link):
        get_nodes = Grid.get_nodes  # Flower's own, of nothing but the nodes' numbers

        def get_node_ids(self):
            return list(self.nodes)

    nodes = {1: Node(), 2: Node(work=90)}
    who, took, _ = exchange(clock, nodes, grid=patient(Plain(clock, nodes), least=1))
    assert who == [1]
    assert took >= 60


def test_enough_is_counted_in_clients(clock):
    nodes = {1: Node(1.0), 2: Node(5.0, away=[(clock.now + 2, np.inf)])}
    grid = patient(Link(clock, nodes), least=3)
    start = clock.now
    assert answered(grid.ask(ask([1, 2], several=3), timeout=60)) == [1]
    assert clock.now - start < 5


def test_what_a_superlink_deleted_is_sent_again(clock):
    # The network was away, and the node was not: no new activation, but its message is gone.
    class Forgetful(Link):
        def pull_messages(self, message_ids):
            if self.clock.now < begin + 2:
                return [off_line(self.messages[name][3]) for name in message_ids]
            return super().pull_messages(message_ids)

    begin = clock.now
    nodes = {1: Node(1.0)}
    grid = patient(Forgetful(clock, nodes), least=1)
    assert answered(grid.ask(ask([1]), timeout=60)) == [1]
    assert len(nodes[1].handled) >= 2


def test_replies_to_nothing_that_was_asked_are_not_taken(clock):
    class Chatty(Link):
        def pull_messages(self, message_ids):
            return [*super().pull_messages(message_ids), stray]

    stray = _reply()
    grid = patient(Chatty(clock, {1: Node()}), least=1)
    assert answered(grid.ask(ask([1]), timeout=60)) == [1]


def test_a_node_that_is_busy_for_a_part_of_a_round_takes_part_in_it(clock):
    nodes = {1: Node(1.0), 2: Node(1.0, busy_until=clock.now + 12)}
    begin = clock.now
    who, _, grid = exchange(clock, nodes, timeout=60)
    assert who == [1, 2]
    assert 12 < clock.now - begin < 20
    assert grid.busy == {}
    assert exchange(clock, nodes, grid=grid, timeout=10)[0] == [1, 2]


def test_a_round_waits_for_a_sites_approval_only_as_long_as_it_needs_it(clock):
    waits = [Error(AWAITED, "waits for its site's approval: there, engram approve X 0123")] * 3
    begin, nodes = clock.now, {1: Node(1.0), 2: Node(1.0, says=[*waits])}
    who, _, grid = exchange(clock, nodes, least=2, timeout=60)
    assert who == [1, 2]  # once its site has approved, at the fourth time
    assert 15 < clock.now - begin < 25
    assert grid.busy == {}
    begin, nodes = clock.now, {1: Node(4.0), 2: Node(1.0, says=[*waits] * 99)}
    who, _, grid = exchange(clock, nodes, least=1, timeout=60)
    assert who == [1]
    assert clock.now - begin < 10  # there are enough without it
    assert grid.busy == {2: waits[0].reason}


def _reply():
    message = HostGrid(None).create_message(RecordDict(), TRAIN, 5, "")
    message.metadata.__dict__["_message_id"] = "never sent"
    return Message(RecordDict(), reply_to=message)


def test_a_node_that_says_it_is_busy_is_asked_again_until_it_is_free(clock):
    begin = clock.now
    nodes = {1: Node(1.0), 2: Node(25.0, busy_until=begin + 70)}
    who, _, grid = exchange(clock, nodes, timeout=10)
    assert who == [1]
    nodes[2].work = 1.0
    while grid.get_node_ids() == [1]:
        clock.now += 1
        if 30 < clock.now - begin < 70:
            assert grid.busy == {2: "round 7 of run 5"}
    assert 70 <= clock.now - begin <= 77
    assert grid.busy == {}
    assert nodes[2].handled.count(ROSTER_QUERY) <= 15  # and not without a pause
    assert exchange(clock, nodes, grid=grid, timeout=10)[0] == [1, 2]


def test_nothing_is_taken_from_a_node_that_was_removed_and_nobody_waits_for_it(clock, tmp_path):
    make(tmp_path / "fed", clients=3)

    class Taken(Link):
        def pull_messages(self, message_ids):
            if self.clock.now > begin + 3:  # node 2 has answered by then, and node 3 has not
                for client in {1, 2} & roll(server).members:
                    remove_client(server, f"client-{client}")
            return super().pull_messages(message_ids)

    begin, server = clock.now, tmp_path / "fed" / "server"
    link = Taken(clock, {1: Node(6.0), 2: Node(1.0), 3: Node(900.0)})
    grid = patient(link, least=3, membership=Membership(server, 3))
    assert exchange(clock, None, grid=grid, timeout=600)[0] == [1]
    assert clock.now - begin < 10


def test_the_reply_of_a_node_that_was_removed_is_none_of_those_that_suffice(clock, tmp_path):
    make(tmp_path / "fed", clients=3)

    class Removed(Link):
        def pull_messages(self, message_ids):
            if self.clock.now > back - 4 and 0 in roll(server).members:
                remove_client(server, "client-0")
            return super().pull_messages(message_ids)

    back, server = clock.now + 8, tmp_path / "fed" / "server"
    away = Node(1.0, away=[(clock.now + 0.5, back)])
    link = Removed(clock, {1: Node(1.0), 2: away, 3: Node(5.0)})
    grid = patient(link, least=2, membership=Membership(server, 3))
    assert exchange(clock, None, grid=grid)[0] == [2, 3]


def test_a_node_that_says_itself_that_it_is_away_is_not_asked_again_and_again(clock):
    nodes = {2: Node(says=[Error(NODE_GONE, "off line")] * 100)}
    who, took, _ = exchange(clock, nodes)
    assert who == []
    assert took < 2
    assert nodes[2].handled == [TRAIN]


def test_an_unusable_reply_costs_no_timeout_and_counts_as_none(clock):
    who, took, grid = exchange(clock, {1: Node(), 2: Node(says=[CUT_OFF])}, least=2)
    assert who == [1] == list(grid.last.latencies)
    assert took < 2


def test_a_useless_reply_is_none_of_those_that_suffice(clock):
    nodes = {1: Node(says=[RUBBISH]), 2: Node(3.0, away=[(clock.now + 2, clock.now + 5)])}
    assert exchange(clock, nodes, least=1)[0] == [2]


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "flwr.engram"]


@pytest.fixture
def log(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    return caplog


def rounds(clock, nodes, grid, count):
    """Who answered in each of so many rounds, of ten seconds each at least."""
    found = []
    for _ in range(count):
        found.append(exchange(clock, nodes, grid=grid, timeout=30)[0])
        clock.now += 10
    return found


def test_whose_replies_are_of_no_use_repeatedly_is_left_out_for_a_while(clock, log):
    nodes = {1: Node(), 2: Node(says=[RUBBISH, CUT_OFF])}
    grid = patient(Link(clock, nodes), least=1)
    assert exchange(clock, nodes, grid=grid)[0] == [1]
    assert "suspended" not in grid.costs
    clock.now += 1
    assert grid.get_node_ids() == [1, 2]  # once is no reason
    assert exchange(clock, nodes, grid=grid)[0] == [1]
    (line,) = lines(log)
    until = "1970-01-01 00:17:" + line.split("00:17:")[1][:2] + "+00:00"
    assert line == (
        f"node 2 (clients [2]) is left out until {until}, since its replies are unusable: "
        "3 of its 4 parts did not come"
    )
    told = {"clients": [2], "until": until, "reason": "3 of its 4 parts did not come"}
    assert grid.costs["suspended"] == {"2": told}
    assert Answers(grid, "").at_work(2) == "is left out: 3 of its 4 parts did not come"
    assert rounds(clock, nodes, grid, 5) == [[1]] * 5
    assert grid.costs["suspended"] == {"2": told}
    clock.now += 10
    assert rounds(clock, nodes, grid, 2) == [[1, 2]] * 2
    assert "suspended" not in grid.costs
    trains = [kind for kind in nodes[2].handled if kind == TRAIN]
    assert len(trains) == 4


def test_who_goes_on_so_is_left_out_for_longer_and_longer(clock):
    nodes = {1: Node(0.1), 2: Node(0.1, says=[RUBBISH] * 1000)}
    grid = patient(Link(clock, nodes), least=1)
    rounds(clock, nodes, grid, 2 * 360)
    asked = nodes[2].handled.count(TRAIN)
    assert 6 <= asked <= 10  # in two hours: 60, 120, ... seconds apart


def test_good_replies_in_between_do_not_help_unless_they_are_many(clock):
    nodes = {1: Node(0.1), 2: Node(0.1, says=[ANSWER, RUBBISH] * 20)}
    grid = patient(Link(clock, nodes), least=1)
    rounds(clock, nodes, grid, 360)
    assert nodes[2].handled.count(TRAIN) < 20
    nodes = {2: Node(0.1, says=[RUBBISH, *[ANSWER] * 10, RUBBISH])}
    grid = patient(Link(clock, nodes), least=1)
    assert rounds(clock, nodes, grid, 13)[-1] == [2]


def test_useless_answers_to_the_question_count_too(clock):
    class Babel(Link):
        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            return [error_instead(reply, UNUSABLE, "cut") for reply in found]

    nodes = {1: Node()}
    grid = patient(Babel(clock, nodes), least=1)
    rounds(clock, nodes, grid, 3)
    assert grid.suspensions.current()
    assert nodes[1].handled.count(TRAIN) == 1


class Stopped(Node):
    """A node that stands still for 20 of every 30 seconds, and is on line all the while."""

    def take(self, now, message):
        at, left = max(now, self.free), self.work
        while left > 0:
            if at % 30 < 20:
                at += 20 - at % 30
            step = min(left, 30 - at % 30)
            at, left = at + step, left - step
        self.handled.append(message.metadata.message_type)
        self.free = at
        return at


def buffered(clock, nodes, *, enough, seconds, timeout=600.0):
    """Rounds that end with ``enough`` replies; returns who answered in each, and when."""
    grid = patient(Link(clock, nodes), least=1)
    grid.enough, found = enough, []
    begin = clock.now
    while clock.now < begin + seconds:
        free = [node for node in grid.get_node_ids() if node not in grid.at_work]
        replies = grid.ask(ask(free), timeout=timeout)
        found.append((answered(replies), clock.now))
    return found, grid


def test_a_stopped_node_holds_no_round_where_some_replies_are_enough(clock):
    def nodes():
        return {1: Node(0.5), 2: Node(0.5), 3: Stopped(0.5)}

    there = nodes()
    found, _ = buffered(clock, there, enough=2, seconds=300)
    grid, waited, end = None, 0, clock.now + 300
    held = nodes()
    while clock.now < end:
        who, _, grid = exchange(clock, held, grid=grid, timeout=600)
        assert who == [1, 2, 3]
        waited += 1
    assert len(found) >= 3 * waited
    assert all(len(who) >= 2 for who, _ in found)
    merged = sum(3 in who for who, _ in found)
    # Each of its messages is answered, in a later round than the one that sent it.
    assert merged in (len(there[3].handled), len(there[3].handled) - 1)
    assert merged >= 50


def test_a_reply_of_a_former_round_is_taken_once_and_given_up_at_its_own_end(clock):
    nodes = {1: Node(1.0), 2: Node(7.5), 3: Node(30.0)}
    found, grid = buffered(clock, nodes, enough=1, seconds=27, timeout=20.0)
    times = [at for who, at in found if 2 in who]
    assert len(times) == 3  # after 7.5, 15 and 22.5 seconds
    assert not any(3 in who for who, _ in found)
    assert grid.at_work == {2}
    assert nodes[3].handled == [TRAIN, ROSTER_QUERY]  # as who missed a round


def test_an_evaluation_waits_for_all_and_takes_no_reply_to_training(clock):
    nodes = {1: Node(1.0), 2: Node(5.0)}
    _, grid = buffered(clock, nodes, enough=1, seconds=0.5)
    assert grid.at_work == {2}
    replies = list(grid.ask(ask([1, 2], EVALUATE), timeout=60))
    assert answered(replies) == [1, 2]
    assert all(reply.question.kind == EVALUATE for reply in replies)
    assert answered(grid.ask(ask([1]), timeout=60)) in ([2], [1, 2])
