"""Versions of a tensor against plain copies."""

import copy
import pickle
from itertools import product

import torch
from hypothesis import given
from hypothesis import strategies as st

from engram.bandits.versioned_tensor import Persistent
from tests.samples import entry

ROWS, COLUMNS = 4, 3
PLACES = (
    1,
    (2, 0),
    slice(1, 3),
    (torch.tensor([0, 3]), torch.tensor([2, 2])),
    torch.tensor([True, False, False, True]),
)


def equal(a, b):
    return torch.equal(a, b) and a.dtype == b.dtype


@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.sampled_from(PLACES), st.integers(0, 99)),
        min_size=1,
        max_size=30,
    )
)
def test_a_tree_of_versions_reads_as_plain_copies_do(steps):
    plain = [torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS)]
    versions = [Persistent(plain[0].clone())]
    for number, (parent, place, read) in enumerate(steps):
        copied = plain[parent % len(plain)].clone()
        values = torch.full_like(copied[place], 100.0 + number)
        copied[place] = values
        versions.append(versions[parent % len(versions)].write(place, values))
        plain.append(copied)
        assert equal(versions[read % len(versions)].read(), plain[read % len(plain)])
    for version, expected in zip(versions, plain, strict=True):
        assert equal(version.read(), expected)
    for version, expected in zip(reversed(versions), reversed(plain), strict=True):
        assert equal(version.read(), expected)


def test_copies_and_pickles_are_of_one_version_and_independent():
    pickled = [lambda version: pickle.loads(pickle.dumps(version))]
    for which, copied in product([0, 1, 2], [copy.copy, copy.deepcopy, *pickled]):
        with entry(which, copied):
            first = Persistent(torch.zeros(3))
            second = first.write(0, torch.tensor(1.0))
            third = second.write(1, torch.tensor(2.0))
            expected = [[0, 0, 0], [1, 0, 0], [1, 2, 0]]
            versions = (first, second, third)
            other = copied(versions[which])
            changed = other.write(2, torch.tensor(9.0))
            assert [version.read().tolist() for version in versions] == expected
            assert changed.read().tolist() == [*expected[which][:2], 9]
            assert other.read().tolist() == expected[which]


def test_a_long_history_is_read_and_dropped():
    first = last = Persistent(torch.zeros(2))
    for number in range(20_000):
        last = last.write(number % 2, torch.tensor(float(number)))
    assert first.read().tolist() == [0, 0]
    assert last.read().tolist() == [19_998, 19_999]
    del last
    assert first.read().tolist() == [0, 0]
    del first
