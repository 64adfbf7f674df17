"""A clock of our own for what waits."""

import pytest

from engram.link.server import suspensions
from engram.server import grid
from tests.server.links import Clock


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (grid, suspensions):
        monkeypatch.setattr(module, "time", clock)
    return clock
