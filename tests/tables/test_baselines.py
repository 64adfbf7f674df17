"""MOLAR's baselines: each against its definition, and the contract of all estimators."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from engram.tables.baselines import (
    DebiasedRegressor,
    IndividualRegressor,
    LassoRegressor,
    PooledRegressor,
)
from engram.tables.regressor import MolarRegressor
from engram.tables.shrinkage import combine
from engram.tables.site import Rows, estimate_site

SITES = np.array(["a", "b", "c", "d", "e"])
SIZES = np.array([30, 45, 25, 60, 38])


def table(seed=0):
    """Five sites of unequal sizes, columns of unequal scales; site c differs in the second."""
    rng = np.random.default_rng(seed)
    site = np.repeat(SITES, SIZES)
    x = rng.normal(size=(len(site), 3)) * [1.0, 2.5, 0.4] + [0.0, 3.0, -1.0]
    y = x @ [1.0, -2.0, 0.5] + 3 * (site == "c") * x[:, 1] + rng.normal(size=len(site))
    return x, y, site


def by_site(x, y, site):
    return [(x[site == name], y[site == name]) for name in SITES]


def ols(x, y, site):
    fits = [LinearRegression().fit(*rows) for rows in by_site(x, y, site)]
    return np.array([fit.coef_ for fit in fits]), np.array([fit.intercept_ for fit in fits])


# --- Definitions ---------------------------------------------------------------------------


def test_individual_is_least_squares_of_each_task_and_pool_of_all_rows():
    x, y, site = table()
    coef, intercept = ols(x, y, site)
    model = IndividualRegressor().fit(x, y, site)
    np.testing.assert_allclose(model.coef_, coef, atol=1e-10)
    np.testing.assert_allclose(model.intercept_, intercept, atol=1e-10)
    np.testing.assert_allclose(model.shared_coef_, np.median(coef, axis=0), atol=1e-10)
    fit, model = LinearRegression().fit(x, y), PooledRegressor().fit(x, y, site)
    for found in (*model.coef_, model.shared_coef_):
        np.testing.assert_allclose(found, fit.coef_, atol=1e-10)
    np.testing.assert_allclose(model.intercept_, fit.intercept_, atol=1e-10)
    # One row, two columns: x b = 5 with x = (1, 2) is solved by b = (1, 2), of length sqrt(5).
    x = np.array([[1.0, 2.0], [1.0, 0.0], [0.0, 1.0]])
    model = IndividualRegressor(fit_intercept=False).fit(x, [5.0, 3.0, 4.0], ["a", "b", "b"])
    np.testing.assert_allclose(model.coef_, [[1, 2], [3, 4]], atol=1e-12)


def optimal(rows, coef, intercept, strength, center):
    """Checks the conditions of ``||X b + b_0 - y||^2 / (2 n) + strength ||b - center||_1``."""
    x, y = rows
    residual = y - x @ coef - intercept
    assert residual.sum() == pytest.approx(0, abs=1e-6)  # the intercept is not penalized
    gradient = x.T @ residual / len(y)
    moved = np.abs(coef - center) > 1e-9
    np.testing.assert_allclose(gradient[moved], strength * np.sign(coef - center)[moved], atol=1e-6)
    assert (np.abs(gradient[~moved]) <= strength + 1e-6).all()
    return moved


def strength_of(rows, c):
    x, y = rows
    design = np.column_stack([x, np.ones(len(x))])
    residual = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    sigma = np.sqrt(residual @ residual / (len(y) - 4))
    return c * sigma * np.sqrt(np.log(4) / len(y))  # d = 4, with the intercept


@pytest.mark.parametrize("center", ["zero", "trimmed-mean", "median"])
def test_penalized_models_satisfy_their_conditions_around_their_center(center):
    x, y, site = table()
    own, _ = ols(x, y, site)
    if center == "zero":
        model, c, expected = LassoRegressor(c=2.0, standardize=False), 2.0, np.zeros(3)
    else:
        options = {"proportion": 0.2, "c": 1.5, "standardize": False}
        model, c = DebiasedRegressor(center=center, **options), 1.5
        # Of five, the lowest and the highest are left out.
        expected = np.sort(own, axis=0)[1:4].mean(axis=0)
    if center == "median":
        parts = [Rows(np.column_stack([x, np.ones(len(x))]), y) for x, y in by_site(x, y, site)]
        expected = combine([estimate_site(rows) for rows in parts]).coef[:3]
    model.fit(x, y, site)
    shared = np.median(model.coef_, axis=0) if center == "zero" else expected
    np.testing.assert_allclose(model.shared_coef_, shared, atol=1e-10)
    fits = zip(by_site(x, y, site), model.coef_, model.intercept_, strict=True)
    moved = [optimal(rows, *fit, strength_of(rows, c), expected) for rows, *fit in fits]
    assert 0 < np.sum(moved) < 15  # some are at the center, and some are not
    assert center == "zero" or moved[2][1]  # where site c differs


PENALIZED = [LassoRegressor(), DebiasedRegressor(), DebiasedRegressor(center="median")]


@pytest.mark.parametrize("model", PENALIZED)
def test_without_penalty_all_are_least_squares_and_with_a_huge_one_their_centers(model):
    x, y, site = table()
    own = IndividualRegressor(standardize=True).fit(x, y, site)
    free = clone(model).set_params(c=0.0).fit(x, y, site)
    np.testing.assert_allclose(free.coef_, own.coef_, atol=1e-8)
    np.testing.assert_allclose(free.intercept_, own.intercept_, atol=1e-8)
    bound = clone(model).set_params(c=1e6).fit(x, y, site)
    center = np.zeros(3) if isinstance(model, LassoRegressor) else bound.shared_coef_
    np.testing.assert_allclose(bound.coef_, np.tile(center, (5, 1)), atol=1e-12)
    # Its intercept then is what is left of the target: the mean of y - <x, center>.
    scaled = bound.scaling_.apply(x)
    left = [np.mean(own - units @ center) for units, own in by_site(scaled, y, site)]
    np.testing.assert_allclose(bound.intercept_, left, atol=1e-9)


def test_known_noise_scales_the_penalty():
    x, y, site = table()
    one = LassoRegressor(c=2.0, sigma=1.5).fit(x, y, site)
    other = LassoRegressor(c=1.0, sigma=3.0).fit(x, y, site)
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-12)
    estimated = LassoRegressor(c=2.0).fit(x, y, site)
    assert np.abs(one.coef_ - estimated.coef_).max() > 1e-3


def test_a_task_without_noise_is_least_squares_whatever_the_penalty():
    x, y, site = table()
    y = np.where(site == "b", x @ [1.0, -2.0, 0.5] + 7, y)
    for model in (LassoRegressor(c=5.0), DebiasedRegressor(c=5.0)):
        model.set_params(standardize=False).fit(x, y, site)
        np.testing.assert_allclose(model.coef_[1], [1, -2, 0.5], atol=1e-9)
        assert model.intercept_[1] == pytest.approx(7)


def test_few_rows_take_a_center_where_they_show_nothing():
    x, y, site = table()
    x[site == "d", 2] = 4.0  # constant there: the others say what its coefficient is
    model = DebiasedRegressor(proportion=0.0, standardize=False).fit(x, y, site)
    own = np.array([LinearRegression().fit(*rows).coef_ for rows in by_site(x, y, site)])
    expected = own[[0, 1, 2, 4], 2].mean()
    assert model.shared_coef_[2] == pytest.approx(expected)
    assert model.coef_[3, 2] == pytest.approx(expected)


def test_transfer_of_tasks_with_fewer_rows_than_columns():
    pytest.importorskip("cvxpy")
    rng = np.random.default_rng(0)
    beta = np.zeros(12)
    beta[:2] = 2.0, -3.0
    x, site = rng.normal(size=(4 * 9, 12)), np.repeat(["a", "b", "c", "d"], 9)
    y = x @ beta + 0.1 * rng.normal(size=36)
    options = {"center": "transfer"} | PLAIN
    model = DebiasedRegressor(sigma=0.1, **options).fit(x, y, site)
    alone = IndividualRegressor(fit_intercept=False).fit(x, y, site)
    assert np.abs(model.shared_coef_ - beta).max() < 0.2
    assert np.abs(model.coef_ - beta).max() < 0.5 * np.abs(alone.coef_ - beta).max()
    with pytest.raises(ValueError, match="sigma must be given for center='transfer', got None"):
        DebiasedRegressor(**options).fit(x, y, site)
    with pytest.raises(ValueError, match="sigma must be positive"):
        DebiasedRegressor(sigma=0.0, **options).fit(x, y, site)
    with pytest.raises(ValueError, match="fit_intercept must be False"):
        DebiasedRegressor(center="transfer", sigma=0.1).fit(x, y, site)


# --- What all have in common ---------------------------------------------------------------

PLAIN = {"standardize": False, "fit_intercept": False}
ALL = {
    "individual": IndividualRegressor(),
    "pooled": PooledRegressor(),
    "lasso": LassoRegressor(c=1.0),
    "trimmed mean": DebiasedRegressor(),
    "median, own units, no intercept": DebiasedRegressor(center="median", **PLAIN),
    "molar": MolarRegressor(),
}


@pytest.mark.parametrize("name", ALL)
def test_every_estimator_meets_the_contract(name):
    for check in (
        check_shapes,
        check_predictions_are_those_of_the_tasks_coefficients,
        check_the_order_of_rows_does_not_matter,
        check_a_row_of_weight_two_is_two_rows,
        check_frames_give_names_and_the_same_numbers,
        check_a_new_task_is_refused_or_shared,
    ):
        check(clone(ALL[name]))


def check_shapes(model):
    x, y, site = table()
    before = model.get_params()
    assert model.fit(x, y, site) is model
    assert model.get_params() == before
    assert model.tasks_.tolist() == SITES.tolist()
    assert model.coef_.shape == (5, 3)
    assert model.intercept_.shape == (5,)
    assert model.shared_coef_.shape == (3,)
    assert model.predict(x, site).shape == y.shape
    assert model.score(x, y, site) == r2_score(y, model.predict(x, site))
    assert model.intercept_.any() == model.fit_intercept


def check_predictions_are_those_of_the_tasks_coefficients(model):
    x, y, site = table()
    model.fit(x, y, site)
    place = np.searchsorted(SITES, site)
    units = x if model.scaling_ is None else (x - x.mean(axis=0)) / x.std(axis=0)
    expected = (units * model.coef_[place]).sum(axis=1) + model.intercept_[place]
    np.testing.assert_allclose(model.predict(x, site), expected, atol=1e-10)


def check_the_order_of_rows_does_not_matter(model):
    x, y, site = table()
    order = np.random.default_rng(1).permutation(len(y))
    one, other = clone(model).fit(x, y, site), model.fit(x[order], y[order], site[order])
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-7)
    np.testing.assert_allclose(one.shared_coef_, other.shared_coef_, atol=1e-7)


def check_a_row_of_weight_two_is_two_rows(model):
    x, y, site = table()
    counts = np.random.default_rng(2).integers(1, 3, len(y))
    twice = [np.repeat(part, counts, axis=0) for part in (x, y, site)]
    one, other = clone(model).fit(x, y, site, sample_weight=counts), model.fit(*twice)
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-7)


def check_frames_give_names_and_the_same_numbers(model):
    x, y, site = table()
    frame = pd.DataFrame(x, columns=["age", "dose", "load"]).assign(site=site)
    named = clone(model).fit(frame, y, task="site")
    model.fit(x, y, site)
    assert named.feature_names_in_.tolist() == ["age", "dose", "load"]
    # To rounding: a frame's columns lie apart in memory, and are summed in another order.
    np.testing.assert_allclose(named.coef_, model.coef_, atol=1e-11)
    np.testing.assert_allclose(named.predict(frame, "site"), model.predict(x, site), atol=1e-11)


def check_a_new_task_is_refused_or_shared(model):
    x, y, site = table()
    model.fit(x, y, site)
    with pytest.raises(ValueError, match="task 'z' was not seen in fit"):
        model.predict(x[:2], ["z", "a"])
    with pytest.raises(ValueError, match="task must"):
        model.predict(x)
    model.set_params(unseen="shared").fit(x, y, site)
    units = x if model.scaling_ is None else model.scaling_.apply(x)
    expected = units @ model.shared_coef_ + model.shared_intercept_
    np.testing.assert_allclose(model.predict(x[:2], ["z", "a"])[:1], expected[:1])
    np.testing.assert_allclose(model.predict(x), expected)


def test_standardized_columns_have_no_units():
    x, y, site = table()
    for model in (LassoRegressor(c=1.0), DebiasedRegressor()):
        one = clone(model).fit(x, y, site)
        other = clone(model).fit(x * [100.0, 0.01, 7.0] + [5.0, -2.0, 1.0], y, site)
        np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-6)


# --- Refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [LassoRegressor(), DebiasedRegressor()])
def test_a_task_whose_noise_is_unknown_is_named(model):
    x, y, site = table()
    kept = (site != "c") | (np.cumsum(site == "c") <= 4)  # four rows for four coefficients
    with pytest.raises(ValueError, match="task 'c' has 4 rows for 4 coefficients, which do not"):
        model.fit(x[kept], y[kept], site[kept])
    model.set_params(sigma=1.0).fit(x[kept], y[kept], site[kept])
    assert np.isfinite(model.coef_).all()


def test_columns_that_nothing_determines_are_named():
    x, y, site = table()
    frame = pd.DataFrame(x, columns=["age", "dose", "load"])
    frame["dose"] = 1.0
    with pytest.raises(ValueError, match="column dose is not determined by the rows of all tasks"):
        PooledRegressor().fit(frame, y, site)
    for center in ("trimmed-mean", "median"):
        with pytest.raises(ValueError, match="column dose is determined by the rows of no task"):
            DebiasedRegressor(center=center).fit(frame, y, site)
