"""Fixtures that tests of several rooms share; the rooms are imported where one is used."""

import shlex
import sys
from pathlib import Path

import pytest


@pytest.fixture
def afresh():
    """A node that has answered nothing."""
    from engram.client import app

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
