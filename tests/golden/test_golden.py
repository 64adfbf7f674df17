"""The numbers that hold through every rebuild: as recorded, to the last bit in one process.

On a machine with another processor, or with other releases of torch and numpy, sums are rounded
otherwise, and 1e-6 of a number is allowed.
"""

import pytest
import torch
from threadpoolctl import threadpool_limits

from tests.golden.cases import CASES
from tests.golden.numbers import differences, machine, plain, read

RECORDED = read()
EXACT = RECORDED["machine"] == machine()


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_as_recorded(name, tmp_path):
    assert torch.get_num_threads() == 1
    with threadpool_limits(1):
        found = plain(CASES[name](tmp_path))
    apart = list(differences(RECORDED["cases"][name], found, exact=EXACT, where=name))
    assert not apart, "\n".join(apart[:20])


def test_nothing_else_is_recorded():
    assert RECORDED["cases"].keys() == CASES.keys()


def test_a_difference_is_found():
    one = {"a": [1.0, 2.0], "b": {"sha256": "x", "sum": 3.0}}
    near = {"a": [1.0, 2.0 + 1e-8], "b": {"sha256": "y", "sum": 3.0}}
    assert list(differences(one, one, exact=True)) == []
    assert list(differences(one, near, exact=False)) == []
    assert len(list(differences(one, near, exact=True))) == 2
    assert list(differences(one, one | {"c": 1}, exact=True)) == []
    assert list(differences(one | {"c": 1}, one, exact=True)) == [".c is missing"]
    assert len(list(differences(one, one | {"a": [1.0]}, exact=False))) == 1
