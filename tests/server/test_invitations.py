"""A site that makes its own key, by an invitation."""

import base64
import hashlib
from pathlib import Path

from federation.credentials import read_node, read_server
from server.registration import roll
from tests.server.test_federation_cli import refused

SERVER = Path("fed/server")


def invited(engram, name="invitation"):
    status, said, err = engram("init-federation fed --invite")
    assert (status, err) == (0, "")
    Path(name).write_text(said)
    return said


def test_a_site_makes_its_key_and_is_registered(engram, answers):
    said, asked = answers
    engram("init-federation fed --clients 1 --superlink fl.example.org:9092")
    text = invited(engram)
    assert "PRIVATE" not in text
    assert read_server(SERVER).settings.clients == 2  # the number is taken
    assert roll(SERVER).members == {0}  # and nobody waits for it
    status, out, err = engram("init-federation north --join invitation")
    assert (status, err) == (0, "")
    node = read_node(Path("north"))
    assert (node.superlink, node.partition_id, node.insecure) == ("fl.example.org:9092", 1, False)
    assert Path("north/client.key").stat().st_mode & 0o777 == 0o600
    request = Path("north/request").read_text()
    assert "PRIVATE" not in request
    said += [{"success": True, "node-id": 17}, {"success": True, "node-id": 18}]
    status, told, err = engram("register fed/server north/request")
    assert (status, err) == (0, "")
    fingerprint = f"client-1: its key is {out.split()[4]}"
    assert told.splitlines() == [
        fingerprint,
        "client-0: registered as 17",
        "client-1: registered as 18",
    ]
    assert asked[-1][0][3].endswith("client-1.pub")
    assert roll(SERVER).members == {0, 1}
    blob = base64.b64decode(Path("north/client.pub").read_text().split()[1])
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode()
    assert out.split()[4] == f"SHA256:{digest[:43]}"  # as ssh-keygen -l has it


def test_two_invitations_are_for_two_clients(engram):
    engram("init-federation fed --clients 1")
    for name in ("one", "two"):
        invited(engram, name)
        assert engram(f"init-federation at-{name} --join {name}")[0] == 0
    assert [read_node(Path(f"at-{name}")).partition_id for name in ("one", "two")] == [1, 2]


def test_what_is_no_invitation_or_no_request_changes_nothing(engram, answers):
    engram("init-federation fed --clients 1")
    engram("init-federation other --clients 1")
    invited(engram)
    engram("init-federation north --join invitation")
    request = Path("north/request").read_text()
    Path("bad").write_text("federation = 1\n")
    Path("third").write_text(request.replace("client = 1", "client = 7"))
    Path("taken").write_text(request.replace("client = 1", "client = 0"))
    Path("broken").write_text(request.replace("ecdsa", "rsa"))
    before = sorted(Path(".").rglob("*"))
    for line, says in (
        ("init-federation south --join missing", "missing cannot be read"),
        (
            "init-federation south --join bad",
            "bad must be an invitation, as `engram init-federation",
        ),
        ("init-federation north --join invitation", "is in use already"),
        ("register fed/server bad", "bad must be a request, as `engram init-federation"),
        ("register other/server north/request", "must be of other, got one of 'fed'"),
        ("register fed/server third", "client 7 of third was not invited from fed/server"),
        ("register fed/server taken", "client-0 has another key already, SHA256:"),
        ("register fed/server broken", "broken"),
    ):
        refused(engram(line), says)
    assert sorted(Path(".").rglob("*")) == before
    assert not answers[1]
