"""The recorded numbers of every method that trains networks, on both engines, and resumed.

`make test` runs those that an engine can tell apart, and `make test-all` all of them.
"""

from itertools import product

import pytest

from tests.golden import methods
from tests.golden.cases import apart
from tests.golden.methods import ENGINES, KINDS, METHODS, TOLERANCE, name_of
from tests.golden.numbers import differences, plain, read
from tests.samples import EIGHT, sampled

RECORDED = read()
# Each of the eight in one of its six cases, of which each is somebody's.
TURNS = [(kind, engine) for engine in ENGINES for kind in KINDS]
SAMPLE = [name_of(method, *TURNS[i % len(TURNS)]) for i, method in enumerate(EIGHT)]


@pytest.mark.parametrize("name", sampled(methods.CASES, SAMPLE))
def test_the_numbers_are_as_recorded(name, tmp_path, pytestconfig):
    found = apart(RECORDED, name, tmp_path, exact=pytestconfig.getoption("exact"))
    assert not found, "\n".join(found[:20])


RESUMED = [(method, ENGINES[i % 2]) for i, method in enumerate(METHODS)]
RESUMED = dict.fromkeys([*RESUMED, *product(EIGHT, ENGINES)])


@pytest.mark.parametrize(
    ("method", "engine"), sampled(RESUMED, [*product(("ditto", "pfedhn"), ENGINES)])
)
def test_a_resumed_run_gives_the_numbers_of_one_go(method, engine, tmp_path):
    """Within rounding: each of its parts may choose another way to train."""
    name = name_of(method, "personal", engine)
    ran = methods.resumed(method, "personal", engine, tmp_path / "run")
    again = plain(methods.numbers(ran, "personal", tmp_path))
    found = list(differences(RECORDED["cases"][name], again, tolerance=TOLERANCE, where=name))
    assert not found, "\n".join(found[:20])


def test_engines_agree():
    """Of what is recorded, as the tests above hold it."""
    for method in METHODS:
        for kind in KINDS:
            pair = [RECORDED["cases"][name_of(method, kind, engine)] for engine in ENGINES]
            for one, other in (pair, reversed(pair)):
                where = f"{method}, {kind}"
                assert not list(differences(one, other, tolerance=TOLERANCE, where=where))
