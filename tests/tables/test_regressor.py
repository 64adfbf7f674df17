"""MOLAR's estimators on tables: frames, labels, intervals, new tasks."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score

from engram.tables.intervals import own_interval
from engram.tables.regressor import MolarClassifier, MolarRegressor
from tests.tables.countries import BETA, COUNTRIES, classes, frame, linear


def counts_of(eta, rng):
    return rng.poisson(np.exp(eta / 4))


def test_finds_where_tasks_differ():
    data, y = linear()
    model = MolarRegressor(c=3).fit(data, y, task="country")
    assert model.tasks_.tolist() == COUNTRIES.tolist()
    assert model.feature_names_in_.tolist() == ["income", "age", "hours"]
    expected = np.zeros((6, 3), dtype=bool)
    expected[4, 0] = True
    assert np.array_equal(model.support_, expected)
    assert np.array_equal(model.coef_ == model.shared_coef_, ~expected)
    np.testing.assert_allclose(model.shared_coef_, BETA, atol=0.1)
    np.testing.assert_allclose(model.coef_[4, 0], -3, atol=0.15)
    np.testing.assert_allclose(model.intercept_, [0.3] * 5 + [5.3], atol=0.15)
    np.testing.assert_allclose(model.sigma_, 0.4, atol=0.07)
    assert model.score(data, y, task="country") > 0.98


def test_labels_beside_the_table_are_as_good_as_a_column_of_it():
    data, y = linear()
    one = MolarRegressor().fit(data, y, task="country")
    features = data.drop(columns="country")
    for labels in (data["country"], data["country"].to_numpy(), data["country"].tolist()):
        other = MolarRegressor().fit(features, y, labels)
        assert np.array_equal(one.coef_, other.coef_)
        assert np.array_equal(one.predict(data, "country"), other.predict(features, labels))
    numbers = pd.Categorical(data["country"]).codes
    other = MolarRegressor().fit(features.to_numpy(), y, numbers)
    assert np.array_equal(one.coef_, other.coef_)
    assert other.tasks_.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("ours", "theirs", "draw"),
    [
        (MolarRegressor(c=0), LinearRegression(), lambda eta, rng: eta + rng.normal(size=len(eta))),
        (MolarRegressor(c=0, family="poisson"), PoissonRegressor(alpha=0, tol=1e-10), counts_of),
        (
            MolarClassifier(c=0),
            LogisticRegression(C=np.inf, tol=1e-10, solver="newton-cholesky"),
            lambda eta, rng: (rng.random(len(eta)) < 1 / (1 + np.exp(-eta / 4))).astype(int),
        ),
    ],
)
def test_without_threshold_each_task_is_scikit_learns(ours, theirs, draw):
    data, eta, rng = frame()
    y, weights = draw(eta, rng), rng.integers(1, 4, len(eta))
    model = ours.fit(data, y, "country", sample_weight=weights)
    for i, country in enumerate(COUNTRIES):
        own = (data["country"] == country).to_numpy()
        x = data.loc[own, ["income", "age", "hours"]]
        other = clone(theirs).fit(x, y[own], weights[own])
        np.testing.assert_allclose(model.coef_[i], other.coef_.ravel(), atol=1e-6)
        found = model.predict(data[own], "country")
        np.testing.assert_allclose(found, other.predict(x), rtol=1e-6, atol=1e-8)
        if isinstance(ours, MolarClassifier):
            probability = model.predict_proba(data[own], "country")
            np.testing.assert_allclose(probability, other.predict_proba(x), atol=1e-6)
            odds = model.decision_function(data[own], "country")
            np.testing.assert_allclose(odds, other.decision_function(x), atol=1e-6)
    np.testing.assert_array_equal(model.individual_coef_, model.coef_)


def test_classes_may_be_names():
    data, y = classes()
    model = MolarClassifier(c=1.5).fit(data, y, "country")
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.predict(data, "country")) == {"no", "yes"}
    assert model.support_[4, 0]
    assert not model.support_[:4].any()
    assert model.score(data, y, "country") > 0.8
    np.testing.assert_allclose(model.predict_proba(data, "country").sum(axis=1), 1)


def test_counts():
    data, eta, rng = frame(rows=600)
    y = counts_of(eta, rng)
    model = MolarRegressor(family="poisson", c=1.5).fit(data, y, "country")
    np.testing.assert_allclose(model.shared_coef_, BETA / 4, atol=0.12)
    assert model.support_[4, 0]
    assert (model.predict(data, "country") > 0).all()
    assert 0.3 < model.score(data, y, "country") < 1


def test_noise_may_be_given():
    model = MolarRegressor(sigma=0.4).fit(*linear(), "country")
    assert model.sigma_.tolist() == [0.4] * 6


def test_standardized_columns_have_coefficients_of_their_own_unit():
    data, y = linear()
    plain = MolarRegressor(c=0).fit(data, y, "country")
    scaled = MolarRegressor(c=0, standardize=True).fit(data, y, "country")
    x = data[["income", "age", "hours"]]
    np.testing.assert_allclose(scaled.coef_, plain.coef_ * x.std(ddof=0).to_numpy(), rtol=1e-9)
    found = scaled.predict(data, "country")
    np.testing.assert_allclose(found, plain.predict(data, "country"), rtol=1e-9)
    # And columns' units do not matter to what is shared.
    thousands = data.assign(age=data["age"] * 1000)
    one = MolarRegressor(standardize=True).fit(data, y, "country")
    other = MolarRegressor(standardize=True).fit(thousands, y, "country")
    assert np.array_equal(one.support_, other.support_)
    assert np.array_equal(
        MolarRegressor().fit(data, y, "country").support_,
        MolarRegressor().fit(thousands, y, "country").support_,
    )


def test_moving_a_columns_zero_moves_nothing_but_intercepts():
    data, eta, rng = frame()
    moved = data.assign(age=data["age"] + 3, income=data["income"] - 2)
    for family, y in (
        ("linear", eta + rng.normal(size=len(eta))),
        ("poisson", counts_of(eta, rng)),
    ):
        model = MolarRegressor(family=family, c=2)
        one, other = (clone(model).fit(each, y, "country") for each in (data, moved))
        np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-7)
        found, same = one.predict(data, "country"), other.predict(moved, "country")
        np.testing.assert_allclose(found, same, rtol=1e-6)


def test_an_intercept_is_the_most_likely_one_beside_the_other_coefficients():
    data, eta, rng = frame()
    counts = counts_of(eta, rng)
    y = (counts > 1).astype(int)
    rate = MolarRegressor(family="poisson").fit(data, counts, "country").predict(data, "country")
    share = MolarClassifier().fit(data, y, "country").predict_proba(data, "country")[:, 1]
    for country in COUNTRIES:  # the likelihood is flat in it: residuals add up to 0
        own = (data["country"] == country).to_numpy()
        assert rate[own].sum() == pytest.approx(counts[own].sum(), rel=1e-9)
        assert share[own].sum() == pytest.approx(y[own].sum(), rel=1e-9)


# --- Intervals and summaries -------------------------------------------------------------------


def test_intervals_are_those_of_the_columns_without_the_intercept():
    data, y = linear()
    model = MolarRegressor().fit(data, y, "country")
    low, high = model.confidence_intervals(0.9)
    assert low.shape == high.shape == (6, 3)
    assert (low < high).all()
    # Spain's own coefficient, with its own interval at level 1 - alpha / 2.
    own = own_interval(model.sites_[4], level=0.95)
    assert (low[4, 0], high[4, 0]) == (pytest.approx(own.low[0]), pytest.approx(own.high[0]))


def test_the_summary_shows_what_is_shared_and_where_a_task_differs():
    data, y = linear()
    model = MolarRegressor(c=3).fit(data, y, "country")
    lines = str(model.summary()).splitlines()
    assert lines[0] == "MolarRegressor: shared by 6 tasks"
    assert [line.split()[0] for line in lines[2:6]] == ["income", "age", "hours", "intercept"]
    assert lines[6].startswith("-: no interval")  # of the intercept, in which all tasks differ
    assert lines[2].endswith("1 of 6")
    assert float(lines[3].split()[1]) == pytest.approx(-2, abs=0.1)
    spain = str(model.summary("ESP", level=0.9)).splitlines()
    assert "task 'ESP', 120 rows, sigma 0.388" in spain[0]
    assert [line.endswith("differs") for line in spain[2:]] == [True, False, False, False]
    with pytest.raises(ValueError, match="task 'USA' was not seen in fit"):
        model.summary("USA")


# --- Tasks that are new ------------------------------------------------------------------------


def test_categories_may_be_predicted_in_parts():
    data, y = linear()
    data["country"] = pd.Categorical(data["country"])
    model = MolarRegressor().fit(data, y, "country")
    found = model.predict(data, "country")
    assert np.array_equal(model.predict(data.iloc[:50], "country"), found[:50])


def test_a_new_task_learns_from_a_few_rows():
    data, y = linear()
    old = data["country"] != "ESP"
    model = MolarRegressor(c=3).fit(data[old], y[old], "country")
    spain = data[~old].drop(columns="country").iloc[:12]
    more = model.transfer(spain, y[~old][:12], "ESP")
    assert more.tasks_.tolist() == ["AUT", "BEL", "CAN", "DNK", "FIN", "ESP"]
    assert model.tasks_.tolist() == ["AUT", "BEL", "CAN", "DNK", "FIN"]
    assert np.array_equal(more.shared_coef_, model.shared_coef_)
    assert more.support_[5].tolist() == [True, False, False]
    assert more.coef_[5, 0] == pytest.approx(-3, abs=0.5)
    rest = data[~old].iloc[12:]
    assert more.score(rest, y[~old][12:], "country") > 0.95
    assert more.confidence_intervals().low.shape == (6, 3)
    with pytest.raises(ValueError, match="task 'ESP' was fitted already"):
        more.transfer(spain, y[~old][:12], "ESP")
    with pytest.raises(ValueError, match="task must be one label, such as 'AUT', got 7"):
        model.transfer(spain, y[~old][:12], 7)
    with pytest.raises(ValueError, match="task 'ESP': it has 3 rows for 4 coefficients"):
        model.transfer(spain[:3], y[~old][:3], "ESP")
    few = model.set_params(undetermined="shared").transfer(spain[:3], y[~old][:3], "ESP")
    assert np.array_equal(few.coef_[5], model.shared_coef_)


def test_a_classifier_transfers_between_its_classes_only():
    data, y = classes()
    old = data["country"] != "ESP"
    model = MolarClassifier(c=1.5).fit(data[old], y[old], "country")
    spain = data[~old].drop(columns="country")
    assert model.transfer(spain, y[~old], "ESP").support_[5, 0]
    with pytest.raises(ValueError, match=r"y must be one of \['no', 'yes'\], got 'perhaps'"):
        model.transfer(spain, np.where(y[~old] == "no", "perhaps", "yes"), "ESP")


def test_tasks_reach_the_folds_of_cross_validation():
    data, y = linear()
    features, labels = data[["income", "age", "hours"]], data["country"]
    folds = KFold(3, shuffle=True, random_state=0)
    with sklearn.config_context(enable_metadata_routing=True):
        model = MolarRegressor().set_fit_request(task=True).set_score_request(task=True)
        scores = cross_val_score(model, features, y, params={"task": labels}, cv=folds)
        assert (scores > 0.95).all()
        search = GridSearchCV(model, {"c": [1.0, 1e9]}, cv=folds).fit(features, y, task=labels)
    assert search.best_params_ == {"c": 1.0}  # with the other, Spain is as everybody
