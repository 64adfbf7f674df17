"""Rows by name are learned in place, and no copy, and no function of the algorithm, notices."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest

from engram.online import mixture
from engram.online.estimators import OnlineRegressor

DUPLICATES = [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]


def drawn(count=40):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(count, 3))
    return [dict(zip("abc", row, strict=True)) for row in x.tolist()], (x @ [1.0, 2, 3]).tolist()


@pytest.mark.parametrize("full_matrix", [True, False])
@pytest.mark.parametrize("duplicate", DUPLICATES)
def test_a_copy_and_its_original_learn_apart(full_matrix, duplicate):
    # learn_one changes arrays in place, unless a copy may share them.
    rows, y = drawn()
    model = OnlineRegressor(full_matrix=full_matrix)
    for row, target in zip(rows[:20], y, strict=False):
        model.learn_one(row, target)
    other = duplicate(model)
    before = model.coef_
    for row in rows[20:]:
        model.learn_one(row, -5.0)
    np.testing.assert_array_equal(other.coef_, before)
    after = model.coef_
    for row in rows[20:]:
        other.learn_one(row, 5.0)
    np.testing.assert_array_equal(model.coef_, after)
    assert not np.array_equal(other.coef_, before)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_rows_one_by_one_in_place_are_as_rows_at_once(duplicate):
    rows, y = drawn()
    x = pd.DataFrame(rows)
    at_once, one_by_one = OnlineRegressor().partial_fit(x, y), OnlineRegressor()
    for number, (row, target) in enumerate(zip(rows, y, strict=True)):
        one_by_one.learn_one(row, target)
        if number % 10 == 3:
            one_by_one = duplicate(one_by_one)
    np.testing.assert_allclose(one_by_one.coef_, at_once.coef_, rtol=1e-9)


def test_one_function_changes_the_state_and_the_other_does_not():
    rows, y = drawn()
    model = OnlineRegressor().partial_fit(pd.DataFrame(rows), y)
    leaves = [leaf.copy() for leaf in model.model_.experts]
    x, target = np.ones((1, 3)), np.ones((1, 1))
    mixture.learned(model.task_, model.model_, x, target, np.ones(1))
    assert all(map(np.array_equal, leaves, model.model_.experts))
    spent = mixture.learned_in_place(model.task_, model.model_, x, target, np.ones(1))
    assert spent.experts.coefficients is model.model_.experts.coefficients
