"""Rows by name: the usual ones are read soon, and all others as well."""

from collections import OrderedDict, UserDict
from fractions import Fraction

import numpy as np
import pytest

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
