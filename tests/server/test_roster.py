"""The roster query: who is there, and whether all run this source."""

import re

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from federation.errors import RunStopped
from federation.fingerprint import fingerprint, source_root
from federation.roster import describe_node
from server.roster import Movers, query_roster
from simulations.grid import InProcessGrid
from tests.support import grid, small, trainer


class Scripted(InProcessGrid):
    """Nodes whose answers to the roster query a test writes."""

    def __init__(self, *answers):
        super().__init__(trainer(small()), [[] for _ in answers])
        self.answers = answers

    def _answer(self, kind, requests):  # noqa: ARG002 - as what it stands in for
        return [
            Message(self.answers[r.message.metadata.dst_node_id - 1], reply_to=r.message)
            for r in requests
        ]


def stopped(*answers, num_clients=4):
    with pytest.raises(RunStopped) as caught:
        query_roster(Scripted(*answers), num_clients, patience=0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def entry(clients, **change):
    content = describe_node(dict.fromkeys(clients, 10), (1, 8, 8), 10)
    content["roster"] = ConfigRecord({**content["roster"], **change})
    return content


def test_maps_clients_to_nodes():
    roster = query_roster(grid(trainer(small()), 3), 20)
    assert roster.nodes[:5] == [1, 2, 3, 1, 2]
    assert roster.examples == [40] * 10 + [20] * 10
    assert (roster.input_shape, roster.num_classes) == ((1, 8, 8), 10)
    assert roster.by_node([7, 0, 4]) == {1: [0], 2: [4, 7]}


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


def test_refuses_a_client_that_two_nodes_host():
    assert "client 1 is hosted by two nodes, 1 and 2" in stopped(entry([0, 1]), entry([1, 2, 3]))


def test_refuses_data_of_different_kinds():
    message = stopped(entry([0, 1]), entry([2, 3], **{"num-classes": 5}))
    assert "nodes hold data of different kinds" in message


def test_names_clients_that_nobody_hosts():
    message = stopped(entry([0, 2]))
    assert "clients [1, 3] are hosted by none of the 1 nodes" in message
    assert "... 27 in all]" in stopped(entry([0, 1, 2]), num_clients=30)


class Moving(Scripted):
    """Some of its nodes are away."""

    away = ()

    def get_node_ids(self):
        return [node for node in super().get_node_ids() if node not in self.away]


def test_a_client_moves_when_its_node_is_away_and_another_hosts_it():
    g = Moving(entry([0, 2]), entry([1, 3]), entry([1, 3]), entry([0, 2]), Error(2, "boom"))
    g.away = {3, 4, 5}
    roster = query_roster(g, 4)
    movers = Movers(g, {1, 2}, "")
    assert movers.look(roster) == {}
    g.away = {4}
    assert movers.look(roster) == {}  # the dead node is still taken for alive
    g.away = {2, 4}
    assert movers.look(roster) == {1: 3, 3: 3}  # and node 5 is left alone
    g.away = {2}
    assert movers.look(roster) == {1: 3, 3: 3}  # node 1 is still there
    g.answers = ()  # nobody is asked twice
    g.away = set()
    assert movers.look(roster) == {}


def test_a_client_with_other_data_is_not_the_one_that_was_there():
    g = Moving(entry([0, 1]), entry([0, 1], examples=[10, 11]))
    g.away = {2}
    roster = query_roster(g, 2)
    g.away = {1}
    assert Movers(g, {1}, "").look(roster) == {0: 2}


@pytest.mark.parametrize(
    ("clients", "examples"),
    [([0, 1], [5, -5]), ([0, 1], [0, 5]), ([0, 1], [2**62, 5]), ([-1, 0], [5, 5])],
)
def test_impossible_numbers_are_refused(clients, examples):
    assert "runs something else" in stopped(entry(clients, examples=examples), num_clients=2)


def test_a_node_that_does_not_answer_in_time_is_asked_again():
    class Slow(Scripted):
        def send_and_receive(self, messages, *, timeout=None):  # noqa: ARG002 - as Flower's
            answered.append(list(super().send_and_receive(messages)))
            return answered[-1][1:] if len(answered) == 1 else answered[-1]

    answered = []
    roster = query_roster(Slow(entry([0, 2]), entry([1, 3])), 4)
    assert roster.nodes == [1, 2, 1, 2]
    assert [len(replies) for replies in answered] == [2, 1]
