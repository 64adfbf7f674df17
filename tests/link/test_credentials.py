"""What a machine holds: read as it was made, and refused in one line when it is unsafe."""

import shlex
import shutil
import stat
from datetime import UTC, datetime, timedelta
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
from engram.link.server.identity import init_federation
from engram.settings.errors import Refused
from tests.samples import entry

NODE, SERVER = Path("fed/client-1"), Path("fed/server")


def make(name="fed", **change):
    given = {"clients": 2, "hosts": ["b.example.org"], "superlink": "a.example.org:9092"}
    init_federation(Path(name), **({"days": 30} | given | change))


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
    assert (node.partition_id, node.num_partitions, node.insecure) == (1, 2, False)
    assert (node.private_key, node.public_key) == (here / "client.key", here / "client.pub")
    assert node.root_certificate == here / "ca.crt"


def test_a_server():
    server, here = read_server(SERVER), SERVER.absolute()
    assert server.folder == here
    assert server.settings == ("fed", "a.example.org:9092", 2, False, "")
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


def test_an_insecure_federation():
    make("open", insecure=True)
    server, node = read_server(Path("open/server")), read_node(Path("open/client-0"))
    assert (server.settings.insecure, server.tls) == (True, None)
    assert (node.insecure, node.root_certificate) == (True, None)
    assert node.private_key.is_file()


# --- Missing or malformed --------------------------------------------------------------------


@pytest.mark.parametrize("read", [read_node, read_server])
def test_no_folder(read):
    refused(read, Path("nowhere"), "nowhere is not there", "engram init-federation")


def test_another_folder():
    refused(read_server, Path("fed"), "fed has no federation.toml", "a federation's server")
    refused(read_node, SERVER, "fed/server has no node.toml", "a federation's client-N")


@pytest.mark.parametrize("name", ["ca.crt", "client.key", "client.pub"])
def test_a_file_of_a_node_is_missing(name):
    (NODE / name).unlink()
    refused(read_node, NODE, f"{NODE / name} is missing", "engram init-federation")


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_a_file_of_a_server_is_missing(name):
    (SERVER / name).unlink()
    refused(read_server, SERVER, f"{SERVER / name} is missing", "engram init-federation")


MALFORMED_NODES = [
    ("partition-id = 1", "partition-id = 2", "must lie in 0..1"),
    ("partition-id = 1", "partition-id = -1", "must lie in 0..1"),
    ("partition-id = 1", "partition-id = true", "must be a whole number, got True"),
    ("partition-id = 1", 'partition-id = "1"', "must be a whole number, got '1'"),
    ("num-partitions = 2", "", "lacks num-partitions"),
    ("insecure = false", "insecure = 0", "must be true or false, got 0"),
    ('"a.example.org:9092"', "9092", "must be text in quotes, got 9092"),
    ("a.example.org:9092", "a.example.org", "must be HOST:PORT"),
    ("federation =", "federation", "is not TOML"),
    ("federation =", "[table]\nfederation =", "lacks federation"),
]


def test_node_toml_is_malformed():
    path = NODE / "node.toml"
    sound = path.read_text()
    for old, new, says in MALFORMED_NODES:
        with entry(old, new, says):
            edit(path, old, new)
            refused(read_node, NODE, path, says)
            path.write_text(sound)


MALFORMED_SERVERS = [
    ("clients = 2", "clients = -1", "must be at least 0, got -1"),
    ("clients = 2", "", "lacks clients"),
    ("insecure = false", 'insecure = "no"', "must be true or false"),
    ("9092", "99999", "must be HOST:PORT with a port in 1..65535"),
]


def test_federation_toml_is_malformed():
    path = SERVER / "federation.toml"
    sound = path.read_text()
    for old, new, says in MALFORMED_SERVERS:
        with entry(old, new, says):
            edit(path, old, new)
            refused(read_server, SERVER, path, says)
            path.write_text(sound)


ED25519 = ed25519.Ed25519PrivateKey.generate()
PEM_KEY = Encoding.PEM, PrivateFormat.PKCS8


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "holds no OpenSSH private key"),
        (b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", "holds no OpenSSH private key"),
        (
            ec.generate_private_key(ec.SECP384R1()).private_bytes(*PEM_KEY, NoEncryption()),
            "holds no OpenSSH private key",
        ),
        (
            ED25519.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
            "must hold a key on a NIST curve",
        ),
    ],
    ids=["empty", "cut off", "in another form", "on another curve"],
)
def test_a_nodes_key_is_malformed(data, says):
    (NODE / "client.key").write_bytes(data)
    refused(read_node, NODE, NODE / "client.key", says)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            ec.generate_private_key(ec.SECP256R1()).private_bytes(
                *PEM_KEY, BestAvailableEncryption(b"secret")
            ),
            "without a passphrase",
        ),
        (ED25519.private_bytes(*PEM_KEY, NoEncryption()), "must hold an elliptic-curve key"),
    ],
    ids=["passphrase", "of another kind"],
)
def test_a_servers_key_is_malformed(data, says):
    (SERVER / "server.key").write_bytes(data)
    refused(read_server, SERVER, SERVER / "server.key", says)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"ecdsa-sha2-nistp384 AAAA", "holds no OpenSSH public key"),
        (
            ED25519.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH),
            "must hold a key on a NIST curve",
        ),
    ],
    ids=["of nothing", "of another curve"],
)
def test_a_public_key_is_malformed(data, says):
    for folder, path, read in (
        (NODE, NODE / "client.pub", read_node),
        (SERVER, SERVER / "clients/client-0.pub", read_server),
    ):
        path.write_bytes(data)
        refused(read, folder, path, says)


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_a_servers_file_is_malformed(name):
    (SERVER / name).write_text("-----BEGIN CERTIFICATE-----\n")
    refused(read_server, SERVER, SERVER / name, "holds no PEM")


# --- Unsafe ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "path"), [(read_node, NODE / "client.key"), (read_server, SERVER / "server.key")]
)
def test_a_key_that_others_may_read(read, path):
    for mode in [0o644, 0o640, 0o604, 0o602]:
        with entry(mode):
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


@pytest.mark.parametrize("files", [["ca.crt"], ["server.crt", "server.key"]])
def test_another_authority(files):
    make("other/fed")
    for name in files:
        shutil.copy(Path("other/fed/server") / name, SERVER)
    message = refused(read_server, SERVER, "was not signed by the authority of", SERVER / "ca.crt")
    assert message.endswith("engram renew fed/server")


def test_the_key_of_another_certificate():
    make("other/fed")
    shutil.copy("other/fed/server/server.key", SERVER)
    refused(read_server, SERVER, "server.crt does not belong to the key in", "engram renew")


def test_a_certificate_that_is_no_authoritys():
    for folder, read in ((NODE, read_node), (SERVER, read_server)):
        shutil.copy("fed/server/server.crt", folder / "ca.crt")
        refused(read, folder, f"{folder}/ca.crt is not an authority's certificate")


def test_the_remedy_elsewhere_names_no_folder_that_is_not_there():
    shutil.copytree(SERVER, "server")
    message = refused(read_server, Path("server"), at=after(31))
    assert message.endswith("engram renew SERVER_FOLDER")
