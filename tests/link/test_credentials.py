"""What a machine holds: read as it was made, and refused in one line when it is unsafe."""

import shlex
import shutil
import stat
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from engram.link.credentials import read_node, read_server
from engram.settings.errors import Refused
from tests.link.server.federations import make
from tests.samples import entry

NODE, SERVER = Path("fed/client-1"), Path("fed/server")


@pytest.fixture(autouse=True)
def _federation(_elsewhere):
    make()


def refused(read, folder, *says, **when):
    with pytest.raises(Refused) as caught:
        read(folder, **when)
    message = str(caught.value)
    assert "\n" not in message
    for text in says:
        assert str(text) in message
    return message


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def after(days):
    return datetime.now(UTC) + timedelta(days=days)


# --- As they were made -----------------------------------------------------------------------


def test_a_node():
    here = NODE.absolute()
    node = read_node(NODE)
    assert (node.federation, node.superlink) == ("fed", "a.example.org:9092")
    assert (node.partition_id, node.num_partitions, node.name) == (1, 2, "client-1")
    assert (node.private_key, node.public_key) == (here / "client.key", here / "client.pub")
    assert node.root_certificate == here / "ca.crt"


def test_a_server():
    server, here = read_server(SERVER), SERVER.absolute()
    assert server.folder == here
    assert server.settings == ("fed", "a.example.org:9092", 2, "")
    assert server.tls.root_certificate == here / "ca.crt"
    assert server.tls.certificate == here / "server.crt"
    assert server.tls.private_key == here / "server.key"
    assert set(server.tls.hosts) == {
        *("a.example.org", "b.example.org"),
        *("localhost", "127.0.0.1", "::1"),
    }
    assert timedelta(days=29) < server.tls.expires - datetime.now(UTC) <= timedelta(days=30)
    assert server.public_keys == tuple(here / f"clients/client-{n}.pub" for n in (0, 1))


def test_clients_in_the_order_of_their_numbers():
    make("many", clients=11)
    names = [path.stem for path in read_server(Path("many/server")).public_keys]
    assert names == [f"client-{n}" for n in range(11)]


def former(folder, insecure):
    """Has a folder the settings that former releases wrote."""
    (path,) = folder.glob("*.toml")
    path.write_text(f"{path.read_text()}insecure = {insecure}\n")


def test_folders_of_a_former_release():
    before = read_node(NODE), read_server(SERVER)
    for folder in (NODE, SERVER):
        former(folder, "false")
    (SERVER / "clients/client-0.node").write_text("17")
    assert (read_node(NODE), read_server(SERVER)) == before


def test_an_insecure_federation_is_refused():
    for folder, read in ((NODE, read_node), (SERVER, read_server)):
        former(folder, "true")
        message = refused(read, folder, f"{folder} is of an insecure federation")
        assert message.endswith(
            "make a new one with engram init-federation, and bring each site its folder"
        )


# --- Missing or malformed --------------------------------------------------------------------


def test_no_folder_and_another_folder():
    for read in (read_node, read_server):
        refused(read, Path("nowhere"), "nowhere is not there", "engram init-federation")
    refused(read_server, Path("fed"), "fed has no federation.toml", "a federation's server")
    refused(read_node, SERVER, "fed/server has no node.toml", "a federation's client-N")


MALFORMED = [
    (NODE, "partition-id = 1", "partition-id = 2", "must lie in 0..1"),
    (NODE, "partition-id = 1", "partition-id = -1", "must lie in 0..1"),
    (NODE, "partition-id = 1", "partition-id = true", "must be a whole number, got True"),
    (NODE, "partition-id = 1", 'partition-id = "1"', "must be a whole number, got '1'"),
    (NODE, "num-partitions = 2", "", "lacks num-partitions"),
    (NODE, '"a.example.org:9092"', "9092", "must be text in quotes, got 9092"),
    (NODE, "a.example.org:9092", "a.example.org", "must be HOST:PORT"),
    (NODE, "federation =", "federation", "is not TOML"),
    (NODE, "federation =", "[table]\nfederation =", "lacks federation"),
    (SERVER, "clients = 2", "clients = -1", "must be at least 0, got -1"),
    (SERVER, "clients = 2", "", "lacks clients"),
    (SERVER, "9092", "99999", "must be HOST:PORT with a port in 1..65535"),
]


def test_settings_that_are_malformed():
    for folder, old, new, says in MALFORMED:
        path = folder / ("node.toml" if folder == NODE else "federation.toml")
        sound = path.read_text()
        with entry(old, new, says):
            edit(path, old, new)
            refused(read_node if folder == NODE else read_server, folder, path, says)
            path.write_text(sound)


