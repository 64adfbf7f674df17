"""A site that makes its own key, by an invitation that only it can redeem, once and in time."""

import base64
import hashlib
import shutil
import ssl
import subprocess
import sys
import tomllib
from datetime import timedelta
from pathlib import Path

from engram.guards.secure.registry import REGISTRY, keys_in
from engram.link.credentials import read_node, read_server
from engram.link.server import invitations
from engram.link.server.registration import roll
from engram.wire.clock import now
from tests.cli.test_federation_cli import refused
from tests.samples import entry

SERVER = Path("fed/server")


def invited(typed, name="invitation"):
    status, said, _ = typed("init-federation fed --invite")
    assert status == 0
    Path(name).write_text(said)
    return tomllib.loads(said)


def joined(typed, name="north"):
    found = invited(typed, f"for-{name}")
    assert typed(f"init-federation {name} --join for-{name}")[0] == 0
    return found["client"]


def changed(path, **change):
    """Writes a file's settings anew, beside it, with some changes; None takes one out."""
    found = tomllib.loads(Path(path).read_text()) | change
    new = Path(f"{path}-changed")
    new.write_bytes(
        invitations.to_toml({key: value for key, value in found.items() if value is not None})
    )
    return new


def counted(folder=SERVER):
    return read_server(folder).settings.clients, roll(folder).members


def gone(client):
    """The file of a client's removed key."""
    (path,) = (SERVER / "clients").glob(f"{client}.*.removed")
    return path.name


def test_a_site_makes_its_key_and_is_registered(typed):
    typed("init-federation fed --clients 1 --superlink fl.example.org:9092")
    text = str(invited(typed))
    assert "PRIVATE" not in text
    assert counted() == (1, {0})  # nobody waits for it
    status, out, err = typed("init-federation north --join invitation")
    assert (status, err) == (0, "")
    node = read_node(Path("north"))
    assert (node.superlink, node.partition_id) == ("fl.example.org:9092", 1)
    assert Path("north/client.key").stat().st_mode & 0o777 == 0o600
    request = Path("north/request").read_text()
    assert "PRIVATE" not in request
    status, told, err = typed("register fed/server north/request")
    assert (status, err) == (0, "")
    assert told == f"client-1 is a member: its key is {out.split()[4]}\n"
    assert counted() == (2, {0, 1})
    blob = base64.b64decode(Path("north/client.pub").read_text().split()[1])
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode()
    assert out.split()[4] == f"SHA256:{digest[:43]}"  # as ssh-keygen -l has it


def test_both_sides_see_the_fingerprint_of_the_one_authority_that_is_trusted(typed):
    typed("init-federation fed --clients 1")
    assert typed("renew fed/server --new-authority")[0] == 0  # the bundle has three certificates
    status, said, told = typed("init-federation fed --invite")
    Path("invitation").write_text(said)
    _, out, _ = typed("init-federation north --join invitation")
    own = Path("north/ca.crt").read_text()
    assert own.count("BEGIN") == 1
    assert Path("fed/ca.crt").read_text().startswith(own)
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(own)).hexdigest().upper()
    printed = ":".join(digest[k : k + 2] for k in range(0, 64, 2))  # as openssl x509 has it
    assert status == 0
    for text in (told, out):
        assert f"the authority is SHA256 {printed}" in text


def test_invitations_made_at_once_are_for_as_many_clients(typed):
    typed("init-federation fed --clients 1")
    line = [sys.executable, "-c", _INVITE]
    made = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [each.communicate()[0] for each in made]
    assert sorted(tomllib.loads(each)["client"] for each in said) == [1, 2, 3]
    assert len({tomllib.loads(each)["word"] for each in said}) == 3
    assert typed("init-federation fed --add-client")[1].startswith("fed/client-4: ")
    assert counted() == (5, {0, 4})


_INVITE = """
from pathlib import Path
from engram.link.server.invitations import invite
print(invite(Path("fed"))[0].decode())
"""


