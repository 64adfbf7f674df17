"""Deterministic tests: no deadlines, the same examples every time, one thread."""

import logging

import pytest
import torch
from hypothesis import settings

settings.register_profile("engram", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("engram")
torch.set_num_threads(1)
logging.getLogger("flwr").setLevel(logging.WARNING)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Runs every test in an empty folder of its own, so that none writes into the source."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def warnings_of_engram(caplog, monkeypatch):
    """Lets pytest see our warnings: Flower's logger keeps them from the root logger."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    return caplog
