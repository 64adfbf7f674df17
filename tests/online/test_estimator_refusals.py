"""What estimators for streams refuse, and that nothing has changed then."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from engram.online.estimators import OnlineClassifier, OnlineRegressor
from engram.online.state_arrays import to_arrays
from tests.online.streams import by_name, labels, rows, standardized
from tests.samples import entry


def changed(x, row, column, value):
    x = x.copy()
    x[row, column] = value
    return x


NOT_FINITE = "column x1 must be finite.*got NaN in row 4"
BAD_TABLES = {
    "NaN": (lambda x, y: (changed(x, 4, 1, np.nan), y), NOT_FINITE),
    "masked": (lambda x, y: (np.ma.array(x, mask=changed(0 * x, 4, 1, 1)), y), NOT_FINITE),
    "infinity": (lambda x, y: (changed(x, 4, 1, np.inf), y), "column x1 .*got infinity in row 4"),
    "huge": (lambda x, y: (changed(x, 4, 1, 1e200), y), "column x1 .*at most 1e.90, got 1e.200"),
    "columns": (lambda x, y: (x[:, :2], y), "X has 2 features, but Online.* expecting 3"),
    "length": (lambda x, y: (x, y[1:]), "inconsistent numbers of samples"),
    "none": (lambda x, y: (x, None), "y should be a 1d array"),
}


def test_a_refused_table_changes_nothing(case):
    model, x, y, named = case
    unfitted = clone(model)
    model.partial_fit(x, y, **named)
    kept = pickle.dumps(model)
    for bad, (spoil, message) in BAD_TABLES.items():
        with entry(bad):
            fresh = clone(unfitted)
            with pytest.raises(ValueError, match=message):
                model.partial_fit(*spoil(x, y))
            assert pickle.dumps(model) == kept
            if bad != "columns":
                with pytest.raises(ValueError, match=message):
                    fresh.partial_fit(*spoil(x, y), **named)
                assert vars(fresh) == vars(unfitted)


WHOLE = {"age": 30.0, "income": 5e4, "height": 1.7}  # as rows are usually


def test_a_refused_row_changes_nothing(case):
    model, x, y, named = case
    for one, target in zip(by_name(x[:9]), y.tolist(), strict=False):
        model.learn_one(one, target, **named)
    kept = pickle.dumps(model)
    for row, message in [
        ({"age": float("nan"), "new": 1.0}, "column age must be finite.*got NaN"),
        ({"age": "old"}, "column 'age' must be a number, got 'old'"),
        (WHOLE | {"age": float("nan")}, "column age must be finite.*got NaN"),
        (WHOLE | {"height": 1e91}, "column height must be finite.*got 1e.91"),
        (WHOLE | {"height": "tall"}, "column 'height' must be a number, got 'tall'"),
        (WHOLE | {"height": "3"}, "column 'height' must be a number, got '3'"),
        ({"age": None}, "column age must be finite.*got NaN"),
        (5, "x must be a row by name, such as a dict, got 'int'"),
        ([30.0], "x must be a row by name, such as a dict, got 'list'"),
    ]:
        with entry(row):
            with pytest.raises(ValueError, match=message):
                model.learn_one(row, y[0])
            with pytest.raises(ValueError, match=message):
                model.predict_one(row)
            assert pickle.dumps(model) == kept
    with pytest.raises(ValueError, match=r"y must be one number or label, got \["):
        model.learn_one({"new": 1.0}, [y[0], y[1]])
    for w in (-1.0, np.nan, np.inf, "heavy"):
        with pytest.raises(ValueError, match="w must be finite and at least 0"):
            model.learn_one({"new": 1.0}, y[0], w=w)
    assert pickle.dumps(model) == kept


def test_labels_that_were_never_named_are_refused():
    x, _ = rows(40)
    model = OnlineClassifier().fit(x, labels(x))
    kept = pickle.dumps(model)
    y = labels(x)
    y[3] = "no!"
    with pytest.raises(ValueError, match=r"y must be one of \['no', 'yes'\], got .*no!"):
        model.partial_fit(x, y)
    with pytest.raises(ValueError, match="not the same as on last call"):
        model.partial_fit(x, labels(x), classes=["no", "yes", "perhaps"])
    assert pickle.dumps(model) == kept
    with pytest.raises(ValueError, match="got 1 class"):
        OnlineClassifier().fit(x, ["yes"] * 40)


def test_parameters_are_checked_at_the_first_row():
    for model, message in [
        (OnlineRegressor(loss="hinge"), "loss must be squared, absolute or quantile, got 'hinge'"),
        (OnlineRegressor(quantile=1.0), "quantile must be in"),
        (OnlineRegressor(radius=0.0), "radius must be finite and positive"),
        (OnlineClassifier(radius=np.inf), "radius must be finite and positive"),
        (OnlineClassifier(loss="squared"), "loss must be logistic or hinge, got 'squared'"),
        (OnlineRegressor(radius="a"), "radius must be finite and positive"),
        (OnlineClassifier(full_matrix="no"), "full_matrix must be True, False or None"),
        (OnlineClassifier(full_matrix=[1]), "full_matrix must be True, False or None"),
        (OnlineClassifier(learner="ball"), "learner must be mixture or universal, got 'ball'"),
    ]:
        with entry(model):
            x, y = rows(5)
            with pytest.raises(ValueError, match=message):
                model.fit(x, y > y.mean())
            assert vars(model) == vars(clone(model))


def test_weights_and_targets_are_checked():
    x, y = rows(5)
    for weight in (-1.0, 1e200):
        with pytest.raises(ValueError, match="sample_weight must be finite and at least 0"):
            OnlineRegressor().fit(x, y, sample_weight=[1, 1, weight, 1, 1])
    for value in (np.nan, np.inf, 1e200):
        with pytest.raises(ValueError, match="y must be finite"):
            OnlineRegressor().fit(x, [*y[:4], value])
    with pytest.raises(ValueError, match="y must be numbers, got 'a'"):
        OnlineRegressor().fit(x, list("abcde"))


def test_rows_by_name_need_names():
    x, y = rows(5)
    model = OnlineRegressor().fit(x, y)
    for call in (lambda: model.learn_one({"x0": 1.0}, 2.0), lambda: model.predict_one({"x0": 1.0})):
        with pytest.raises(ValueError, match="rows by name need names of columns"):
            call()


def test_only_the_logistic_loss_has_probabilities():
    model = OnlineClassifier(loss="hinge")
    assert not hasattr(model, "predict_proba")
    assert not hasattr(model, "predict_proba_one")
    assert hasattr(OnlineClassifier(), "predict_proba")


@pytest.mark.parametrize("learner", ["mixture", "universal"])
@settings(max_examples=20, deadline=None)
@given(
    stream=st.lists(
        st.tuples(
            st.sampled_from([0.0, 1.0, -1e90, 1e90, 1e-90, 3.5]),
            st.sampled_from([0.0, -2.0, 1e90, 1e-90]),
            st.sampled_from([0.0, 1.0, 1e-3, 1e90]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_whatever_is_accepted_leaves_finite_numbers(learner, stream):
    model = OnlineRegressor(learner=learner)
    for x, y, w in stream:
        model.learn_one({"a": x, "b": 1.0}, y, w=w)
    arrays = to_arrays(model.model_)
    assert all(np.isfinite(value).all() for value in arrays.values())
    assert np.isfinite(model.predict_one({"a": 1.0}))
    assert learner == "mixture" or np.linalg.norm(standardized(model)) <= 3 + 1e-9
