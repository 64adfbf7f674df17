"""Means and deviations of columns, fitted in parts, against numpy on all rows."""

import json

import numpy as np
import pytest
import torch

from engram.core.standardization import Moments, Standard, Units, comparable, merged
from tests.samples import entry

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(50, 3)) * [1e-3, 1.0, 1e6] + [5, 0, -1e9]


def test_parts_merge_into_the_moments_of_all_rows():
    for cuts in [(), (1,), (10, 11, 40)]:
        with entry(cuts):
            found = merged(map(Moments.of, np.split(ROWS, cuts))).standard()
            np.testing.assert_allclose(found.mean, ROWS.mean(0), rtol=1e-12, atol=1e-15)
            np.testing.assert_allclose(found.deviation, ROWS.std(0), rtol=1e-9)
            assert merged([]) is None


def test_a_large_mean_costs_no_digits():
    rows = np.array([[1e9], [1e9 + 1], [1e9 + 2]])
    found = merged([Moments.of(rows[:1]), Moments.of(rows[1:])]).standard()
    assert found.deviation[0] == pytest.approx(np.sqrt(2 / 3))  # of 0, 1 and 2


def test_constant_columns_have_deviation_1():
    for value in [0.0, 0.1, -7e8]:
        with entry(value):
            parts = [Moments.of(np.full((count, 1), value)) for count in (3, 7, 11)]
            assert merged(parts).standard().deviation == (1.0,)


def test_columns_that_are_no_numbers_stay_as_they_are():
    parts = [Moments.of(part, np.array([True, False, True])) for part in np.split(ROWS, [20])]
    mean, deviation = merged(parts).standard()
    assert (mean[1], deviation[1]) == (0.0, 1.0)
    assert mean[0] == pytest.approx(ROWS[:, 0].mean())


def test_one_site_beyond_measure_is_not_merged_with_others():
    usual = [Moments.of(part) for part in np.split(ROWS, 5)]
    far = usual[0]._replace(means=(1e30, 0.0, 0.0))
    wide = usual[0]._replace(squares=(1e30, 1.0, 1.0))  # a root mean square of 3e14, not 5
    narrow = Moments(10, (1.0,), (1.0,))
    assert comparable([far, *usual, wide, narrow]) == [False, *[True] * 5, False, False]
    assert comparable([far, usual[0]]) == [False, True]
    assert comparable([narrow]) == [True]
    assert comparable([]) == []
    # Of a column that most lack, nobody is left out.
    parts = [Moments(10, (value,), (0.0,)) for value in (0.0, 0.0, 0.0, 1e9)]
    assert comparable(parts) == [True] * 4


def test_values_are_standardized_and_restored():
    x = torch.from_numpy(ROWS).float()
    standard = Moments.of(x.double().numpy()).standard()
    found = standard.standardized(x)
    expected = (x.double().numpy() - x.double().numpy().mean(0)) / x.double().numpy().std(0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert found.dtype == torch.float32
    torch.testing.assert_close(standard.restored(found), x, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(standard.scaled(x)[:, 1] * standard.deviation[1], x[:, 1])
    one = Standard((2.0,), (4.0,))
    assert one.standardized(torch.tensor([10.0, 2.0])).tolist() == [2.0, 0.0]


def test_units_survive_json():
    for units in (Units(), Units(Standard((1.0, 2.0), (3.0, 4.0)), Standard((0.5,), (0.25,)))):
        assert Units.from_json(json.loads(json.dumps(units.to_json()))) == units
