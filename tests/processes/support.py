"""Flower's own processes for a test, on ports of their own, and gone at its end."""

import contextlib
import os
import signal
import socket
import subprocess
import time

from engram.simulations.loopback import LoopbackFederation


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


DEAD = "http://127.0.0.1:9"  # where nothing listens


def set_dead_proxies(monkeypatch):
    """Sets every variable that may name a proxy."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, DEAD)
        monkeypatch.setenv(name.upper(), DEAD)
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def wait_for(condition, seconds, what):
    """Waits until a condition holds; returns what made it hold."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {seconds} seconds")


class Running:
    """A process that was started, and its log."""

    def __init__(self, process, log):
        self.process = process
        self.log = log

    @property
    def pid(self):
        return self.process.pid

    def said(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    def ended(self, seconds):
        """Waits for its end; returns its exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {seconds} seconds:\n{self.said()}") from None


@contextlib.contextmanager
def running(launch, log):
    """Starts a process as the leader of a group, and ends the group, which is its children too."""
    with log.open("wb") as output:
        how = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        how |= {"env": launch.env, "cwd": launch.cwd}
        process = subprocess.Popen(launch.argv, start_new_session=True, **how)
    try:
        yield Running(process, log)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


@contextlib.contextmanager
def federation_of(folder, files):
    """Starts a federation whose nodes have a CSV file each; yields it when all are on line."""
    federation = LoopbackFederation(folder, clients=len(files))
    for client, path in enumerate(files):
        federation.options[f"client-{client}"] = ["--data", f"csv:{path}"]
    with federation:
        for name in federation.names[1:]:
            log = federation.log(name)
            wait_for(lambda log=log: "connected" in log.read_text(), 120, f"{name} is on line")
        yield federation
