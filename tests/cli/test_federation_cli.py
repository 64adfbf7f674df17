"""The coordinator's subcommands, as a user types them; nothing is started."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from engram.cli.__main__ import main
from engram.link.credentials import read_node, read_server
from engram.link.server.registration import roll
from engram.runs import folders
from tests.link.wire.processes import free_port
from tests.samples import entry

FED, SERVER = Path("fed"), Path("fed/server")


def refused(result, says):
    status, out, err = result
    assert (status, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


# --- init-federation -------------------------------------------------------------------------


def test_init(typed):
    status, out, err = typed("init-federation fed --clients 2 --host a.example.org --host 10.0.0.1")
    assert (status, err) == (0, "")
    server = read_server(SERVER)
    assert server.settings == ("fed", "a.example.org:9092", 2, "")
    assert {"a.example.org", "10.0.0.1", "localhost"} <= set(server.tls.hosts)
    assert "a.example.org:9092" in out
    assert "engram superlink fed/server" in out
    assert "PRIVATE" not in out
    assert read_node(FED / "client-1").superlink == "a.example.org:9092"
    status, out, _ = typed("init-federation fed --add-client")
    assert status == 0
    assert "fed/client-2: for the new client's machine" in out
    assert read_node(FED / "client-2").num_partitions == 3


def test_init_by_its_options(typed):
    for options, superlink, hosts in [
        ("--days 3", "127.0.0.1:9092", set()),
        ("--superlink c.org:70 --host a.org", "c.org:70", {"c.org", "a.org"}),
    ]:
        with entry(options):
            folder = options.split()[0][2:]
            status, out, _ = typed(f"init-federation {folder} --clients 1 {options}")
            server = read_server(Path(folder) / "server")
            assert (status, server.settings.superlink) == (0, superlink)
            assert "ca.key" in out
            assert {*server.tls.hosts} == hosts | {"127.0.0.1", "localhost", "::1"}


def test_init_refuses(typed):
    for options, says in [
        ("", "--clients must say how many"),
        ("--clients 1 --days 0", "days must be in 1..3650, got 0"),
        ("--clients 1 --host 1.2.3.4:80", "--host must name a host"),
        ("--add-client --clients 3", "--clients cannot be used with --add-client"),
        ("--add-client --host a", "--host cannot be used with --add-client"),
        ("--new-key 0 --clients 3", "--clients cannot be used with --new-key"),
        ("--add-client --new-key 0", "--new-key cannot be used with --add-client"),
        ("--new-key 0", "fed is not a federation's folder"),
    ]:
        with entry(options, says):
            refused(typed(f"init-federation fed {options}"), says)
            assert not list(Path().iterdir())


def test_new_key(typed):
    typed("init-federation fed --clients 2")
    before = read_node(FED / "client-1").public_key.read_bytes()
    (FED / "client-1" / "state").mkdir()
    status, out, _ = typed("init-federation fed --new-key 1")
    assert status == 0
    assert "fed/client-1: client.key and client.pub for the client's machine" in out
    registry = out.splitlines()[-1]
    assert registry.startswith("fed/server/registry: SHA256:")
    assert registry in typed("renew fed/server")[1].splitlines()
    own = read_node(FED / "client-1").public_key.read_bytes()
    assert own != before
    assert (SERVER / "clients" / "client-1.pub").read_bytes() == own
    assert (FED / "client-1" / "state").is_dir()
    assert (FED / "client-1" / "client.key").stat().st_mode & 0o777 == 0o600
    refused(typed("init-federation fed --new-key 2"), "be one of 0..1, and not invited, got 2")


def test_renew(typed):
    typed("init-federation fed --clients 1 --host a.example.org --days 1")
    status, out, _ = typed("renew fed/server --host b.example.org --days 50")
    assert status == 0
    tls = read_server(SERVER).tls
    assert {"a.example.org", "b.example.org"} <= set(tls.hosts)
    assert f"until {tls.expires:%Y-%m-%d}" in out
    assert "another port" not in out


def test_renew_with_another_address(typed):
    typed("init-federation fed --clients 2 --host a.example.org")
    status, out, _ = typed("renew fed/server --address b.example.org:9443")
    assert status == 0
    assert "Nodes that are connected follow by themselves" in out
    server = read_server(SERVER)
    assert server.settings.superlink == "b.example.org:9443"
    assert {"a.example.org", "b.example.org"} <= set(server.tls.hosts)
    status, _, _ = typed("renew fed/client-1 --address b.example.org:9443")
    assert status == 0
    node = read_node(FED / "client-1")
    assert (node.superlink, node.former) == ("b.example.org:9443", "a.example.org:9092")


def test_renew_refuses(typed):
    typed("init-federation fed --clients 1")
    for options, says in [
        ("fed", "fed is not a server's folder: it has no federation.toml"),
        ("fed/server --days 0", "days must be in 1..3650, got 0"),
        ("fed/server --address here", "address must be HOST:PORT"),
        ("fed/client-0 --address here", "address must be HOST:PORT"),
        ("fed/client-0", "fed/client-0 is not a server's folder"),
        ("fed/client-0 --address a:1 --host b", "--host cannot be used with a client's folder"),
    ]:
        with entry(options, says):
            before = [(SERVER / n).read_bytes() for n in ("federation.toml", "server.crt")]
            refused(typed(f"renew {options}"), says)
            now = [(SERVER / n).read_bytes() for n in ("federation.toml", "server.crt")]
            assert now == before


def test_the_remedies_that_it_names_help(typed):
    typed("init-federation fed --clients 1")
    path = SERVER / "federation.toml"
    path.write_text(path.read_text().replace("127.0.0.1", "d.example.org"))
    _, _, err = typed("superlink fed/server")
    assert typed(err.strip().rpartition(": engram ")[2])[0] == 0
    assert "d.example.org" in read_server(SERVER).tls.hosts


def test_kill_leaves_nothing():
    seen, say = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        status = 1
        try:

            def wait(*_):
                os.write(say, b"!")
                signal.pause()

            folders._write = wait
            sys.argv = ["engram", "init-federation", "fed", "--clients", "1"]
            main()
        except SystemExit as end:
            status = end.code
        finally:
            os._exit(status)
    os.close(say)
    with open(seen, "rb") as pipe:
        assert pipe.read(1) == b"!"
    assert list(Path().iterdir())
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert not list(Path().iterdir())


# --- superlink -------------------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch):
    """Servers that would have listened, and where; none does."""
    calls = []

    async def serve(hub, address):
        calls.append((hub, address))

    monkeypatch.setattr("engram.link.server.serving.serve_until_stopped", serve)
    return calls


def test_superlink(typed, served):
    fleet = free_port()
    typed(f"init-federation fed --clients 1 --superlink 127.0.0.1:{fleet}")
    status, out, _ = typed("superlink fed/server --max-reply 3")
    assert (status, out) == (0, f"server of fed: clients at 127.0.0.1:{fleet}\n")
    assert [address for _, address in served] == [f"127.0.0.1:{fleet}"]
    assert typed(f"superlink fed/server --fleet 0.0.0.0:{fleet}")[0] == 0
    assert [address for _, address in served[1:]] == [f"0.0.0.0:{fleet}"]


def test_superlink_refuses(typed, served):
    refused(typed("superlink fed"), "fed is not there")
    typed("init-federation fed --clients 1")
    refused(typed("superlink fed"), "name a folder that engram init-federation made")
    refused(typed("superlink fed/server --fleet here"), "fleet must be HOST:PORT")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused(typed(f"superlink fed/server --fleet 127.0.0.1:{port}"), f"port {port} is taken")
    assert not served


# --- register and remove ---------------------------------------------------------------------


def test_register_without_requests_names_the_members(typed):
    refused(typed("register fed/server"), "fed/server is not there")
    typed("init-federation fed --clients 0")
    named = "members, by their keys in fed/server/clients: "
    assert typed("register fed/server") == (0, f"{named}none yet\n", "")
    for _ in range(11):
        typed("init-federation fed --add-client")
    typed("remove fed/server 3")
    there = ", ".join(f"client-{number}" for number in range(11) if number != 3)
    assert typed("register fed/server") == (0, f"{named}{there}\n", "")


def test_remove(typed):
    typed("init-federation fed --clients 2")
    key = (SERVER / "clients" / "client-1.pub").read_bytes()
    (SERVER / "server.crt").unlink()  # whatever else is wrong
    status, out, err = typed("remove fed/server client-1")
    assert (status, err) == (0, "")
    assert out.startswith("client-1: its key is refused from now on\n")
    assert "engram init-federation FOLDER --new-key 1" in out
    (path,) = (SERVER / "clients").glob("client-1.*")
    assert (path.suffix, path.read_bytes()) == (".removed", key)
    assert (roll(SERVER).members, roll(SERVER).gone) == ({0}, {1})
    refused(typed("remove fed/server 1"), "the client must be one with a key in")


def test_remove_refuses(typed):
    typed("init-federation fed --clients 2")
    for client in ("2", "client-7", "../server", "client-x", "''", "client-01"):
        refused(
            typed(f"remove fed/server {client}"),
            "the client must be one with a key in fed/server/clients, client-0, client-1, got",
        )
    refused(typed("remove fed 0"), "name a folder that engram init-federation made")


def test_a_client_has_one_key(typed):
    typed("init-federation fed --clients 2")
    keys = [(SERVER / "clients/client-1.pub").read_bytes()]
    for _ in range(2):
        typed("init-federation fed --new-key 1")
        keys.append((SERVER / "clients/client-1.pub").read_bytes())
    (public, *gone) = sorted((SERVER / "clients").glob("client-1.*"), key=lambda p: p.suffix)
    assert public.read_bytes() == keys.pop()
    assert sorted(path.read_bytes() for path in gone) == sorted(keys)
    assert (roll(SERVER).members, roll(SERVER).gone) == ({0, 1}, set())
