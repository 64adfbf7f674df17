"""Estimators for streams: units, tables and rows by name, refusals, scikit-learn's own checks."""

import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from engram.online.estimators import OnlineClassifier, OnlineRegressor
from engram.online.linear import Moments, Task, coefficients, learned, predictions, started, widened
from engram.online.losses import LOGISTIC, SQUARED
from engram.states import to_arrays

NAMES = ["age", "income", "height"]
BETA = np.array([0.5, -2e-4, 30.0])


def rows(n=1500, seed=0):
    """Columns of scales 10, 10,000 and 0.1, far from 0; an intercept of 7; noise of 1."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) * [10, 1e4, 0.1] + [40, 5e4, 1.7]
    return x, x @ BETA + 7 + rng.normal(size=n)


def labels(x, seed=1):
    """Log-odds of 3, -2 and 1 a standard deviation, and -1."""
    z = (x - [40, 5e4, 1.7]) / [10, 1e4, 0.1]
    odds = z @ [3.0, -2.0, 1.0] - 1
    drawn = np.random.default_rng(seed).random(len(x)) < 1 / (1 + np.exp(-odds))
    return np.where(drawn, "yes", "no")


def by_name(x, names=NAMES):
    return [dict(zip(names, row, strict=True)) for row in x.tolist()]


def same(one, other):
    """Whether two models are one, bit for bit."""
    a, b = to_arrays(one.model_), to_arrays(other.model_)
    return list(a) == list(b) and all(np.array_equal(a[k], b[k]) for k in a)


# --- The model -------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(0, 99))
def test_moments_are_those_of_all_rows(n, seed):
    rng = np.random.default_rng(seed)
    x, weights = rng.normal(size=(n, 2)) * [1, 1e5] + [1e3, 0], rng.random(n) + 0.1
    moments = Moments(0.0, np.zeros(2), np.zeros(2))
    for row, weight in zip(x, weights, strict=True):
        moments = moments.including(row, weight)
    mean = np.average(x, axis=0, weights=weights)
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-9, atol=1e-9)
    deviation = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weights))
    expected = deviation if n > 1 else np.ones(2)  # one row does not vary
    np.testing.assert_allclose(moments.scale, expected, rtol=1e-6)


def test_a_constant_column_has_scale_1_whatever_weights_are():
    moments = Moments(0.0, np.zeros(1), np.zeros(1))
    for weight in (0.3, 7.0, 1e-3, 0.1):
        moments = moments.including(np.array([0.1]), weight)
    assert moments.scale.tolist() == [1.0]


def test_the_first_rows_of_a_regression_by_hand():
    # Row 1: the mean is the target, columns do not vary, z = (0, 1), p = 0: no slope at all.
    # Row 2: columns (2, 6) and targets (10, 14) become -1 and 1; W is still 0; the slope is
    # 2 (0 - 1) in both of z = (1, 1): coefficients go up, equally.
    task = Task(SQUARED, outputs=1, standardized=True, radius=3.0, most_exp_concave=np.inf)
    one = learned(task, started(task, 1), np.array([2.0]), np.array([10.0]), 1.0)
    assert coefficients(task, one).tolist() == [[0.0, 0.0]]
    assert predictions(task, one, np.array([[2.0], [99.0]])).tolist() == [[10.0], [10.0]]
    two = learned(task, one, np.array([6.0]), np.array([14.0]), 1.0)
    ((slope, intercept),) = coefficients(task, two)
    assert 0 < slope == pytest.approx(intercept, rel=1e-12)
    at = predictions(task, two, np.array([[4.0], [6.0]]))[:, 0]  # z = 0 and 1; sd's are 2
    np.testing.assert_allclose(at, [12 + 2 * intercept, 12 + 2 * (intercept + slope)], rtol=1e-12)


def test_a_column_that_comes_late_was_0_before():
    task = Task(LOGISTIC, outputs=2, standardized=False, radius=4.0, most_exp_concave=np.inf)
    x, _ = rows(60)
    signs = np.where(labels(x) == "yes", 1.0, -1.0)
    z = (x - [40, 5e4, 1.7]) / [10, 1e4, 0.1]
    narrow, wide = started(task, 2), started(task, 3)
    for row, sign in zip(z, signs, strict=True):
        target = np.array([sign, -sign])
        narrow = learned(task, narrow, row[:2], target, 1.0)
        wide = learned(task, wide, np.append(row[:2], 0.0), target, 1.0)
    widen = widened(task, narrow, 3)
    for a, b in zip(widen.columns, wide.columns, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert (
        coefficients(task, widen)[:, 2].tolist()
        == [0, 0]
        == coefficients(task, wide)[:, 2].tolist()
    )
    before, after = coefficients(task, narrow), coefficients(task, widen)
    np.testing.assert_allclose(after[:, [0, 1, 3]], before, rtol=1e-12)
    found = predictions(task, widen, np.c_[z[:, :2], np.zeros(60)])
    np.testing.assert_allclose(found, predictions(task, narrow, z[:, :2]), rtol=1e-12)


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
    x, y = rows(1500)
    model = OnlineRegressor(loss=loss, quantile=q).fit(x, y)
    assert np.mean(y <= model.predict(x)) == pytest.approx(q, abs=0.03)


def test_one_target_out_of_all_range_does_not_ruin_a_median():
    x, y = rows(1200)
    clean = OnlineRegressor(loss="absolute").fit(x, y)
    y[600] = 1e9
    model = OnlineRegressor(loss="absolute").fit(x, y)
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


def test_coefficients_stay_within_the_radius():
    x, y = rows(500)
    model = OnlineRegressor(radius=0.25).fit(x, y)
    w = coefficients(model.task_, model.model_)
    assert np.linalg.norm(w) == pytest.approx(0.25, rel=0.02)  # 0.95 would be best


# --- Tables and rows -------------------------------------------------------------------------

MODELS = {
    "regressor": (OnlineRegressor(), lambda x, y: y, {}),
    "median": (OnlineRegressor(loss="absolute"), lambda x, y: y, {}),
    "classifier": (OnlineClassifier(), lambda x, y: labels(x), {"classes": ["no", "yes"]}),
    "hinge": (OnlineClassifier(loss="hinge"), lambda x, y: labels(x), {"classes": ["no", "yes"]}),
}


@pytest.fixture(params=MODELS)
def case(request):
    model, target, named = MODELS[request.param]
    x, y = rows(120)
    return clone(model), x, target(x, y), named


def test_a_table_is_its_rows_in_their_order(case):
    model, x, y, named = case
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
    assert [one.predict_one(row) for row in by_name(x[:9])] == pytest.approx(
        table.predict(frame[:9]).tolist()
    )


def test_fit_is_a_fresh_start_and_a_failed_one_none(case):
    model, x, y, named = case
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


def test_a_pickle_goes_on_bit_for_bit(case):
    model, x, y, named = case
    model.partial_fit(x[:60], y[:60], **named)
    copy = pickle.loads(pickle.dumps(model))
    assert same(model.partial_fit(x[60:], y[60:]), copy.partial_fit(x[60:], y[60:]))
    assert np.array_equal(model.predict(x), copy.predict(x))


def test_parameters_count_from_the_first_row(case):
    model, x, y, named = case
    other = clone(model).partial_fit(x[:60], y[:60], **named)
    model.partial_fit(x[:60], y[:60], **named)
    model.set_params(radius=0.1)
    assert same(model.partial_fit(x[60:], y[60:]), other.partial_fit(x[60:], y[60:]))
    assert np.linalg.norm(coefficients(model.fit(x, y).task_, model.model_)) <= 0.1 + 1e-9


def test_a_weight_multiplies_a_loss(case):
    model, x, y, named = case
    plain, scaled, none = (clone(model) for _ in range(3))
    plain.partial_fit(x, y, **named)
    # All weights alike are none, as the first says what is usual; powers of two, for no rounding.
    scaled.partial_fit(x, y, sample_weight=np.full(120, 2.0**-20), **named)
    np.testing.assert_allclose(
        coefficients(plain.task_, plain.model_),
        coefficients(scaled.task_, scaled.model_),
        rtol=1e-9,
    )
    # Rows of weight 0 are not there.
    weights = np.arange(120) % 3 / 2.0
    none.partial_fit(x, y, sample_weight=weights, **named)
    some = clone(model)
    some.partial_fit(x[weights > 0], y[weights > 0], sample_weight=weights[weights > 0], **named)
    assert same(none, some)
    assert not np.array_equal(
        none.predict(x), clone(model).fit(x[weights > 0], y[weights > 0]).predict(x)
    )


def test_weighty_rows_weigh():
    # Two groups that disagree about the intercept, 0 and 10: weights of 1 and 3 make it 7.5.
    rng = np.random.default_rng(0)
    x, second = rng.normal(size=(1000, 1)), np.arange(1000) % 2
    y, weights = 10.0 * second, 1.0 + 2 * second
    model = OnlineRegressor().fit(x, y, sample_weight=weights)
    assert model.intercept_ == pytest.approx(7.5, abs=0.5)


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
    model, widths = OnlineClassifier(exp_concave=False), set()
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


def test_what_is_left_out_is_said():
    x = np.random.default_rng(0).normal(size=(3, 64))
    y = [1.0, 2.0, 0.0]
    with pytest.warns(UserWarning, match="exp-concave losses are left out"):
        wide = OnlineRegressor().fit(x, y)
    assert not wide.exp_concave_
    assert wide.model_.ensemble.newtons == ()
    assert OnlineRegressor().fit(x[:, :63], y).exp_concave_  # 64 coefficients
    assert OnlineRegressor(exp_concave=True).fit(x, y).exp_concave_
    assert not OnlineRegressor(exp_concave=False).fit(x[:, :2], y).exp_concave_
    rows_ = OnlineClassifier().learn_one(dict.fromkeys(range(40), 1.0), True)
    with pytest.warns(UserWarning, match="exp-concave losses are left out"):
        rows_.learn_one(dict.fromkeys(range(41), 1.0), False)
    assert not rows_.exp_concave_


# --- Bad input -------------------------------------------------------------------------------


def changed(x, row, column, value):
    x = x.copy()
    x[row, column] = value
    return x


BAD_TABLES = {
    "NaN": (
        lambda x, y: (changed(x, 4, 1, np.nan), y),
        "column x1 must be finite.*got NaN in row 4",
    ),
    "infinity": (lambda x, y: (changed(x, 4, 1, np.inf), y), "column x1 .*got infinity in row 4"),
    "huge": (lambda x, y: (changed(x, 4, 1, 1e200), y), "column x1 .*at most 1e.90, got 1e.200"),
    "columns": (lambda x, y: (x[:, :2], y), "X has 2 features, but Online.* expecting 3"),
    "length": (lambda x, y: (x, y[1:]), "inconsistent numbers of samples"),
    "none": (lambda x, y: (x, None), "y should be a 1d array"),
}


@pytest.mark.parametrize("bad", BAD_TABLES)
def test_a_refused_table_changes_nothing(case, bad):
    model, x, y, named = case
    spoil, message = BAD_TABLES[bad]
    fresh = clone(model)
    model.partial_fit(x, y, **named)
    kept = pickle.dumps(model)
    with pytest.raises(ValueError, match=message):
        model.partial_fit(*spoil(x, y))
    assert pickle.dumps(model) == kept
    if bad != "columns":
        with pytest.raises(ValueError, match=message):
            fresh.partial_fit(*spoil(x, y), **named)
        assert vars(fresh) == vars(clone(model))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"age": float("nan"), "new": 1.0}, "column age must be finite.*got NaN"),
        ({"age": "old"}, "column 'age' must be a number, got 'old'"),
        ({"age": None}, "column age must be finite.*got NaN"),
    ],
)
def test_a_refused_row_changes_nothing(case, row, message):
    model, x, y, named = case
    for one, target in zip(by_name(x[:9]), y.tolist(), strict=False):
        model.learn_one(one, target, **named)
    kept = pickle.dumps(model)
    with pytest.raises(ValueError, match=message):
        model.learn_one(row, y[0])
    with pytest.raises(ValueError, match=message):
        model.predict_one(row)
    for w in (-1.0, np.nan, np.inf):
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


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (OnlineRegressor(loss="hinge"), "loss must be squared, absolute or quantile, got 'hinge'"),
        (OnlineRegressor(quantile=1.0), "quantile must be in"),
        (OnlineRegressor(radius=0.0), "radius must be finite and positive"),
        (OnlineClassifier(radius=np.inf), "radius must be finite and positive"),
        (OnlineClassifier(loss="squared"), "loss must be logistic or hinge, got 'squared'"),
        (OnlineClassifier(exp_concave="no"), "exp_concave must be True, False or None"),
    ],
)
def test_parameters_are_checked_at_the_first_row(model, message):
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


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 1.0, -1e90, 1e90, 1e-90, 3.5]),
            st.sampled_from([0.0, -2.0, 1e90, 1e-90]),
            st.sampled_from([0.0, 1.0, 1e-3, 1e90]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_whatever_is_accepted_leaves_finite_numbers(stream):
    model = OnlineRegressor()
    for x, y, w in stream:
        model.learn_one({"a": x, "b": 1.0}, y, w=w)
    arrays = to_arrays(model.model_)
    assert all(np.isfinite(value).all() for value in arrays.values())
    assert np.linalg.norm(coefficients(model.task_, model.model_)) <= 3 + 1e-9


# --- scikit-learn's own ----------------------------------------------------------------------

ORDER = "two rounds with a row are not one round with twice its loss"


@parametrize_with_checks(
    [
        OnlineRegressor(),
        OnlineClassifier(),
        OnlineClassifier(loss="hinge"),
    ],
    expected_failed_checks=lambda e: {"check_sample_weight_equivalence_on_dense_data": ORDER},
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)
