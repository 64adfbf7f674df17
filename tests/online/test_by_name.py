"""Rows by name: the usual ones are read soon, all others as well, and learned in place."""

import copy
import pickle
from collections import OrderedDict, UserDict
from fractions import Fraction
from itertools import product

import numpy as np
import pandas as pd
import pytest

from engram.online import mixture
from engram.online.estimators import OnlineClassifier, OnlineRegressor
from tests.samples import entry


def test_the_order_of_names_and_the_kind_of_mapping_do_not_matter():
    for kind in (dict, OrderedDict, UserDict):
        with entry(kind):
            rng = np.random.default_rng(0)
            one, other = OnlineRegressor(), OnlineRegressor()
            for x in rng.normal(size=(30, 3)):
                row = dict(zip("abc", x.tolist(), strict=True))
                shuffled = kind((name, row[name]) for name in rng.permutation(list("abc")).tolist())
                assert one.predict_one(row) == other.predict_one({**row, **shuffled})
                one.learn_one(row, x.sum())
                other.learn_one(shuffled if hasattr(other, "model_") else row, x.sum())
            np.testing.assert_array_equal(one.coef_, other.coef_)


def test_missing_names_are_zeros_and_values_are_numbers_of_any_kind():
    first = {"a": 1.0, "b": 2.0, "c": 3.0}
    model = OnlineRegressor().learn_one(first, 2.0).learn_one({"a": 2.0, "d": 1.0}, 3.0)
    model.learn_one({"a": -1.0, "b": 0.25, "c": 1.0, "d": 0.0}, 1.0)
    whole = model.predict_one({"a": 0.5, "b": 0.25, "c": -10.0, "d": 0.0})
    for row in (
        {"a": 0.5, "b": 0.25, "c": -10},
        {"a": np.float32(0.5), "b": Fraction(1, 4), "c": -10, "d": False},
        {"".join(["a"]): 0.5, "b": 0.25, "c": -10, "d": 0},
    ):
        assert model.predict_one(row) == whole


def test_labels_are_the_classes_they_equal():
    for no, yes in [(False, True), (np.False_, np.True_), (0, 1.0)]:
        with entry(no, yes):
            rows = np.random.default_rng(0).normal(size=(30, 2))
            one, other = OnlineClassifier(), OnlineClassifier()
            for x in rows:
                row = {"a": x[0], "b": x[1]}
                one.learn_one(row, bool(x[0] > 0), classes=[False, True])
                other.learn_one(row, yes if x[0] > 0 else no, classes=[False, True])
            np.testing.assert_array_equal(one.coef_, other.coef_)
            for label in (2, "yes"):
                with pytest.raises(ValueError, match="y must be one of"):
                    other.learn_one({"a": 1.0, "b": 2.0}, label)


# --- In place, which no copy notices ---------------------------------------------------------

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
