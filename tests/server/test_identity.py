"""A federation's folders: what is in them, who can read them, and what a failure leaves."""

import os
import shutil
import signal
import ssl
import stat
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store

from federation.credentials import read_node, read_server
from federation.errors import Refused
from federation.keys import read_certificate, read_node_key, same_key
from server import folders, identity
from server.identity import add_client, init_federation, renew_server

FED = Path("fed")
GIVEN = {"clients": 2, "hosts": ["b.example.org"], "superlink": "a.example.org:9092", "days": 30}


def make(name="fed", **change):
    init_federation(Path(name), **(GIVEN | change))


def tree(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def settings(path):
    return tomllib.loads((FED / path).read_text())


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


# --- What is made ----------------------------------------------------------------------------

CLIENT = {"client.key", "client.pub", "node.toml"}


def test_the_folders():
    make()
    assert tree(FED) == {
        *("ca.crt", "ca.key"),
        *(f"server/{name}" for name in ("ca.crt", "server.crt", "server.key", "federation.toml")),
        *(f"server/clients/client-{n}.pub" for n in (0, 1)),
        *(f"client-{n}/{name}" for n in (0, 1) for name in CLIENT | {"ca.crt"}),
    }
    assert settings("server/federation.toml") == {
        "federation": "fed",
        "superlink": "a.example.org:9092",
        "clients": 2,
        "insecure": False,
    }
    assert settings("client-1/node.toml") == {
        "federation": "fed",
        "superlink": "a.example.org:9092",
        "partition-id": 1,
        "num-partitions": 2,
        "insecure": False,
    }
    assert [path.name for path in Path().iterdir()] == ["fed"]


def test_the_folders_of_an_insecure_federation():
    make(insecure=True)
    assert tree(FED) == {
        "server/federation.toml",
        *(f"server/clients/client-{n}.pub" for n in (0, 1)),
        *(f"client-{n}/{name}" for n in (0, 1) for name in CLIENT),
    }
    assert settings("server/federation.toml")["insecure"] is True
    assert settings("client-0/node.toml")["insecure"] is True


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o277, 0o777])
def test_modes_whatever_the_umask(umask, mask):
    umask(mask)
    make()
    add_client(FED)
    (FED / "server/server.key").unlink()
    renew_server(FED, [], 30)
    umask(0o022)
    for path in (FED, *FED.rglob("*")):
        wanted = 0o700 if path.is_dir() else 0o600 if path.suffix == ".key" else 0o644
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_every_secret_is_in_one_place():
    make()
    keys = [path.read_bytes() for path in FED.rglob("*.key")]
    assert len(set(keys)) == len(keys) == 4
    for path in FED.rglob("*"):
        if path.is_file() and path.suffix != ".key":
            assert b"PRIVATE" not in path.read_bytes(), path


def test_an_empty_folder_is_taken():
    FED.mkdir(mode=0o755)
    make()
    assert stat.S_IMODE(FED.stat().st_mode) == 0o700


def test_folders_above_are_made():
    make("deep/down/fed")
    read_server(Path("deep/down/fed/server"))


def test_flower_takes_the_keys():
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    make()
    private = read_node_key(FED / "client-0/client.key")
    assert isinstance(private.curve, ec.SECP256R1)
    sent = try_load_public_key(FED / "server/clients/client-0.pub")
    assert sent == public_key_to_bytes(private.public_key())
    assert (FED / "client-0/client.pub").read_text().endswith(" fed/client-0\n")


# --- The certificate -------------------------------------------------------------------------


def test_names_and_ip_addresses_are_told_apart():
    make(hosts=["B.example.org", "10.1.2.3", "2001:db8::0:1", "10.1.2.3"], superlink="10.0.0.1:1")
    certificate = read_certificate(FED / "server/server.crt")
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["b.example.org", "localhost"]
    ips = [str(ip) for ip in names.get_values_for_type(x509.IPAddress)]
    assert ips == ["10.0.0.1", "10.1.2.3", "2001:db8::1", "127.0.0.1", "::1"]


def test_what_the_certificate_is_for():
    make()
    certificate = read_certificate(FED / "server/server.crt")
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=30) - timedelta(minutes=1) < left <= timedelta(days=30)


@pytest.mark.parametrize("host", ["a.example.org", "b.example.org", "localhost"])
def test_the_certificate_stands_a_strict_check(host):
    make()
    authority = read_certificate(FED / "ca.crt")
    verifier = PolicyBuilder().store(Store([authority])).build_server_verifier(x509.DNSName(host))
    assert verifier.verify(read_certificate(FED / "server/server.crt"), [])[1:] == [authority]