def test_a_federation_of_invited_sites_alone(typed):
    status, out, err = typed("init-federation fed --clients 0 --superlink fl.example.org:9092")
    assert (status, err) == (0, "")
    assert "client-0" not in out
    assert counted() == (0, frozenset())
    refused(typed("run fedavg --federation fed/server"), "no site is a member yet")
    first, second = joined(typed, "north"), joined(typed, "south")
    assert (first, second) == (0, 1)
    assert typed("register fed/server south/request")[0] == 0  # in whichever order they answer
    assert counted() == (2, {1})
    assert keys_in((SERVER / REGISTRY).read_bytes(), SERVER).keys() == {1}
    assert [joined(typed, "west"), joined(typed, "east")] == [2, 3]
    status, told, _ = typed("register fed/server west/request north/request east/request")
    assert (status, told.count(" is a member: ")) == (0, 3)
    assert counted() == (4, {0, 1, 2, 3})


def test_a_request_is_for_its_invitation_once(typed):
    typed("init-federation fed --clients 1")
    joined(typed, "north")
    joined(typed, "south")
    north, south = Path("north/request"), Path("south/request")
    other = tomllib.loads(south.read_text())
    taken = Path("fed/client-0/client.pub").read_text()
    for change, says in (
        ({"client": 2}, "must prove the word of an open invitation of client-2"),
        ({"key": other["key"]}, "must prove the word of an open invitation of client-1"),
        ({"proof": other["proof"]}, "must prove the word of an open invitation of client-1"),
        ({"proof": "\u00e9"}, "must prove the word of an open invitation of client-1"),
        ({"client": 0}, "must prove the word of an open invitation of client-0 from"),
        ({"client": 7}, "must prove the word of an open invitation of client-7 from"),
        ({"client": -5}, "must lie in 0..999999, got another number"),
        ({"federation": "other"}, "must be of fed, got one of 'other'"),
        ({"proof": None}, "must be a request, as `engram init-federation"),
        ({"key": "ssh-rsa AAAA"}, "holds no OpenSSH public key"),
    ):
        refused(typed(f"register fed/server {changed(north, **change)}"), says)
        assert counted() == (1, {0})
    word = tomllib.loads(Path("for-north").read_text())["word"]
    forged = changed(north, key=taken, proof=invitations._proof(word, taken))
    refused(typed(f"register fed/server {forged}"), "must have a new key, got that of client-0")
    assert typed(f"register fed/server {north}")[0] == 0
    assert typed(f"register fed/server {north}")[0] == 0  # as after an interruption
    assert typed("init-federation elsewhere --join for-north")[0] == 0
    refused(
        typed("register fed/server elsewhere/request"),
        "must prove the word of an open invitation of client-1 from",
    )
    assert counted() == (2, {0, 1})


def test_a_removed_key_is_not_admitted_again(typed):
    typed("init-federation fed --clients 1")
    joined(typed)
    typed("register fed/server north/request")
    assert typed("remove fed/server 1")[0] == 0
    refused(
        typed("register fed/server north/request"),
        "must prove the word of an open invitation of client-1 from",
    )
    number = invited(typed, "anew")["client"]
    word = tomllib.loads(Path("anew").read_text())["word"]
    key = Path("north/client.pub").read_text()
    forged = changed("north/request", client=number, key=key, proof=invitations._proof(word, key))
    refused(typed(f"register fed/server {forged}"), f"got that of {gone('client-1')}")
    assert counted() == (2, {0})


def test_a_key_that_was_replaced_is_not_admitted_again(typed):
    typed("init-federation fed --clients 1")
    old = Path("fed/client-0/client.pub").read_text()
    assert typed("init-federation fed --new-key 0")[0] == 0
    number = invited(typed)["client"]
    word = tomllib.loads(Path("invitation").read_text())["word"]
    assert typed("init-federation north --join invitation")[0] == 0
    proof = invitations._proof(word, old)
    forged = changed("north/request", client=number, key=old, proof=proof)
    refused(typed(f"register fed/server {forged}"), f"got that of {gone('client-0')}")


def test_a_folder_that_is_a_link_is_the_folder(typed):
    typed("init-federation fed --clients 1")
    Path("fed/server").rename("elsewhere")
    Path("fed/server").symlink_to(Path("elsewhere").absolute())
    assert [invited(typed)["client"] for _ in range(2)] == [1, 2]


