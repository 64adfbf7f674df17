"""Proxies of the environment: a federation's own connections do without them."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from engram.link.addresses import direct
from engram.link.server.launch import program
from tests.samples import entry

DEAD = "http://127.0.0.1:9"  # where nothing listens
HERE = "localhost,127.0.0.1,::1"


@pytest.fixture
def proxies(monkeypatch):
    """Sets every variable that may name a proxy."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, DEAD)
        monkeypatch.setenv(name.upper(), DEAD)
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
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
    for given, expected in EXCLUDED:
        with entry(given, expected):
            found = direct(given, "fed.org")
            assert found["no_proxy"] == found["NO_PROXY"]
            assert {name: found[name] for name in expected} == expected


def test_all_that_is_excluded_is_not_made_less():
    assert direct({"no_proxy": "*"}, "fed.org") == {"no_grpc_proxy": f"*,{HERE},fed.org"}


def test_programs_are_started_without(proxies, tmp_path):
    proxies.delenv("grpc_proxy")
    env = program("python", home=tmp_path / "home", hosts=["fed.org"]).env
    assert (env["http_proxy"], env["no_proxy"]) == (DEAD, f"{HERE},fed.org")
