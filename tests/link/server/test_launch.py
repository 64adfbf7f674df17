"""How the coordinator's processes would be started; none is."""

import os
import shutil
import socket
import stat
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from engram.link.addresses import Address
from engram.link.credentials import read_server
from engram.link.server.identity import init_federation
from engram.link.server.launch import (
    check_free,
    flwr_command,
    superlink_addresses,
    superlink_command,
    warnings,
)
from engram.settings.errors import Refused
from tests.samples import entry

SERVER = Path("fed/server")


def make(superlink="127.0.0.1:9092", **change):
    shutil.rmtree("fed", ignore_errors=True)
    init_federation(
        Path("fed"), **({"clients": 1, "hosts": [], "superlink": superlink, "days": 60} | change)
    )


@pytest.fixture(autouse=True)
def _fed():
    make()


def value(launch, option):
    assert launch.argv.count(option) == 1
    return launch.argv[launch.argv.index(option) + 1]


def test_a_superlink_with_tls():
    launch, here = superlink_command(SERVER), SERVER.absolute()
    python = str(Path(sys.executable).parent / "python")
    assert launch.argv[:4] == [python, "-P", "-m", "engram.link.server.superlink"]
    assert value(launch, "--max-reply") == "1024"
    assert "--open-control" not in launch.argv
    assert value(launch, "--ssl-ca-certfile") == str(here / "ca.crt")
    assert value(launch, "--ssl-certfile") == str(here / "server.crt")
    assert value(launch, "--ssl-keyfile") == str(here / "server.key")
    assert value(launch, "--database") == str(here / "superlink.db")
    assert value(launch, "--isolation") == "subprocess"
    assert "--disable-runtime-dependency-installation" in launch.argv
    assert "--enable-supernode-auth" in launch.argv
    assert "--insecure" not in launch.argv


def test_an_insecure_superlink():
    make(insecure=True)
    launch = superlink_command(SERVER, max_reply=7)
    assert value(launch, "--max-reply") == "7"
    argv = launch.argv
    assert "--insecure" in argv
    assert "--enable-supernode-auth" not in argv
    assert not [word for word in argv if word.startswith("--ssl")]


def test_users_are_served_on_this_machine_unless_asked_otherwise():
    make("coordinator.example.org:9092", hosts=["10.1.2.3"])
    launch = superlink_command(SERVER)
    assert (value(launch, "--host"), value(launch, "--port")) == ("127.0.0.1", "8000")
    launch = superlink_command(SERVER, control="10.1.2.3:8100", open_control=True)
    assert "--open-control" in launch.argv
    assert (value(launch, "--host"), value(launch, "--port")) == ("10.1.2.3", "8100")
    launch = superlink_command(SERVER, control="[::1]:8100")
    assert value(launch, "--host") == "::1"


def test_clients_are_served_where_they_connect_to():
    for superlink, fleet in [
        ("127.0.0.1:9000", "127.0.0.1:9000"),
        ("localhost:9000", "127.0.0.1:9000"),
        ("[::1]:9000", "[::1]:9000"),
        ("10.0.0.1:9000", "0.0.0.0:9000"),
        ("example.org:9000", "0.0.0.0:9000"),
        ("[2001:db8::1]:9000", "[::]:9000"),
    ]:
        with entry(superlink, fleet):
            make(superlink)
            assert value(superlink_command(SERVER), "--fleet-api-address") == fleet
            launch = superlink_command(SERVER, fleet="127.0.0.1:9001")
            assert value(launch, "--fleet-api-address") == "127.0.0.1:9001"


