"""Estimators for streams: what is learned, tables and rows by name, scikit-learn's own checks."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.utils.estimator_checks import check_estimator

from engram.online.estimators import OnlineClassifier, OnlineRegressor
from tests.online.streams import BETA, NAMES, by_name, labels, rows, same, standardized

# --- What is learned -------------------------------------------------------------------------


def test_a_regression_in_any_units_is_least_squares():
    x, y = rows(1500)
    model, other = OnlineRegressor().fit(x, y), LinearRegression().fit(x, y)
    sd = x.std(axis=0)
    np.testing.assert_allclose(model.coef_ * sd, other.coef_ * sd, atol=0.15)  # of 6 in all
    assert model.score(x, y) > other.score(x, y) - 0.006
    # The same numbers in other units are the same model, to rounding.
    other = x * [1e-6, 1e3, 1] + [5, 0, -3]
    found = OnlineRegressor().fit(other, 1e4 * y - 2).predict(other)
    np.testing.assert_allclose(found, 1e4 * model.predict(x) - 2, rtol=1e-6)


def test_a_classification_in_any_units_is_logistic_regression():
    x, _ = rows(1500)
    y = labels(x)
    model = OnlineClassifier().fit(x, y)
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    other = LogisticRegression(C=np.inf).fit(z, y)
    np.testing.assert_allclose(model.coef_ * x.std(axis=0), other.coef_, atol=0.4)
    expected = other.predict_proba(z)
    assert np.abs(model.predict_proba(x) - expected).mean() < 0.02
    assert model.classes_.tolist() == ["no", "yes"]


@pytest.mark.parametrize(("q", "loss"), [(0.5, "absolute"), (0.5, "quantile"), (0.9, "quantile")])
def test_quantiles(q, loss):
    x, y = rows(3000)
    model, below = OnlineRegressor(loss=loss, quantile=q), []
    for start in range(0, 3000, 10):
        some = slice(start, start + 10)
        below.append(np.mean(y[some] <= model.predict(x[some])) if start else q)
        model.partial_fit(x[some], y[some])
    assert np.mean(below[50:]) == pytest.approx(q, abs=0.03)


@pytest.mark.parametrize("loss", ["absolute", "squared"])
def test_one_target_out_of_all_range_ruins_nothing(loss):
    x, y = rows(1200)
    clean = OnlineRegressor(loss=loss).fit(x, y)
    y[600] = 1e9
    model = OnlineRegressor(loss=loss).fit(x, y)
    errors = [np.abs(m.predict(x) - (x @ BETA + 7)).mean() for m in (clean, model)]
    assert errors[1] < errors[0] + 0.1


def test_the_squared_loss_is_not_cut_for_long():
    # Skewed targets of mean 1 and median 0.49: cut at two standard deviations, it finds 0.6.
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2500, 2)), np.exp(1.2 * rng.normal(size=2500) - 0.72)
    model = OnlineRegressor().fit(x, y)
    assert model.predict(x).mean() == pytest.approx(y.mean(), abs=0.2)


def test_several_classes_are_learned_each_against_the_rest():
    rng = np.random.default_rng(0)
    centers = np.array([[0.0, 0.0], [4e5, 0.0], [0.0, 4e-3]])
    y = rng.integers(0, 3, 600)
    x = centers[y] + rng.normal(size=(600, 2)) * [1e5, 1e-3]
    names = np.array(["a", "b", "c"])[y]
    model = OnlineClassifier().fit(x, names)
    assert model.score(x, names) > 0.93
    assert (model.coef_.shape, model.intercept_.shape) == ((3, 2), (3,))
    found = model.predict_proba(x)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert model.decision_function(x).shape == (600, 3)
    assert np.array_equal(model.predict(x), model.classes_[found.argmax(axis=1)])
    at = model.decision_function(centers) > 0
    assert np.array_equal(at, np.eye(3, dtype=bool))


def test_coefficients_are_of_columns_as_they_are():
    x, y = rows(300)
    model = OnlineRegressor().fit(x, y)
    np.testing.assert_allclose(x @ model.coef_ + model.intercept_, model.predict(x), rtol=1e-9)
    classifier = OnlineClassifier().fit(x, labels(x))
    scores = x @ classifier.coef_[0] + classifier.intercept_
    np.testing.assert_allclose(scores, classifier.decision_function(x), rtol=1e-8)
    odds = np.log(classifier.predict_proba(x)[:, 1] / classifier.predict_proba(x)[:, 0])
    np.testing.assert_allclose(odds, scores, rtol=1e-6)


# --- Tables and rows -------------------------------------------------------------------------


def test_every_estimator_meets_the_contract(case):
    model, *rows_ = case
    for check in (
        check_a_table_is_its_rows_in_their_order,
        check_fit_is_a_fresh_start_and_a_failed_one_none,
        check_a_pickle_goes_on_bit_for_bit,
        check_parameters_count_from_the_first_row,
        check_a_weight_multiplies_a_loss,
    ):
        check(clone(model), *rows_)


def check_a_table_is_its_rows_in_their_order(model, x, y, named):
    frame = pd.DataFrame(x, columns=NAMES)
    table, parts, one, whole = (clone(model) for _ in range(4))
    table.partial_fit(frame, y, **named)
    for rows_ in (slice(0, 1), slice(1, 50), slice(50, 120)):
        parts.partial_fit(frame[rows_], y[rows_], **named)
    for row, target in zip(by_name(x), y.tolist(), strict=True):
        one.learn_one(row, target, **named)
    whole.fit(frame, y)
    assert same(table, parts)
    assert same(table, one)
    assert same(table, whole)
    assert one.feature_names_in_.tolist() == NAMES
    assert one.n_features_in_ == 3
    assert np.array_equal(one.predict(frame), table.predict(frame))
    expected = pytest.approx(table.predict(frame[:9]).tolist())
    assert [one.predict_one(row) for row in by_name(x[:9])] == expected


def check_fit_is_a_fresh_start_and_a_failed_one_none(model, x, y, named):
    model.partial_fit(x, y, **named)
    again = clone(model).fit(x[50:], y[50:])
    kept = pickle.dumps(model)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full_like(x, np.nan), y)
    assert pickle.dumps(model) == kept
    assert same(model.fit(x[50:], y[50:]), again)
    named_table = pd.DataFrame(x, columns=NAMES)
    assert hasattr(model.fit(named_table, y), "feature_names_in_")
    assert not hasattr(model.fit(x, y), "feature_names_in_")


def check_a_pickle_goes_on_bit_for_bit(model, x, y, named):
    model.partial_fit(x[:60], y[:60], **named)
    copy = pickle.loads(pickle.dumps(model))
    assert same(model.partial_fit(x[60:], y[60:]), copy.partial_fit(x[60:], y[60:]))
    assert np.array_equal(model.predict(x), copy.predict(x))


def check_parameters_count_from_the_first_row(model, x, y, named):
    other = clone(model).partial_fit(x[:60], y[:60], **named)
    model.partial_fit(x[:60], y[:60], **named)
    model.set_params(radius=0.1)
    assert same(model.partial_fit(x[60:], y[60:]), other.partial_fit(x[60:], y[60:]))
    other = clone(model).partial_fit(x, y, **named)
    assert same(model.fit(x, y), other)
    assert other.task_.radius == 0.1


def check_a_weight_multiplies_a_loss(model, x, y, named):
    plain, scaled, none = (clone(model) for _ in range(3))
    plain.partial_fit(x, y, **named)
    # All weights alike are none, as the first says what is usual; powers of two, for no rounding.
    scaled.partial_fit(x, y, sample_weight=np.full(120, 2.0**-20), **named)
    np.testing.assert_allclose(standardized(plain), standardized(scaled), rtol=1e-9)
    # Rows of weight 0 are not there.
    weights = np.arange(120) % 3 / 2.0
    none.partial_fit(x, y, sample_weight=weights, **named)
    some, there = clone(model), weights > 0
    some.partial_fit(x[there], y[there], sample_weight=weights[there], **named)
    assert same(none, some)
    plain = clone(model).fit(x[there], y[there])
    assert not np.array_equal(none.predict(x), plain.predict(x))


def test_new_names_become_columns_and_leave_the_others_alone():
    x, y = rows(400)
    model = OnlineRegressor()
    for row, target in zip(by_name(x[:200, :2], NAMES[:2]), y, strict=False):
        model.learn_one(row, target)
    query = {"age": 30.0, "income": 6e4}
    before, coef = model.predict_one(query), model.coef_
    assert model.predict_one(query | {"height": 1.8, "never": 5.0}) == before
    # The first row with it, without a loss, moves nothing but the other columns' means.
    wide = model.learn_one({"height": 0.0} | query, 0.0, w=0.0)
    assert wide.n_features_in_ == 3
    assert wide.feature_names_in_.tolist() == ["age", "income", "height"]
    np.testing.assert_allclose(wide.coef_, [*coef, 0.0], rtol=1e-12)
    assert wide.predict_one(query) == pytest.approx(before, rel=1e-12)
    for row, target in zip(by_name(x[200:]), y[200:], strict=True):
        model.learn_one(row, target)
    assert model.coef_[2] > 0
    # Missing is 0.
    whole = model.predict_one({"age": 0.0, "income": 6e4, "height": 0.0})
    assert model.predict_one({"income": 6e4}) == whole
    table = pd.DataFrame(x[:5], columns=NAMES)
    np.testing.assert_allclose(model.predict(table), [model.predict_one(r) for r in by_name(x[:5])])
    model.partial_fit(table, y[:5])


def test_many_names_make_the_ensemble_start_over_seldom():
    rng = np.random.default_rng(0)
    model, widths = OnlineClassifier(full_matrix=False), set()
    for t in range(400):
        word = int(rng.integers(0, 1 + t // 4))
        model.learn_one({f"word {word}": 1.0}, word % 2 == 0)
        widths.add(len(model.model_.columns.mean))
    assert model.n_features_in_ > 60
    assert len(widths) < 9
    assert model.coef_.shape == (1, model.n_features_in_)
    assert model.predict_one({"word 2": 1.0}) is True
    assert model.predict_one({"word 1": 1.0}) is False


def test_before_the_first_row():
    assert OnlineRegressor().predict_one({"a": 1.0}) == 0.0
    assert OnlineClassifier().predict_one({"a": 1.0}) is None
    assert OnlineClassifier().predict_proba_one({"a": 1.0}) == {}
    for model in (OnlineRegressor(), OnlineClassifier()):
        with pytest.raises(NotFittedError):
            model.predict([[1.0]])
        with pytest.raises(NotFittedError):
            _ = model.coef_


def test_classes_of_rows_are_false_and_true_or_named():
    model = OnlineClassifier().learn_one({"a": 1.0}, True)
    assert model.classes_.tolist() == [False, True]
    found = model.predict_proba_one({"a": 1.0})
    assert found[True] > 0.5
    assert sum(found.values()) == pytest.approx(1)
    three = OnlineClassifier().learn_one({"a": 1.0}, "x", classes=["z", "y", "x"])
    assert three.learn_one({"a": 2.0}, "y").classes_.tolist() == ["x", "y", "z"]
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        OnlineClassifier().learn_one({"a": 1.0}, "x")


@pytest.mark.parametrize(("learner", "most"), [("mixture", 127), ("universal", 63)])
def test_what_is_left_out_is_said(learner, most):
    x = np.random.default_rng(0).normal(size=(3, most + 1))
    y, left_out = [1.0, 2.0, 0.0], "learners keep no d x d matrices"
    with pytest.warns(UserWarning, match=left_out) as warned:
        wide = OnlineRegressor(learner=learner).partial_fit(x, y)
    assert warned[0].filename == __file__
    assert not wide.full_matrix_
    assert OnlineRegressor(learner=learner).fit(x[:, :most], y).full_matrix_
    assert OnlineRegressor(learner=learner, full_matrix=True).fit(x, y).full_matrix_
    assert not OnlineRegressor(learner=learner, full_matrix=False).fit(x[:, :2], y).full_matrix_
    some = dict.fromkeys(range(most * 2 // 3), 1.0)
    by_rows = OnlineClassifier(learner=learner).learn_one(some, True)
    with pytest.warns(UserWarning, match=left_out) as warned:
        by_rows.learn_one(some | {"new": 1.0}, False)
    assert warned[0].filename == __file__
    assert not by_rows.full_matrix_


# --- scikit-learn's own ----------------------------------------------------------------------

ORDER = "two rounds with a row are not one round with twice its loss"


@pytest.mark.parametrize(
    "estimator",
    [
        OnlineRegressor(),
        OnlineClassifier(),
        OnlineClassifier(loss="hinge", learner="universal"),
        OnlineRegressor(learner="universal"),
    ],
)
def test_scikit_learns_checks(estimator):
    failing = {"check_sample_weight_equivalence_on_dense_data": ORDER}
    check_estimator(estimator, expected_failed_checks=failing, on_skip=None)
