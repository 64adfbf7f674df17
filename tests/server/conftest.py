"""What tests of the server have in common: commands as typed, and a clock of our own."""

import json
import shlex
import sys
from types import SimpleNamespace

import pytest

from engram.cli.__main__ import main
from engram.link.server import control, registration, suspensions
from engram.server import grid
from tests.server.links import Clock


@pytest.fixture
def engram(monkeypatch, capfd):
    """Runs the command in this process; returns exit status, standard output and error."""

    def call(line):
        monkeypatch.setattr(sys, "argv", ["engram", *shlex.split(line)])
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code
        return status, *capfd.readouterr()

    return call


@pytest.fixture
def answers(monkeypatch):
    """What Flower's command would say, one answer a call; and what it was asked."""
    said, asked = [], []

    def run(argv, **options):
        asked.append((argv, options))
        answer = said.pop(0)
        if isinstance(answer, Exception):
            raise answer
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return SimpleNamespace(stdout=text, stderr="", returncode=0)

    monkeypatch.setattr(control.subprocess, "run", run)
    monkeypatch.setattr(registration, "_STARTING", 0.0)
    return said, asked


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (grid, suspensions):
        monkeypatch.setattr(module, "time", clock)
    return clock
