"""HOST:PORT, as it is read and written, and proxies, which federations do without."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.link.addresses import Address, check_host, direct, parse_address
from engram.settings.errors import Refused
from tests.processes.support import DEAD, set_dead_proxies
from tests.samples import entry

names = st.from_regex(r"[a-z][a-z0-9-]{0,10}[a-z0-9](\.[a-z]{2,5})?", fullmatch=True)
ips = st.ip_addresses().filter(lambda ip: not getattr(ip, "scope_id", None)).map(str)


@given(st.builds(Address, names | ips, st.integers(1, 65535)))
def test_is_read_as_it_is_written(address):
    assert parse_address(str(address), "superlink") == address


def test_has_one_spelling():
    given = ("Node.Example.ORG:1", "[0:0::1]:65535", "a_b:80")
    found = [parse_address(text, "superlink").host for text in given]
    assert found == ["node.example.org", "::1", "a_b"]


NO_ADDRESSES = [
    *("", "host", "host:", ":80", "host:0", "host:65536", "host:8o", "host:٣", "a:80\n"),
    *("::1:80", "[::1]", "[host]:80", "[fe80::1%eth0]:80", "1.2.3.400:80", "[1.2.3.4]:80"),
    *("http://host:80", "host:80/", "a b:80", "-a:80", "a..b:80", "ä:80", "*.a.org:80"),
    f"{'a' * 64}:80",
]


def test_refuses_what_is_none():
    for text in NO_ADDRESSES:
        with entry(text), pytest.raises(Refused, match=r"^superlink must .*, got '.*'$"):
            parse_address(text, "superlink")


REACHED = [
    ("localhost:1", True, "localhost:1"),
    ("127.8.0.1:1", True, "127.8.0.1:1"),
    ("[::1]:1", True, "[::1]:1"),
    ("0.0.0.0:1", False, "127.0.0.1:1"),
    ("[::]:1", False, "[::1]:1"),
    ("10.0.0.1:1", False, "10.0.0.1:1"),
    ("example.org:1", False, "example.org:1"),
]


def test_who_reaches_it():
    for text, loopback, reached in REACHED:
        with entry(text, loopback, reached):
            address = parse_address(text, "control")
            assert (address.is_loopback, str(address.reached_at)) == (loopback, reached)


def test_a_host_alone():
    assert check_host("::0001", "--host") == "::1"
    with pytest.raises(Refused, match="--host must name a host"):
        check_host("example.org:80", "--host")


HERE = "localhost,127.0.0.1,::1"


@pytest.fixture
def proxies(monkeypatch):
    set_dead_proxies(monkeypatch)
    return monkeypatch


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_grpc_reaches_this_machine(proxies, host):
    server = grpc.server(ThreadPoolExecutor(1))
    try:
        port = server.add_insecure_port(f"{host}:0")
    except RuntimeError:
        pytest.skip(f"this machine has no {host}")
    server.start()
    for name, value in direct({"grpc_proxy": DEAD}).items():
        proxies.setenv(name, value)
    try:
        with grpc.insecure_channel(f"{host}:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=20)
    finally:
        server.stop(None)


EXCLUDED = [
    ({}, {"no_proxy": f"{HERE},fed.org", "no_grpc_proxy": f"{HERE},fed.org"}),
    ({"grpc_proxy": DEAD}, {"no_proxy": HERE, "no_grpc_proxy": HERE}),  # asked for
    (
        {"no_proxy": "a.org, ::1", "http_proxy": DEAD},
        {"no_proxy": "a.org,::1,localhost,127.0.0.1,fed.org"},
    ),
    ({"NO_PROXY": "a.org"}, {"NO_PROXY": f"a.org,{HERE},fed.org"}),
    (
        {"no_proxy": "a.org", "no_grpc_proxy": "b.org"},
        {"no_proxy": f"a.org,{HERE},fed.org", "no_grpc_proxy": f"b.org,{HERE},fed.org"},
    ),
]


def test_what_is_excluded_stays_so():
    for variables, expected in EXCLUDED:
        with entry(variables, expected):
            found = direct(variables, "fed.org")
            assert found["no_proxy"] == found["NO_PROXY"]
            assert {name: found[name] for name in expected} == expected


def test_all_that_is_excluded_is_not_made_less():
    assert direct({"no_proxy": "*"}, "fed.org") == {"no_grpc_proxy": f"*,{HERE},fed.org"}
