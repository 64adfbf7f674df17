"""A client's folder of a federation, and a node that has answered nothing."""

from pathlib import Path

import pytest

from engram.link.flower import local_run


@pytest.fixture
def afresh():
    from engram.client import app

    local_run()
    app._node.cache_clear()


@pytest.fixture
def folder(engram):
    assert engram("init-federation", "fed", "--clients", 2)[0] == 0
    return Path("fed/client-1")
