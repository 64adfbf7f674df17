"""Refusals of estimators: one line, with the task and the column."""

import numpy as np
import pandas as pd
import pytest

from engram.tables.adaptive_models import AdaptiveRegressor
from engram.tables.baselines import DebiasedRegressor, LassoRegressor, PooledRegressor
from engram.tables.regressor import MolarClassifier, MolarRegressor
from tests.samples import entry
from tests.tables.countries import COUNTRIES, frame, linear


def without(column, value, country="CAN"):
    data, y = linear()
    data.loc[data["country"] == country, column] = value
    return data, y


def refused(data, y, match, **options):
    with pytest.raises(ValueError, match=match) as caught:
        MolarRegressor(**options).fit(data, y, "country")
    assert "\n" not in str(caught.value)


def test_columns_that_are_constant_or_depend_on_others():
    refused(*without("age", 3.0), "task 'CAN': column age is constant")
    refused(*without("age", 0.0), "task 'CAN': column age is constant", fit_intercept=False)
    data, y = linear()
    own = data["country"] == "DNK"
    data.loc[own, "hours"] = 2 * data.loc[own, "age"] - data.loc[own, "income"]
    refused(data, y, "task 'DNK': column hours is a linear combination of others")


def test_masked_values_are_missing():
    data, y = linear()
    x, country = data.drop(columns="country").to_numpy(), data["country"].to_numpy()
    behind = np.zeros(x.shape, bool)
    behind[3, 1] = True
    fitted = MolarRegressor().fit(x, y, country)
    masked = np.ma.array(x, mask=behind)
    for call in (
        lambda: MolarRegressor().fit(masked, y, country),
        lambda: fitted.predict(masked, country),
    ):
        with pytest.raises(ValueError, match="task 'AUT': column x1 has NaN in row 3"):
            call()
    with pytest.raises(ValueError, match="y must be numbers, got NaN in row 3"):
        MolarRegressor().fit(x, np.ma.array(y, mask=behind[:, 1]), country)


def test_they_may_be_taken_from_the_others_instead():
    data, y = without("age", 3.0)
    model = MolarRegressor(undetermined="shared").fit(data, y, "country")
    assert model.coef_[2, 1] == model.shared_coef_[1]
    canada = data["country"] == "CAN"  # whose intercept is what its rows then make it
    assert np.mean(y[canada] - model.predict(data[canada], "country")) == pytest.approx(0)
    refused(
        data.assign(age=3.0),
        y,
        "column age is determined by no task: of 'AUT', for instance, column age is constant",
        undetermined="shared",
    )


def test_too_few_rows_or_tasks():
    data, y = linear()
    few = (data["country"] != "BEL") | (np.arange(len(y)) % 120 < 4)
    refused(data[few], y[few], "task 'BEL': it has 4 rows for 4 coefficients")
    one = (data["country"] == "BEL").to_numpy()
    refused(data[one], y[one], "task must have at least 2 different labels, got only 'BEL'")


def test_a_task_without_rows():
    data, y = linear()
    categories = pd.Categorical(data["country"], categories=[*COUNTRIES, "USA"])
    refused(data.assign(country=categories), y, "task 'USA' has no rows")
    weights = (data["country"] != "FIN").astype(float)
    with pytest.raises(ValueError, match="task 'FIN' has no rows: all its weights are 0"):
        MolarRegressor().fit(data, y, "country", sample_weight=weights)


def test_features_and_targets_that_are_not_finite():
    for value, what in [(np.nan, "NaN"), (-np.inf, "infinity")]:
        with entry(value, what):
            data, y = linear()
            data.loc[130, "hours"] = value
            refused(data, y, f"task 'BEL': column hours has {what} in row 130; 1 rows in all")
            data, y = linear()
            y[250] = value
            found = str(value).replace("nan", "NaN")
            refused(data, y, f"task 'CAN': y must be numbers, got {found}")
            model = MolarRegressor().fit(*linear(), "country")
            with pytest.raises(ValueError, match="task 'BEL': column age has"):
                model.predict(linear()[0].assign(age=value).iloc[120:130], "country")


def test_targets_that_the_family_cannot_have():
    data, eta, rng = frame()
    counts = rng.poisson(np.exp(eta / 4))
    counts[7] = -1
    refused(data, counts, "task 'AUT': y must be numbers, 0 or more, got -1", family="poisson")
    with pytest.raises(ValueError, match="Only binary classification is supported"):
        MolarClassifier().fit(data, np.arange(len(eta)) % 3, "country")
    y = np.where(data["country"] == "ESP", 1, np.arange(len(eta)) % 2)
    with pytest.raises(ValueError, match="task 'ESP': all its rows are of one class"):
        MolarClassifier().fit(data, y, "country")
    refused(data, np.full(len(eta), "many"), "y must be numbers, got 'many'")
    refused(data.assign(age="old"), eta, "column age must hold numbers")


def test_labels_that_are_missing():
    data, y = linear()
    data.loc[5, "country"] = None
    refused(data, y, "task must not be empty, as it is in row 5")
    with pytest.raises(ValueError, match="task must be given"):
        MolarRegressor().fit(data, y)
    with pytest.raises(ValueError, match="task 'nation' is not a column of X"):
        MolarRegressor().fit(data, y, "nation")
    with pytest.raises(ValueError, match="task must have 720 labels, one a row, got 2"):
        MolarRegressor().fit(data[["age"]], y, ["a", "b"])
    with pytest.raises(ValueError, match="task must have labels of one kind, got int, str"):
        MolarRegressor().fit(data[["age"]], y, [1, "a"] * 360)


def test_options_out_of_range():
    known = "must be error or shared, got"
    for model, message in [
        (MolarRegressor(option="firm"), "option must be hard or soft, got 'firm'"),
        (MolarRegressor(c=-1.0), "c must be at least 0, got -1.0"),
        (MolarRegressor(family="gamma"), "family must be linear or poisson, got 'gamma'"),
        (MolarRegressor(unseen="guess"), f"unseen {known} 'guess'"),
        (MolarRegressor(undetermined="drop"), f"undetermined {known} 'drop'"),
        (MolarRegressor(sigma=-1), "sigma must be positive, got -1"),
        (AdaptiveRegressor(c=0), "reach must be above 0, got 0"),
        (AdaptiveRegressor(alike=-1), "alike must be in"),
        (AdaptiveRegressor(family="gamma"), "family must be linear or poisson, got 'gamma'"),
        (LassoRegressor(c=-1), "c must be at least 0, got -1"),
        (DebiasedRegressor(c=-1), "c must be at least 0, got -1"),
        (LassoRegressor(sigma=0.0), "sigma must be positive and finite, got 0.0"),
        (DebiasedRegressor(sigma=np.inf), "sigma must be positive and finite, got inf"),
        (DebiasedRegressor(proportion=0.5), r"proportion must be in \[0, 0.5\), got 0.5"),
        (DebiasedRegressor(center="mean"), "center must be one of median, trimmed-mean, transfer"),
        (PooledRegressor(unseen="guess"), f"unseen {known} 'guess'"),
    ]:
        with entry(model), pytest.raises(ValueError, match=message) as caught:
            model.fit(*linear(rows=30), "country")
        assert "\n" not in str(caught.value)
