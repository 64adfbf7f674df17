"""Nodes whose answers to the roster query a test writes."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from engram.data.schema.columns import Kind
from engram.link.server.membership import Membership
from engram.server import roster
from engram.server.roster import Attendance, query_roster
from engram.settings.errors import RunStopped
from engram.simulations.grid import InProcessGrid
from engram.wire.messages import Reply
from engram.wire.roster import describe_node
from tests.server.pushed import patient
from tests.support import small, trainer

NAMES = ("client-0", "client-1", "client-2")


class Scripted(InProcessGrid):
    """Nodes whose answers to the roster query a test writes."""

    def __init__(self, *answers):
        super().__init__(trainer(small()), [[] for _ in answers])
        self.answers = answers

    def _answer(self, kind, requests):
        told = [(r.question, self.answers[r.question.node - 1]) for r in requests]
        return [Reply(q, a) if isinstance(a, dict) else Reply(q, error=a) for q, a in told]


def stopped(*answers, num_clients=4):
    with pytest.raises(RunStopped) as caught:
        query_roster(Scripted(*answers), num_clients, patience=0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def warned(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def entry(clients, **change):
    content = describe_node(dict.fromkeys(clients, 10), Kind("float32[1,8,8]", 10))
    content["roster"] = {**content["roster"], **change}
    return content


def few_rows(clients, left_out, unscored=()):
    """The answer of a node some of whose clients, called s0, s1, ..., have too few rows."""
    return describe_node(
        dict.fromkeys(clients, 10),
        Kind("float32[1,8,8]", 10),
        {client: f"s{client}" for client in (*clients, *left_out)},
        left_out=dict.fromkeys(left_out, "it has no training rows"),
        unscored=dict.fromkeys(unscored, "it has no test rows to be scored on"),
    )


class Moving(Scripted):
    """Some of its nodes are away."""

    away, joins = (), True

    def get_node_ids(self):
        return [node for node in super().get_node_ids() if node not in self.away]


class Coming(Moving):
    """Its nodes come one by one, every 20 seconds of a clock."""

    clock = (0.0,)

    def get_node_ids(self):
        self.away = {node for node in self._hosts if self.clock[0] < 20 * (node - 1)}
        return super().get_node_ids()


def timed(monkeypatch, step=None):
    """Has a roster's time pass as it sleeps, or by so many seconds each time; returns the clock."""
    clock = [0.0]
    monkeypatch.setattr(roster.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(
        roster.time, "sleep", lambda s: clock.__setitem__(0, clock[0] + (step or s))
    )
    monkeypatch.setattr(Coming, "clock", clock)
    return clock


def begun(g, num_clients, least=None, **options):
    attendance = Attendance(g, num_clients, **{"patience": 0, **options})
    attendance.wait(least or num_clients)
    return attendance


class Named(Moving):
    """Nodes whose keys were registered under names."""

    names: tuple[str, ...] = ()

    def get_nodes(self):
        called = dict(enumerate(self.names, start=1))
        return [
            SimpleNamespace(node_id=n, last_activated_at="", name=called.get(n, ""))
            for n in self.get_node_ids()
        ]


def named(names, *nodes, clients=3):
    g = Named(*nodes)
    g.names = names
    return patient(g, membership=Membership(Path("fed/server"), clients))
