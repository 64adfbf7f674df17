"""Flower's own processes for a test, on ports of their own, and gone at its end."""

import contextlib
import time

from engram.simulations.loopback import LoopbackFederation
from tests.link.wire.processes import PATIENCE

DEAD = "http://127.0.0.1:9"  # where nothing listens


def set_dead_proxies(monkeypatch):
    """Sets every variable that may name a proxy."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, DEAD)
        monkeypatch.setenv(name.upper(), DEAD)
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def wait_for(condition, what):
    """Waits until a condition holds; returns what made it hold."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {PATIENCE} seconds")


@contextlib.contextmanager
def federation_of(folder, files):
    """Starts a federation whose nodes have a CSV file each; yields it when all are on line."""
    federation = LoopbackFederation(folder, clients=len(files))
    for client, path in enumerate(files):
        federation.options[f"client-{client}"] = ["--data", f"csv:{path}"]
    with federation:
        for name in federation.names[1:]:
            log = federation.log(name)
            wait_for(lambda log=log: "connected" in log.read_text(), f"{name} is on line")
        yield federation