ED25519 = ed25519.Ed25519PrivateKey.generate()
PEM_KEY = Encoding.PEM, PrivateFormat.PKCS8
OPENSSH = Encoding.OpenSSH, PublicFormat.OpenSSH
PUBLIC = NODE / "client.pub", SERVER / "clients/client-0.pub"
P384, P521 = (ec.generate_private_key(curve) for curve in (ec.SECP384R1(), ec.SECP521R1()))
NO_PRIVATE, NO_CURVE = "holds no OpenSSH private key", "must hold a key on the curve P-256 or P-384"
LOCKED = P384.private_bytes(*PEM_KEY, BestAvailableEncryption(b"secret"))
EDWARDS = ED25519.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
EDWARDS_PEM = ED25519.private_bytes(*PEM_KEY, NoEncryption())
DAMAGED = [
    *((NODE / name, None, "is missing") for name in ("ca.crt", "client.key", "client.pub")),
    *((SERVER / name, None, "is missing") for name in ("ca.crt", "server.crt", "server.key")),
    (NODE / "client.key", b"", NO_PRIVATE),
    (NODE / "client.key", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", NO_PRIVATE),
    (NODE / "client.key", P384.private_bytes(*PEM_KEY, NoEncryption()), NO_PRIVATE),
    (NODE / "client.key", EDWARDS, NO_CURVE),
    (SERVER / "server.key", LOCKED, "without a passphrase"),
    (SERVER / "server.key", EDWARDS_PEM, "must hold an elliptic-curve key"),
    *((path, b"ecdsa-sha2-nistp384 AAAA", "holds no OpenSSH public key") for path in PUBLIC),
    *((path, ED25519.public_key().public_bytes(*OPENSSH), NO_CURVE) for path in PUBLIC),
    *((path, P521.public_key().public_bytes(*OPENSSH), NO_CURVE) for path in PUBLIC),
    *(
        (SERVER / name, b"-----BEGIN CERTIFICATE-----\n", "holds no PEM")
        for name in ("ca.crt", "server.crt", "server.key")
    ),
]


def test_a_file_that_is_missing_or_malformed_is_named():
    for path, data, says in DAMAGED:
        with entry(path, data):
            sound = path.rename("sound")
            if data is not None:
                path.touch(mode=0o600)
                path.write_bytes(data)
            folder, read = (NODE, read_node) if NODE in path.parents else (SERVER, read_server)
            message = refused(read, folder, path, says)
            assert data is not None or "engram init-federation" in message
            sound.replace(path)


# --- Unsafe ----------------------------------------------------------------------------------


def test_a_key_that_others_may_read():
    keys = (read_node, NODE / "client.key"), (read_server, SERVER / "server.key")
    for (read, path), mode in product(keys, [0o644, 0o640, 0o604, 0o602]):
        with entry(path, mode):
            path.chmod(mode)
            message = refused(
                read, path.parent, f"{path} may be read by others, its mode is {mode:04o}"
            )
            command, wanted, name = shlex.split(message.rpartition(": ")[2])
            assert (command, Path(name)) == ("chmod", path)
            path.chmod(int(wanted, 8))
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            read(path.parent)


def test_halves_of_different_keys():
    shutil.copy("fed/client-0/client.pub", NODE)
    refused(read_node, NODE, f"{NODE}/client.pub is not the public half of {NODE}/client.key")


# --- Certificates ----------------------------------------------------------------------------


def test_an_expired_certificate():
    ends = read_server(SERVER).tls.expires
    read_server(SERVER, at=ends)
    late = after(31)
    message = refused(read_server, SERVER, "server.crt expired on", at=late)
    assert f"{ends:%Y-%m-%d %H:%M}" in message
    assert message.endswith(
        f"this machine's clock says {late:%Y-%m-%d %H:%M:%S} UTC, 24 hours later: set the clock "
        "if it is wrong, or engram renew fed/server"
    )


def test_an_authority_that_has_had_its_time():
    remedies = {NODE: "bring the federation's ca.crt of today", SERVER: "--new-authority"}
    for folder, read in ((NODE, read_node), (SERVER, read_server)):
        read_node(NODE, at=after(3649))
        expired = f"{folder}/ca.crt expired on"
        refused(read, folder, expired, remedies[folder], at=after(3651))


def test_a_clock_that_is_slow():
    read_server(SERVER, at=after(-0.04))
    for folder, read in ((NODE, read_node), (SERVER, read_server)):
        refused(read, folder, "is not valid before", "this machine's clock", at=after(-1))


def test_a_host_that_the_certificate_lacks():
    edit(SERVER / "federation.toml", "a.example.org", "c.example.org")
    message = refused(read_server, SERVER, "server.crt is for a.example.org, ", "c.example.org")
    assert message.endswith("engram renew fed/server --host c.example.org")
    for host in ("B.Example.org", "[::1]", "127.0.0.1"):
        path = SERVER / "federation.toml"
        edit(path, path.read_text().split('"')[3], f"{host}:9092")
        read_server(SERVER)


def test_a_file_of_another_authority():
    make("other/fed")
    unsigned = "was not signed by the authority of"
    for files, says in (
        (["ca.crt"], unsigned),
        (["server.crt", "server.key"], unsigned),
        (["server.key"], "server.crt does not belong to the key in"),
    ):
        shutil.copytree(SERVER, "server", dirs_exist_ok=True)
        for name in files:
            shutil.copy(Path("other/fed/server") / name, "server")
        with entry(files):
            refused(read_server, Path("server"), says, "engram renew")


def test_a_certificate_that_is_no_authoritys():
    for folder, read in ((NODE, read_node), (SERVER, read_server)):
        shutil.copy("fed/server/server.crt", folder / "ca.crt")
        refused(read, folder, f"{folder}/ca.crt is not an authority's certificate")


def test_the_remedy_elsewhere_names_no_folder_that_is_not_there():
    shutil.copytree(SERVER, "server")
    message = refused(read_server, Path("server"), at=after(31))
    assert message.endswith("engram renew SERVER_FOLDER")
