"""Rows by name: the usual ones are read soon, and all others as well."""

from collections import OrderedDict, UserDict
from fractions import Fraction

import numpy as np
import pytest

from engram.online.estimators import OnlineClassifier, OnlineRegressor
from engram.online.model import _Reader
from tests.samples import entry

NAMES = np.array(["a", "b", "c"], dtype=object)


def reader(width=5):
    return _Reader(NAMES, width)


def test_a_row_is_filled_up_with_zeros():
    read = reader()
    one = read.read({"a": 1, "b": 2.5, "c": True}, 10.0)
    other = read.read({"a": np.float32(0.5), "b": Fraction(1, 4), "c": -10}, 10.0)
    np.testing.assert_array_equal(one, [[1, 2.5, 1, 0, 0]])
    np.testing.assert_array_equal(other, [[0.5, 0.25, -10, 0, 0]])


def test_unusual_rows_are_left_to_others():
    for row in [
        {"a": 1, "c": 3, "b": 2},
        {"a": 1, "b": 2},
        {"a": 1, "b": 2, "c": 3, "d": 4},
        {"a": 1, "b": 2, "c": "3"},
        {"a": 1, "b": 2, "c": None},
        {"a": 1, "b": 2, "c": np.nan},
        {"a": 1, "b": 2, "c": 1e91},
        {"a": 1, "b": 2, "c": 10**400},
        {},
    ]:
        with entry(row):
            read = reader()
            assert read.read(row, 1e90) is None
            assert read.read({"a": 1, "b": 2, "c": 3}, 1e90) is not None


def test_names_are_compared_by_value():
    read = reader()
    for _ in range(2):
        assert read.read({"".join(["a"]): 1, "b": 2, "c": 3}, 10.0) is not None


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict])
def test_the_order_of_names_and_the_kind_of_mapping_do_not_matter(kind):
    rng = np.random.default_rng(0)
    one, other = OnlineRegressor(), OnlineRegressor()
    for x in rng.normal(size=(30, 3)):
        row = dict(zip("abc", x.tolist(), strict=True))
        shuffled = kind((name, row[name]) for name in rng.permutation(list("abc")).tolist())
        assert one.predict_one(row) == other.predict_one({**row, **shuffled})
        one.learn_one(row, x.sum())
        if hasattr(other, "model_"):
            other.learn_one(shuffled, x.sum())
        else:
            other.learn_one(row, x.sum())
    np.testing.assert_array_equal(one.coef_, other.coef_)


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
