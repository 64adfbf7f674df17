"""What a run that gives up says of the nodes that the SuperLink knows."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from engram.link.server import membership
from engram.link.server.identity import init_federation
from engram.server.status import Member
from engram.settings.errors import RunStopped
from tests.server.rosters import begun, entry, named


def listed(*statuses):
    return lambda folder, control: [
        Member(f"client-{i}", i, status, "") for i, status in enumerate(statuses)
    ]


KNOWS = "the SuperLink knows {} of the federation's 3 nodes "
START = "start the missing nodes, or lower min-clients"
SAYS = {
    ("online", "unregistered"): f"{KNOWS.format(1)}(on line: 1, removed: 1); "
    "register the others' keys: `engram register fed/server`",
    (
        "online",
        "offline",
        "registered",
    ): f"{KNOWS.format(3)}(on line: 1); {START}",
    (): f"{KNOWS.format(0)}(on line: 0); {START}",
}


@pytest.mark.parametrize("statuses", SAYS)
def test_says_what_the_superlink_knows(monkeypatch, statuses):
    monkeypatch.setattr(membership, "members", listed(*statuses))
    nodes = [entry([0])] * ("online" in statuses)
    with pytest.raises(RunStopped) as caught:
        begun(named(("client-0",), *nodes, insecure=not statuses), 3)
    assert str(caught.value).endswith(SAYS[statuses])
    assert "\n" not in str(caught.value)


def test_says_nothing_of_a_superlink_that_does_not_say(monkeypatch):
    def declines(folder, control):
        raise RunStopped("no SuperLink answers")

    monkeypatch.setattr(membership, "members", declines)
    with pytest.raises(RunStopped) as caught:
        begun(named(()), 3)
    assert str(caught.value) == (
        "0 of 3 clients can take part, but 3 are needed; clients [0, 1, 2]: no node hosts it; "
        f"{START}"
    )


def test_finds_the_federation_whose_superlink_started_it(monkeypatch):
    found = membership.membership_of(SimpleNamespace(_addr="127.0.0.1:8001"))
    assert found is None
    init_federation(Path("fed"), clients=3, hosts=[], superlink="127.0.0.1:9092", days=1)
    monkeypatch.setenv("FLWR_HOME", str(Path("fed/server/flwr")))
    found = membership.membership_of(SimpleNamespace(_addr="127.0.0.1:8001"))
    assert found == (Path("fed/server"), 3, False, "127.0.0.1:8001")
    Path("fed/server/clients/client-1.71.removed").touch()
    assert found.barred() == {71}
