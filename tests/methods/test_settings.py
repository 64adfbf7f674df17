"""Settings of methods: the ranges and meanings that users see, and values out of range."""

from pathlib import Path

import pytest

from engram.core.settings import METHODS
from engram.methods import entries
from engram.settings.errors import Refused
from tests.samples import entry
from tests.support import small


def test_the_index_is_up_to_date():
    index = Path(entries.__file__).with_name("index.json").read_text(encoding="utf-8")
    assert entries.written() == index


def test_values_out_of_range_are_refused():
    for name, key, value, message in [
        ("ditto", "lambda_", -1.0, "lambda must be at least 0, got -1"),
        ("local-moml", "beta", 1.5, "beta must be at most 1, got 1.5"),
        ("fedrep", "personal_share", 1.0, "personal-share must be below 1, got 1"),
        ("apfl", "alpha", -0.1, "alpha must be at least 0, got -0.1"),
    ]:
        with entry(name, key, value), pytest.raises(ValueError, match=message):
            METHODS[name](**{key: value})


def test_what_a_method_is_not_for_is_refused():
    for settings, message in [
        ({"method": "fedpac", "task": "regression"}, "task must be classification for fedpac"),
        ({"method": "fedproto", "task": "regression"}, "task must be classification for fedproto"),
        ({"method": "knn-per", "task": "multi-label"}, "task must be classification for knn-per"),
        ({"method": "fedpac", "local_steps": 1}, "local-steps must be at least 2 for fedpac"),
    ]:
        with entry(settings), pytest.raises(Refused, match=message):
            small(**settings)
