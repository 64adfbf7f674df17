"""Fixtures that tests of several rooms share; the rooms are imported where one is used."""

import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture
def afresh():
    """A node that has answered nothing."""
    from engram.client import app
    from engram.wire.messages import local_run

    local_run()
    app._node.cache_clear()


@pytest.fixture
def called(monkeypatch):
    """Runs the command in this process; returns the exit status."""
    from engram.cli.__main__ import main

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["engram", *map(str, args)])
        try:
            main()
        except SystemExit as end:
            return end.code
        return 0

    return call


@pytest.fixture
def engram(called, capsys):
    """Runs the command; returns exit status, standard output and error."""
    return lambda *args: (called(*args), *capsys.readouterr())


@pytest.fixture
def typed(called, capfd):
    """Runs the command as one line, and returns what its processes have written as well."""
    return lambda line: (called(*shlex.split(line)), *capfd.readouterr())


@pytest.fixture
def folder(engram):
    """A client's folder of a federation."""
    assert engram("init-federation", "fed", "--clients", 2)[0] == 0
    return Path("fed/client-1")


@pytest.fixture
def answers(monkeypatch):
    """Answers of Flower's command, one a call; and the questions."""
    from engram.link.server import control, registration

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