def test_its_surroundings(monkeypatch):
    monkeypatch.setenv("FLWR_HOME", "/elsewhere")
    monkeypatch.setenv("FLWR_INTERNAL_GRPC_CONTROL_API", "1")
    monkeypatch.setenv("LANG", "C.UTF-8")
    env, cwd = superlink_command(SERVER)[1:]
    assert env["FLWR_HOME"] == str(SERVER.absolute() / "flwr")
    assert (env["FLWR_TELEMETRY_ENABLED"], env["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert env["LANG"] == "C.UTF-8"
    assert "FLWR_INTERNAL_GRPC_CONTROL_API" not in env
    assert cwd == SERVER.absolute() / "empty"
    assert not list(cwd.iterdir())
    for folder in (cwd, Path(env["FLWR_HOME"])):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_nothing_to_import_in_its_working_directory():
    cwd = superlink_command(SERVER).cwd
    cwd.joinpath("runs").mkdir()  # results do no harm
    superlink_command(SERVER)
    for name in ("engram", "engram.py"):
        cwd.joinpath(name).mkdir()
        with entry(name), pytest.raises(Refused, match="fed/server/empty must have no engram"):
            superlink_command(SERVER)
        cwd.joinpath(name).rmdir()


def test_a_folder_that_is_not_in_order():
    (SERVER / "server.key").chmod(0o644)
    with pytest.raises(Refused, match="chmod 600"):
        superlink_command(SERVER)
    assert not (SERVER / "flwr").exists()


def test_flower_is_not_installed(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/bin/python")
    with pytest.raises(Refused, match="/nowhere/bin/python is not there"):
        superlink_command(SERVER)


def test_impossible_addresses():
    for given, says in [
        ({"fleet": "9092"}, "fleet must be HOST:PORT"),
        ({"control": "8000"}, "control must be HOST:PORT"),
        ({"control": "127.0.0.1:9092"}, "fleet and control must have ports of their own, got 9092"),
        ({"control": "10.1.2.3:8000"}, "not for 10.1.2.3, the host of --control"),
    ]:
        with entry(given, says):
            with pytest.raises(Refused, match=says) as caught:
                superlink_command(SERVER, **given)
            assert "\n" not in str(caught.value)


def test_control_is_for_other_machines_only_if_it_is_open_or_nodes_call_it(monkeypatch):
    make(hosts=["10.1.2.3"])
    monkeypatch.setattr("engram.link.flower.nodes_over_http", lambda: False)
    for control in ("0.0.0.0:8000", "10.1.2.3:8000"):
        says = f"must be a loopback address, .* got {control}.*open-cont"
        with entry(control), pytest.raises(Refused, match=says):
            superlink_command(SERVER, control=control)
    monkeypatch.setattr("engram.link.flower.nodes_over_http", lambda: True)
    launch = superlink_command(SERVER, control="0.0.0.0:8000")
    assert value(launch, "--host") == "0.0.0.0"
    assert "--open-control" not in launch.argv


def test_control_is_private_only_where_the_system_says_whose_connections_are(monkeypatch):
    monkeypatch.setattr("engram.link.server.launch.SOCKETS", (Path("/nowhere/tcp"),))
    with pytest.raises(Refused, match="this system has no /nowhere/tcp, which says"):
        superlink_command(SERVER)
    superlink_command(SERVER, open_control=True)


# --- Ports -----------------------------------------------------------------------------------


def test_a_port_that_is_taken():
    for host in ["127.0.0.1", "0.0.0.0", "localhost"]:
        with entry(host):
            with socket.socket() as other:
                other.bind(("127.0.0.1", 0))
                other.listen()
                port = other.getsockname()[1]
                with pytest.raises(Refused) as caught:
                    check_free(Address(host, port), "--fleet")
            assert str(caught.value) == (
                f"port {port} is taken: end what listens there, or give another one with --fleet"
            )
            check_free(Address(host, port), "--fleet")


def test_a_host_that_is_not_here():
    for host in ("192.0.2.1", "nowhere.invalid"):
        says = rf"nothing can listen at {host}:8000 \(.*with --control"
        with entry(host), pytest.raises(Refused, match=says):
            check_free(Address(host, 8000), "--control")


# --- Warnings --------------------------------------------------------------------------------


def warned(open_control=False, **given):
    credentials = read_server(SERVER)
    at = superlink_addresses(credentials, **given)
    return warnings(credentials, at, open_control=open_control)


def test_warns_of_insecurity_of_an_open_control_api_and_of_a_certificate_that_ends_soon():
    assert warned() == []
    (line,) = warned(open_control=True, control="0.0.0.0:8000")
    assert line.startswith("anyone who reaches 0.0.0.0:8000 can run programs here as this user")
    make("example.org:9092", insecure=True)
    (line,) = warned()
    assert line.startswith("fed is insecure: nothing is encrypted, and anyone who reaches 0.0.0.0")
    make(days=7)
    (line,) = warned()
    assert f"server.crt expires on {datetime.now(UTC) + timedelta(days=7):%Y-%m-%d}" in line
    assert line.endswith("fed/server")


# --- Flower's command ------------------------------------------------------------------------


def test_flwr_reads_what_is_written(monkeypatch):
    from flwr.cli.flower_config import read_superlink_connection

    launch = flwr_command(SERVER, "supernode", "list", control="0.0.0.0:8123")
    assert launch.argv[1:] == ["supernode", "list"]
    assert launch.argv[0].endswith("/flwr")
    assert launch.cwd == SERVER.absolute() / "empty"
    monkeypatch.setenv("FLWR_HOME", launch.env["FLWR_HOME"])
    connection = read_superlink_connection()
    assert (connection.name, connection.address) == ("fed", "127.0.0.1:8123")
    assert connection.root_certificates == str(SERVER.absolute() / "ca.crt")
    assert not connection.insecure

    with pytest.raises(Refused, match="not for coordinator, the host of --control"):
        flwr_command(SERVER, "supernode", "list", control="coordinator:8000")


def test_flwr_without_tls():
    make(insecure=True)
    home = Path(flwr_command(SERVER, "supernode", "list").env["FLWR_HOME"])
    connection = tomllib.loads((home / "config.toml").read_text())["superlink"]["fed"]
    assert connection == {"address": "127.0.0.1:8000", "insecure": True}
