"""The numbers that hold through every rebuild.

Processors, even of one name, round sums otherwise, since they pick different kernels; so 1e-6 of a
number is allowed, or what ``ROUGH`` says. ``make golden``, on the machine that recorded the
numbers, asks for equality to the last bit. ``make test`` takes every fourth, and none that takes
seconds; ``make test-all`` takes all.
"""

import pytest

from tests.golden import methods
from tests.golden.cases import CASES, CHAOTIC, ROUGH, apart
from tests.golden.numbers import differences, read
from tests.samples import sampled

RECORDED = read()
NAMES = [name for name in CASES if name not in methods.CASES]
SLOW = {"study: sinewave, tuned", "study: sinewave, published", "library: learner, metagrad"}
SLOW |= {"run: per-fedavg, cnn"}


@pytest.mark.parametrize("name", sampled(NAMES, set(NAMES[::4]) - SLOW))
def test_the_numbers_are_as_recorded(name, tmp_path, pytestconfig):
    exact = pytestconfig.getoption("exact")
    if name in CHAOTIC and not exact:
        pytest.skip("no two processors agree on it")
    found = apart(RECORDED, name, tmp_path, exact=exact)
    assert not found, "\n".join(found[:20])


def test_nothing_else_is_recorded():
    assert RECORDED["cases"].keys() == CASES.keys() >= ROUGH.keys()


def test_a_difference_is_found():
    one = {"a": [1.0, 2.0], "b": {"sha256": "x", "sum": 3.0}}
    near = {"a": [1.0, 2.0 + 1e-8], "b": {"sha256": "y", "sum": 3.0}}
    assert list(differences(one, one)) == []
    assert list(differences(one, near, tolerance=(1e-6, 1e-9))) == []
    assert len(list(differences(one, near))) == 2
    assert list(differences(one, one | {"c": 1})) == []
    assert list(differences(one | {"c": 1}, one)) == [".c is missing"]
    assert len(list(differences(one, one | {"a": [1.0]}, tolerance=(1e-6, 1e-9)))) == 1
