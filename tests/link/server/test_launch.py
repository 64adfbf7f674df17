"""Where a federation's server listens, and its warnings; none is started."""

import shutil
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from engram.link.addresses import Address
from engram.link.credentials import read_server
from engram.link.server.identity import init_federation
from engram.link.server.launch import check_free, listening_address, warnings
from engram.settings.errors import Refused
from tests.samples import entry


def made(superlink="127.0.0.1:9092", days=60):
    """Credentials of a new federation."""
    shutil.rmtree("fed", ignore_errors=True)
    init_federation(Path("fed"), clients=1, hosts=[], superlink=superlink, days=days)
    return read_server(Path("fed/server"))


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
            credentials = made(superlink)
            assert str(listening_address(credentials)) == fleet
            assert str(listening_address(credentials, "127.0.0.1:9001")) == "127.0.0.1:9001"
    with pytest.raises(Refused, match="fleet must be HOST:PORT"):
        listening_address(credentials, "9092")


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
        says = rf"nothing can listen at {host}:8000 \(.*with --fleet"
        with entry(host), pytest.raises(Refused, match=says):
            check_free(Address(host, 8000), "--fleet")


# --- Warnings --------------------------------------------------------------------------------


def test_warns_of_a_certificate_that_ends_soon():
    assert warnings(made()) == []
    (line,) = warnings(made(days=7))
    assert f"server.crt expires on {datetime.now(UTC) + timedelta(days=7):%Y-%m-%d}" in line
    assert line.endswith("fed/server")