def shake_hands(host, root):
    """Runs a TLS handshake in memory, as strict as Python's own clients will be from 3.13 on."""
    at_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    at_server.load_cert_chain(FED / "server/server.crt", FED / "server/server.key")
    at_client = ssl.create_default_context(cafile=root)
    at_client.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = at_client.wrap_bio(down, up, server_hostname=host)
    server = at_server.wrap_bio(up, down, server_side=True)
    waiting = [client, server]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not waiting


@pytest.mark.parametrize("host", ["a.example.org", "localhost", "127.0.0.1", "::1"])
def test_tls_by_every_name(host):
    make()
    shake_hands(host, FED / "client-0/ca.crt")


def test_no_tls_by_another_name_or_with_another_authority():
    make()
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands("c.example.org", FED / "client-0/ca.crt")
    make("other/fed")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands("localhost", Path("other/fed/client-0/ca.crt"))


# --- What is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"clients": 0}, "clients must be at least 1, got 0"),
        ({"days": 0}, "days must be in 1..3650, got 0"),
        ({"days": 3651}, "days must be in 1..3650, got 3651"),
        ({"hosts": ["a b"]}, "host must name a host by its DNS name or IP address, got 'a b'"),
        ({"hosts": ["host:80"]}, "host must name a host"),
        ({"superlink": "a.example.org"}, "superlink must be HOST:PORT"),
        ({"superlink": "0.0.0.0:9092"}, "must be one that clients can connect to, got 0.0.0.0"),
        ({"hosts": ["::"]}, "must be one that clients can connect to, got ::"),
        ({"name": "my fed"}, "got 'my fed'"),
        ({"name": "default"}, "not 'default', got 'default'"),
        ({"name": "f" * 41}, "up to 40 letters"),
        ({"name": "."}, "is the working directory"),
    ],
)
def test_impossible_arguments(change, says, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(Refused) as caught:
        make(**change)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(Path().iterdir())


def test_a_folder_in_use():
    FED.mkdir()
    (FED / "thesis.tex").touch()
    with pytest.raises(Refused, match="fed is in use already"):
        make()
    assert tree(FED) == {"thesis.tex"}
    with pytest.raises(Refused, match=r"thesis\.tex|in use already|letters"):
        make("fed/thesis.tex")
    make("other")
    before = (Path("other") / "ca.key").read_bytes()
    with pytest.raises(Refused, match="other is in use already"):
        make("other")
    assert (Path("other") / "ca.key").read_bytes() == before


# --- What a failure leaves -------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("files", [0, 1, 7, 15])
def test_a_failure_leaves_nothing(monkeypatch, error, files):
    write, done = folders._write, []

    def fail(*args):
        if len(done) == files:
            raise error
        done.append(write(*args))

    monkeypatch.setattr(folders, "_write", fail)
    with pytest.raises((Refused, KeyboardInterrupt)) as caught:
        make()
    assert len(done) == files
    assert not list(Path().iterdir())
    if isinstance(error, OSError):
        assert str(caught.value).endswith("fed cannot be made: No space left on device")


def killed(call, when=5):
    """Lets a child process call something, and kills it once it has written some files."""
    seen, say = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        try:
            write, count = folders._write, iter(range(when + 1))

            def write_and_wait(*args):
                write(*args)
                if next(count) == when:
                    os.write(say, b"!")
                    signal.pause()

            folders._write = write_and_wait
            call()
        finally:
            os._exit(1)
    os.close(say)
    with open(seen, "rb") as pipe:
        assert pipe.read(1) == b"!"
    left = list(Path().rglob("*"))
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return left


def test_a_killed_call_leaves_no_federation_and_the_next_one_nothing_else():
    left = killed(make)
    assert not FED.exists()
    assert any(path.suffix == ".key" for path in left)
    (beside,) = Path().iterdir()
    assert stat.S_IMODE(beside.stat().st_mode) == 0o700
    make()
    assert [path.name for path in Path().iterdir()] == ["fed"]
    read_server(FED / "server")


def test_a_call_under_way_is_left_alone(monkeypatch):
    def race(*args, write=folders._write):
        folders._write = write
        make()  # another one, which is faster, for the same folder
        write(*args)

    monkeypatch.setattr(folders, "_write", race)
    with pytest.raises(Refused, match="cannot be made"):
        make()
    assert [path.name for path in Path().iterdir()] == ["fed"]
    read_server(FED / "server")
    read_node(FED / "client-1")


# --- A client more ---------------------------------------------------------------------------


def test_add_client():
    make()
    others = {
        path: path.read_bytes()
        for path in FED.rglob("*")
        if path.suffix != ".toml" and path.is_file()
    }
    assert add_client(FED) == FED / "client-2"
    new = read_node(FED / "client-2")
    assert (new.partition_id, new.num_partitions) == (2, 3)
    assert new.root_certificate.read_bytes() == (FED / "ca.crt").read_bytes()
    for number in (0, 1):
        assert read_node(FED / f"client-{number}").num_partitions == 3
    server = read_server(FED / "server")
    assert server.settings.clients == 3
    assert server.public_keys[2].read_bytes() == new.public_key.read_bytes()
    assert all(path.read_bytes() == data for path, data in others.items())
    assert add_client(FED) == FED / "client-3"


def test_add_client_to_an_insecure_federation():
    make(insecure=True)
    assert read_node(add_client(FED)).insecure


def test_add_client_where_the_others_were_handed_out():
    make()
    shutil.rmtree(FED / "client-0")
    assert add_client(FED) == FED / "client-2"
    assert not (FED / "client-0").exists()


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_add_client_goes_on_where_it_was_interrupted(monkeypatch, steps):
    make()
    replace, done = identity.replace_file, []

    def stop(*args):
        if len(done) == steps:
            raise KeyboardInterrupt
        done.append(replace(*args))

    with monkeypatch.context() as patch:
        patch.setattr(identity, "replace_file", stop)
        with pytest.raises(KeyboardInterrupt):
            add_client(FED)
    key = (FED / "client-2/client.key").read_bytes()
    assert add_client(FED) == FED / "client-2"
    assert (FED / "client-2/client.key").read_bytes() == key
    assert read_server(FED / "server").settings.clients == 3
    assert [read_node(FED / f"client-{n}").num_partitions for n in range(3)] == [3, 3, 3]


def test_a_killed_add_client_leaves_no_half_a_client():
    make()
    killed(lambda: add_client(FED), when=1)
    assert not (FED / "client-2").exists()
    assert read_server(FED / "server").settings.clients == 2
    add_client(FED)
    assert not [path.name for path in FED.iterdir() if path.name.startswith(".")]


def test_add_client_to_what_is_no_federation():
    with pytest.raises(Refused, match="fed is not a federation's folder"):
        add_client(FED)


# --- A new certificate -----------------------------------------------------------------------


def test_renew():
    make()
    before = read_certificate(FED / "server/server.crt")
    key = (FED / "server/server.key").read_bytes()
    tls = renew_server(FED, ["c.example.org", "10.9.9.9"], 90)
    assert (FED / "server/server.key").read_bytes() == key
    after = read_certificate(FED / "server/server.crt")
    assert after.serial_number != before.serial_number
    assert same_key(before.public_key(), after.public_key())
    server = read_server(FED / "server", at=datetime.now(UTC) + timedelta(days=89))
    assert (
        set(server.tls.hosts)
        == set(tls.hosts)
        == {
            *("a.example.org", "b.example.org", "c.example.org", "10.9.9.9"),
            *("localhost", "127.0.0.1", "::1"),
        }
    )
    assert server.tls.expires == tls.expires
    shake_hands("c.example.org", FED / "client-0/ca.crt")


def test_renew_makes_a_damaged_folder_whole():
    make()
    make("other/fed")
    for name in ("ca.crt", "server.crt"):
        shutil.copy(Path("other/fed/server") / name, FED / "server")
    (FED / "server/server.key").unlink()
    renew_server(FED, [], 30)
    read_server(FED / "server")
    (FED / "server/server.crt").write_text("rubbish")
    renew_server(FED, [], 30)
    assert "a.example.org" in read_server(FED / "server").tls.hosts


def test_renew_needs_the_authority():
    make()
    shutil.copytree(FED, "copy")
    (Path("copy") / "ca.key").unlink()
    with pytest.raises(Refused, match=r"copy/ca\.key is missing: renew where"):
        renew_server(Path("copy"), [], 30)
    make("other/fed")
    shutil.copy("other/fed/ca.key", FED)
    with pytest.raises(Refused, match=r"fed/ca\.crt does not belong to the key in fed/ca\.key"):
        renew_server(FED, [], 30)
    (FED / "ca.key").chmod(0o640)
    with pytest.raises(Refused, match=r"chmod 600 fed/ca\.key"):
        renew_server(FED, [], 30)


def test_renew_no_longer_than_the_authority(monkeypatch):
    monkeypatch.setattr("server.certificates._AUTHORITY_DAYS", 100)
    make(days=10)
    with pytest.raises(Refused, match=r"days must end before fed/ca\.crt does, on .*, got 101"):
        renew_server(FED, [], 101)
    renew_server(FED, [], 99)


@pytest.mark.parametrize(
    ("hosts", "days", "says"),
    [(["?"], 30, "host must name"), ([], 0, "days must be in"), ([], 3651, "days must be in")],
)
def test_renew_refuses_and_changes_nothing(hosts, days, says):
    make()
    before = (FED / "server/server.crt").read_bytes()
    with pytest.raises(Refused, match=says):
        renew_server(FED, hosts, days)
    assert (FED / "server/server.crt").read_bytes() == before


def test_an_insecure_federation_has_nothing_to_renew():
    make(insecure=True)
    with pytest.raises(Refused, match="it has no certificate to renew"):
        renew_server(FED, [], 30)
