"""Rows by name are learned in place, and no copy, and no function of the algorithm, notices."""

import copy
import pickle
from itertools import product

import numpy as np
import pandas as pd

from engram.online import mixture
from engram.online.estimators import OnlineRegressor
from tests.samples import entry

DUPLICATES = [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]


def drawn(count=40):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(count, 3))
    return [dict(zip("abc", row, strict=True)) for row in x.tolist()], (x @ [1.0, 2, 3]).tolist()


def test_a_copy_and_its_original_learn_apart():
    # learn_one changes arrays in place, unless a copy may share them.
    for full_matrix, duplicate in product([True, False], DUPLICATES):
        with entry(full_matrix, duplicate):
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


def test_one_function_changes_the_state_and_the_other_does_not():
    rows, y = drawn()
    model = OnlineRegressor().partial_fit(pd.DataFrame(rows), y)
    leaves = [leaf.copy() for leaf in model.model_.experts]
    x, target = np.ones((1, 3)), np.ones((1, 1))
    mixture.learned(model.task_, model.model_, x, target, np.ones(1))
    assert all(map(np.array_equal, leaves, model.model_.experts))
    spent = mixture.learned(model.task_, model.model_, x, target, np.ones(1), in_place=True)
    assert spent.experts.coefficients is model.model_.experts.coefficients
