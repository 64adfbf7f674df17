"""A client's folder of a federation."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(engram):
    assert engram("init-federation", "fed", "--clients", 2)[0] == 0
    return Path("fed/client-1")