def test_a_removed_key_in_a_former_copy_of_the_folder_is_no_members(typed):
    typed("init-federation fed --clients 2")
    shutil.copytree(SERVER / "clients", "copy")
    typed("remove fed/server 1")
    shutil.copytree("copy", SERVER / "clients", dirs_exist_ok=True)
    assert counted() == (2, {0})
    assert gone("client-1") in {each.file for each in roll(SERVER).keys.values()}
    refused(typed("remove fed/server 1"), "must be one with a key in fed/server/clients, client-0,")
    typed("init-federation fed --new-key 1")
    assert counted() == (2, {0, 1})


def test_an_invitation_is_taken_back(typed):
    typed("init-federation fed --clients 1")
    joined(typed)
    assert [*invitations.invitations(SERVER)] == [1]
    status, out, err = typed("remove fed/server client-1")
    assert (status, out, err) == (0, "client-1: its invitation is taken back\n", "")
    assert invitations.invitations(SERVER) == {}
    refused(
        typed("register fed/server north/request"),
        "must prove the word of an open invitation of client-1 from",
    )
    refused(typed("remove fed/server client-1"), "must be one with a key in")
    refused(typed("init-federation fed --new-key 1"), "be one of 0..0, and not invited, got 1")
    assert invited(typed)["client"] == 2  # no number is given twice


def test_an_invitation_ends(typed, monkeypatch):
    typed("init-federation fed --clients 1")
    joined(typed)
    end = now() + timedelta(days=15)
    monkeypatch.setattr(invitations, "now", lambda: end)
    refused(
        typed("init-federation south --join for-north"), "is of an invitation that ended after "
    )
    refused(typed("register fed/server north/request"), "is of an invitation that ended after ")
    later = changed("for-north", until=f"{end:%Y-%m-%d}")  # the site's copy alone
    assert typed(f"init-federation south --join {later}")[0] == 0
    refused(typed("register fed/server south/request"), "is of an invitation that ended after ")
    assert counted() == (1, {0})


def test_an_invitation_that_cannot_be_makes_nothing(typed):
    typed("init-federation fed --clients 1")
    invited(typed)
    for change, says in [
        ({"client": -5}, "must lie in 0..999999, got another"),
        ({"client": 10**6}, "must lie in 0..999999, got another"),
        ({"client": True}, "must be an invitation"),
        ({"more": True}, "must be an invitation"),
        ({"ca": ""}, "must hold the authority's certificate"),
        ({"superlink": "here"}, "must be HOST:PORT"),
        ({"until": "2001-01-01"}, "is of an invitation that ended after '2001-01-01'"),
        ({"word": None}, "must be an invitation"),
    ]:
        with entry(change, says):
            refused(typed(f"init-federation north --join {changed('invitation', **change)}"), says)
            assert not Path("north").exists()


def test_an_invitation_names_one_authority(typed):
    typed("init-federation fed --clients 1")
    typed("init-federation other --clients 1")
    ca = invited(typed)["ca"]
    for odd in (ca + Path("other/ca.crt").read_text(), Path("fed/server/server.crt").read_text()):
        path = changed("invitation", ca=odd)
        refused(typed(f"init-federation north --join {path}"), "must hold the authority's cert")


def test_what_is_no_invitation_or_no_request_changes_nothing(typed):
    typed("init-federation fed --clients 1")
    typed("init-federation other --clients 1")
    joined(typed)
    Path("bad").write_text("federation = 1\n")
    before = sorted(Path(".").rglob("*"))
    for line, says in (
        ("init-federation south --join missing", "missing cannot be read"),
        ("init-federation south --join bad", "bad must be an invitation, as `engram init-fed"),
        ("init-federation north --join for-north", "is in use already"),
        ("register fed/server bad", "bad must be a request, as `engram init-federation"),
        ("register other/server north/request", "must be of other, got one of 'fed'"),
    ):
        refused(typed(line), says)
    assert sorted(Path(".").rglob("*")) == before
