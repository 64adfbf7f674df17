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


@pytest.mark.parametrize(
    ("statuses", "insecure", "says"),
    [
        (
            ("online", "unregistered"),
            False,
            "the SuperLink knows 1 of the federation's 3 nodes (on line: 1, removed: 1); "
            "register the others' keys: `engram register fed/server`",
        ),
        (
            ("online", "offline", "registered"),
            False,
            "the SuperLink knows 3 of the federation's 3 nodes (on line: 1); start the missing "
            "nodes, or lower min-clients",
        ),
        (
            (),
            True,
            "the SuperLink knows 0 of the federation's 3 nodes (on line: 0); start the missing "
            "nodes, or lower min-clients",
        ),
    ],
)
def test_says_what_the_superlink_knows(monkeypatch, statuses, insecure, says):
    monkeypatch.setattr(membership, "members", listed(*statuses))
    g = named(("client-0",), *[entry([0])] * ("online" in statuses), insecure=insecure)
    with pytest.raises(RunStopped) as caught:
        begun(g, 3)
    assert str(caught.value).endswith(says)
    assert "\n" not in str(caught.value)


def test_says_nothing_of_a_superlink_that_does_not_say(monkeypatch):
    def declines(folder, control):
        raise RunStopped("no SuperLink answers")

    monkeypatch.setattr(membership, "members", declines)
    with pytest.raises(RunStopped) as caught:
        begun(named(()), 3)
    assert str(caught.value) == (
        "0 of 3 clients can take part, but 3 are needed; clients [0, 1, 2]: no node hosts it; "
        "start the missing nodes, or lower min-clients"
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
