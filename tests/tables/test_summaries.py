"""Summaries of fitted models: by task and column, simultaneous, robust, with missing values."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm, t

from engram.scoring.intervals import holm
from engram.tables import (
    AdaptiveClassifier,
    AdaptiveRegressor,
    IndividualRegressor,
    LassoRegressor,
    MolarClassifier,
    MolarRegressor,
    PooledRegressor,
)
from engram.tables.effects.imputation import impute, rubin
from engram.tables.effects.meta_analysis import meta_analysis
from engram.tables.effects.summary import max_t_quantile
from engram.tables.site import Rows, estimate_site

CITIES = ["bern", "graz", "lyon", "oslo", "riga", "ulm"]


def table(rows=60):
    """Six hospitals; patients have three rows each, and classes depend on both columns."""
    rng = np.random.default_rng(0)
    n = 6 * rows
    x = rng.normal(size=(n, 2))
    data = pd.DataFrame(x, columns=["age", "dose"]).assign(hospital=np.repeat(CITIES, rows))
    data["patient"] = np.arange(n) // 3
    days = x @ [1.0, -2.0] + rng.normal(size=n) + np.repeat(rng.normal(size=n // 3), 3)
    died = (rng.random(n) < 1 / (1 + np.exp(-x @ [0.5, -1.0]))).astype(int)
    return data, days, died


def own_rows(data, y, city):
    own = (data["hospital"] == city).to_numpy()
    return Rows(data.loc[own, ["age", "dose"]].to_numpy(), np.asarray(y, float)[own])


def test_a_tasks_summary_has_its_own_errors_and_the_models_intervals():
    data, days, died = table()
    data = data.drop(columns="patient")
    model = MolarClassifier(c=3).fit(data, died, "hospital")
    found = model.summary("oslo", ratios=True)
    site = estimate_site(own_rows(data, died, "oslo").with_ones(), family="logistic")
    assert found.own == pytest.approx(site.coef)
    assert found.error == pytest.approx(site.standard_error)
    z = site.coef / site.standard_error
    assert found.p_value == pytest.approx(2 * norm.sf(np.abs(z)))
    assert found.limits.low[:2] == pytest.approx(model.confidence_intervals().low[3])
    rows = found.rows()
    assert [row["column"] for row in rows] == ["age", "dose", "intercept"]
    assert rows[1]["odds-ratio"] == pytest.approx(np.exp(model.coef_[3, 1]))
    assert rows[1]["high"] == pytest.approx(np.exp(found.limits.high[1]))
    assert "odds ratio" in str(found).splitlines()[1]
    linear = LassoRegressor().fit(data, days, "hospital")
    lines = str(linear.summary("oslo")).splitlines()
    assert lines[0].endswith("its own estimates")
    assert lines[2].endswith(f"fitted {linear.coef_[3, 0]:.4g}")
    assert np.isnan(linear.summary().p_value).all()  # a median over tasks has no errors
    with pytest.raises(ValueError, match="ratios must be False for linear models, got True"):
        linear.summary(ratios=True)


def test_simultaneous_summaries():
    data, days, _ = table()
    data = data.drop(columns="patient")
    model = AdaptiveRegressor().fit(data, days, "hospital")
    site, found = model.sites_[1], model.summary("graz", simultaneous=True)
    q = max_t_quantile(0.95, site.covariance, 57)
    assert found.limits.high == pytest.approx(site.coef + q * site.standard_error)
    tested = 2 * t.sf(np.abs(site.coef / site.standard_error), 57)
    assert found.p_value == pytest.approx(holm(tested))
    shared = model.summary(simultaneous=True)
    q = max_t_quantile(0.95, model.shared_covariance_, model.shared_freedom_.min())
    assert shared.limits.high - shared.coef == pytest.approx(q * model.shared_error_)
    # Of medians, by Sidak: intervals of three columns have level 0.95^(1/3) each.
    model = MolarRegressor(c=3).fit(data, days, "hospital")
    one, three = model.summary(level=0.95 ** (1 / 3)), model.summary(simultaneous=True)
    np.testing.assert_allclose(three.limits, one.limits)


def test_a_meta_analysis_of_a_column():
    data, _, died = table()
    model = MolarClassifier(c=3).fit(data.drop(columns="patient"), died, "hospital")
    found = model.meta_analysis("dose", ratios=True, simultaneous=True)
    coef = np.array([site.coef[1] for site in model.sites_])
    error = np.array([site.standard_error[1] for site in model.sites_])
    alone = meta_analysis("dose", CITIES, coef, error)
    np.testing.assert_array_equal(found.effects.limits, alone.effects.limits)
    assert found.tau2 == alone.tau2
    q = norm.ppf((1 + 0.95 ** (1 / 6)) / 2)
    assert found.sites.limits.low == pytest.approx(coef - q * error)
    text = str(found)
    assert f"the model shares {np.exp(model.shared_coef_[1]):.4g}" in text
    assert f"fixed effects {np.exp(alone.effects.coef[0]):.4g} " in " ".join(text.split())
    with pytest.raises(ValueError, match="column must be one of age, dose, intercept, got 'sex'"):
        model.meta_analysis("sex")


def test_robust_errors_and_firths_penalty():
    data, days, died = table()
    weights = np.random.default_rng(1).integers(0, 3, len(days))
    model = IndividualRegressor(robust="clusters")
    model.fit(data, days, "hospital", sample_weight=weights, cluster="patient")
    rows = own_rows(data, days, "bern").with_ones()
    copies = np.repeat(np.arange(60), weights[:60])
    patients = data["patient"].to_numpy()[copies]
    rows = rows._replace(x=rows.x[copies], y=rows.y[copies], clusters=patients)
    expected = estimate_site(rows, robust="clusters")
    found = model.summary("bern")
    assert found.error == pytest.approx(expected.standard_error)
    assert found.freedom == len(np.unique(patients)) - 1
    pooled = PooledRegressor(robust="HC3").fit(data.drop(columns="patient"), days, "hospital")
    every = np.column_stack([data[["age", "dose"]], np.ones(len(days))])
    whole = estimate_site(Rows(every, days), robust="HC3")
    assert pooled.summary().error == pytest.approx(whole.standard_error)
    with pytest.raises(ValueError, match="needs a cluster for each row"):
        model.fit(data.drop(columns="patient"), days, "hospital")
    apart = np.where(data["hospital"] == "ulm", data["dose"] < 0, died).astype(int)
    given = data.drop(columns="patient"), apart, "hospital"
    with pytest.raises(ValueError, match="tell some classes apart with certainty"):
        MolarClassifier().fit(*given)
    model = MolarClassifier(firth=True).fit(*given)
    error = model.summary("ulm").error
    assert np.isfinite(error).all()
    at, ulm = model.tasks_.tolist().index("ulm"), model.profile_intervals(*given, level=0.9)
    fit, ends = model.sites_[at].coef, np.stack(ulm)[:, at]
    assert (ends[0] < fit).all()
    assert (fit < ends[1]).all()
    assert fit[1] - ends[0, 1] > 1.645 * error[1]  # it is told apart by that side
    with pytest.raises(ValueError, match="firth must be True for profile intervals, got False"):
        MolarClassifier().fit(data.drop(columns="patient"), died, "hospital").profile_intervals(
            *given
        )


def test_missing_values_are_left_out_or_imputed():
    data, _, died = table()
    data = data.drop(columns="patient")
    holes = data.copy()
    gone = np.random.default_rng(2).random(len(data)) < 0.3
    holes.loc[gone, "dose"] = np.nan
    complete = AdaptiveClassifier(missing="complete").fit(holes, died, "hospital")
    same = AdaptiveClassifier().fit(data[~gone], died[~gone], "hospital")
    np.testing.assert_allclose(complete.coef_, same.coef_, rtol=1e-6)
    assert complete.missing_[:, 1].sum() == gone.sum()
    model = AdaptiveClassifier(missing="impute", imputations=5, random_state=3)
    model.fit(holes, died, "hospital")
    tables = impute(own_rows(holes, died, "riga"), draws=5, seed=3)
    fits = [estimate_site(rows.with_ones(), family="logistic") for rows in tables]
    each = np.stack([fit.coef for fit in fits]), np.stack([fit.covariance for fit in fits])
    pooled, site = rubin(*each, 60 - 3.0), model.sites_[4]
    np.testing.assert_allclose(site.coef, pooled.coef, atol=1e-8)
    np.testing.assert_allclose(site.covariance, pooled.covariance, atol=1e-8)
    assert site.freedom == pytest.approx(pooled.freedom.min(), rel=1e-6)
    assert f"missing values: {gone.sum()} of dose; imputed 5 times" in str(model.summary())
    for rows in tables:  # what is known stays, and draws differ
        known = ~np.isnan(own_rows(holes, died, "riga").x)
        np.testing.assert_array_equal(rows.x[known], own_rows(data, died, "riga").x[known])
    assert not np.array_equal(tables[0].x, tables[1].x)
    holes.loc[holes["hospital"] == "graz", "dose"] = np.nan
    for way in ("complete", "impute"):
        with pytest.raises(ValueError, match="graz"):
            MolarClassifier(missing=way).fit(holes, died, "hospital")
