"""Settings of methods: the ranges and meanings that users see, and values out of range."""

from types import SimpleNamespace

import pytest
from annotated_types import Interval

from engram.core.settings import METHODS, Search, about, ranges
from engram.settings.errors import Refused
from engram.settings.families import METHODS as LISTED
from engram.settings.fields import range_of, searched_range
from tests.methods.test_contract import CASES
from tests.samples import entry
from tests.support import small

NAMES = [name for name in CASES if name in LISTED]


def test_settings_are_those_that_users_give():
    for name in NAMES:
        listed, made = LISTED[name].model_fields, dict(ranges(METHODS[name]))
        assert listed.keys() == made.keys(), name
        for key, notes in made.items():
            check_setting(listed[key], getattr(METHODS[name], key), notes, f"{name}'s {key}")


def check_setting(field, default, notes, name):
    assert default == field.default, name
    assert field.description in notes, name
    search = next((tuple(note) for note in notes if isinstance(note, Search)), None)
    assert (searched_range(field) and tuple(searched_range(field))) == search, name
    bounds = []
    for note in notes:
        bounds += note if isinstance(note, Interval) else [note]
    kind = type(field.default) if not isinstance(field.default, str) else str
    if kind in (int, float):
        mine = SimpleNamespace(annotation=kind, metadata=bounds)
        assert range_of(mine) == range_of(field), name


def test_methods_say_what_listings_say():
    for name in NAMES:
        said, listed = about(METHODS[name]), LISTED[name]
        assert said.source == listed.source, name
        assert (said.compared, said.reference) == (listed.compared, listed.reference), name
        assert said.tasks == listed.tasks, name
        assert said.personal == listed.personal, name


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
