"""A request's round, a number that streams and schedules can count with, and its clients."""

import pytest

from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.client.requests import Request, durable_of, round_of
from engram.link.records import from_contents, to_parts
from engram.settings.errors import EngramError
from engram.settings.network import NetworkMethod
from engram.wire.messages import EVALUATE, TRAIN, Question
from tests.samples import entry
from tests.sites.budgets import model_for
from tests.support import small


def request(**entries):
    return {"config": entries}


def test_a_round_is_a_number_that_a_run_may_have():
    for number in (0, 1, 10**6):
        assert round_of(request(**{"server-round": number})) == number
    assert round_of(request()) == 1
    for number in [-1, 10**6 + 1, 2**62, 0.5, True, "1"]:
        with entry(number), pytest.raises(EngramError, match="server-round must be a whole number"):
            round_of(request(**{"server-round": number}))


def test_a_number_that_flower_carries_and_no_array_holds_is_refused():
    for number in (2**63, 2**64 - 1):
        sent = from_contents([b"".join(to_parts(request(durable=number)))], 2**20)
        assert sent["config"]["durable"] == number
        with pytest.raises(EngramError, match=f"must be a whole number of 64 bits, got {number}"):
            durable_of(sent)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "fedavg"},
        {"method": "fedproto"},
        {"method": "fedfomo"},
        {"method": "molar", "dataset": "sparse-linear"},
        {"method": "molar-bandit", "dataset": "sparse-linear"},
        {"method": "meta-ban", "dataset": "linear-groups", "num_clients": 6},
    ],
    ids=lambda settings: settings["method"],
)
def test_a_client_is_named_once(settings):
    """In every family: each naming would be a release of its own of the same rows."""
    e = small(**settings)
    host = host_of(Opening(e, RamStore()))

    def asked(answer, kind, clients):
        records = {"config": {"clients": clients}}
        if isinstance(e.own, NetworkMethod):
            records = model_for(e, clients=clients)
        question = Question(1, kind, records)
        (reply,) = answer([Request(question, range(e.num_clients))])
        return reply.error.reason if reply.error else ""

    for answer, kind in ((host.train, TRAIN), (host.evaluate, EVALUATE)):
        for clients in ([0, 0], [0] * 500, [1, 0, 1], [0, 1, 2, 2]):
            said = asked(answer, kind, clients)
            assert said.startswith("clients must be named once each, got ["), (kind, clients)
        assert "named once" not in asked(answer, kind, [0, 1])
