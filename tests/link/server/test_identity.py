"""A federation's folders: what is in them, who can read them, and what a failure leaves."""

import os
import shutil
import signal
import stat
import tomllib
from itertools import product
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from engram.link.credentials import read_node, read_server
from engram.link.keys import read_node_key, read_public_key, same_key
from engram.link.server import identity
from engram.link.server.identity import add_client
from engram.link.server.renewal import renew_server
from engram.runs import folders
from engram.settings.errors import Refused
from tests.link.server.federations import FED, make
from tests.samples import entry


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
        "server/registry",
        *(f"server/clients/client-{n}.pub" for n in (0, 1)),
        *(f"client-{n}/{name}" for n in (0, 1) for name in CLIENT | {"ca.crt"}),
    }
    common = {"federation": "fed", "superlink": "a.example.org:9092"}
    assert settings("server/federation.toml") == common | {"clients": 2}
    assert settings("client-1/node.toml") == common | {"partition-id": 1, "num-partitions": 2}
    assert [path.name for path in Path().iterdir()] == ["fed"]


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o277, 0o777])
def test_modes_whatever_the_umask(umask, mask):
    umask(mask)
    make()
    add_client(FED)
    (FED / "server/server.key").unlink()
    renew_server(FED / "server", [], 30)
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


def test_an_empty_folder_is_taken_and_folders_above_are_made():
    FED.mkdir(mode=0o755)
    make()
    assert stat.S_IMODE(FED.stat().st_mode) == 0o700
    make("deep/down/fed")
    read_server(Path("deep/down/fed/server"))


def test_a_clients_key():
    make()
    private = read_node_key(FED / "client-0/client.key")
    assert isinstance(private.curve, ec.SECP256R1)
    assert same_key(read_public_key(FED / "server/clients/client-0.pub"), private.public_key())
    assert (FED / "client-0/client.pub").read_text().endswith(" fed/client-0\n")


# --- What is refused -------------------------------------------------------------------------


def test_impossible_arguments(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for change, says in [
        ({"clients": -1}, "clients must be at least 0, got -1"),
        ({"clients": 10**12}, "clients must be at most 1000000, got 1000000000000"),
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
    ]:
        with entry(change, says):
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


def test_a_failure_leaves_nothing(monkeypatch):
    write = folders._write
    for error, files in product((OSError(28, "disk full"), KeyboardInterrupt()), (0, 1, 7, 15)):
        done = []

        def fail(*args, error=error, files=files, done=done):
            if len(done) == files:
                raise error
            done.append(write(*args))

        monkeypatch.setattr(folders, "_write", fail)
        with entry(error, files):
            with pytest.raises((Refused, KeyboardInterrupt)) as caught:
                make()
            assert len(done) == files
            assert not list(Path().iterdir())
            if isinstance(error, OSError):
                assert str(caught.value).endswith("fed cannot be made: disk full")


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
        if path.suffix != ".toml" and path.is_file() and path.name != "registry"
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


def test_add_client_where_the_others_were_handed_out():
    with pytest.raises(Refused, match="fed is not a federation's folder"):
        add_client(FED)
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
