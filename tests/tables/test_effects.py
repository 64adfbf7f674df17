"""Effects: equal to R's figures (``effects.R``), and simultaneous where they say so."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import chi2, norm

from engram.tables.effects.imputation import rubin
from engram.tables.effects.meta_analysis import meta_analysis
from engram.tables.effects.profile import firth_logistic_intervals
from engram.tables.effects.summary import max_t_quantile, sidak, summarize
from engram.tables.site import Rows, estimate_site
from tests.samples import entry

R = json.loads(Path(__file__).with_name("effects.json").read_text(encoding="utf-8"))
TARGETS = {"linear": "days", "logistic": "died", "poisson": "visits"}


def rows_of(table, target):
    x = np.column_stack([np.ones(len(table["age"])), table["age"], table["dose"]])
    return Rows(x, np.array(table[target], float))


def test_errors_are_those_of_r():
    for family, target in TARGETS.items():
        rows = rows_of(R["rows"], target)._replace(clusters=np.array(R["rows"]["patient"]))
        expected = R["fits"][family]
        for kind in ("none", "HC0", "HC1", "HC2", "HC3", "clusters"):
            with entry(family, kind):
                site = estimate_site(rows, family=family, robust=kind)
                errors = np.diag(site.covariance) ** 0.5
                np.testing.assert_allclose(site.coef, expected["coef"], rtol=1e-6)
                np.testing.assert_allclose(site.standard_error, expected[kind], rtol=1e-6)
                np.testing.assert_allclose(errors, expected[kind], rtol=1e-6)
        assert site.freedom == 19  # of twenty patients


def test_firths_estimates_are_those_of_r():
    rows = rows_of(R["firth"]["rows"], "died")
    rows = rows._replace(x=rows.x[:, [0, 2, 1]])
    site = estimate_site(rows, family="logistic", firth=True)
    np.testing.assert_allclose(site.coef, R["firth"]["coef"], rtol=1e-6)
    np.testing.assert_allclose(site.standard_error, R["firth"]["error"], rtol=1e-6)
    alone = estimate_site(rows._replace(y=np.ones(9)), family="logistic", firth=True)
    assert alone.determined.all()
    found = firth_logistic_intervals(rows, level=0.9)
    np.testing.assert_allclose(found.coef, site.coef, atol=1e-6)
    np.testing.assert_allclose(found.standard_error, site.standard_error, rtol=1e-5)

    def penalized(coef):
        p = expit(rows.x @ coef)
        chances = np.where(rows.y > 0, p, 1 - p)
        information = (rows.x.T * p * (1 - p)) @ rows.x
        return np.log(chances).sum() + np.log(np.linalg.det(information)) / 2

    tight = {"method": "Nelder-Mead", "options": {"xatol": 1e-9, "fatol": 1e-13}}
    for k, ends in enumerate(np.transpose(found.limits)):
        for end in ends:
            others = np.delete(site.coef, k)
            profile = minimize(
                lambda b, k=k, end=end: -penalized(np.insert(b, k, end)), others, **tight
            )
            fall = 2 * (penalized(site.coef) + profile.fun)
            assert fall == pytest.approx(chi2.ppf(0.9, 1), rel=1e-4)
    assert found.limits.high[1] - site.coef[1] > 1.15 * (site.coef[1] - found.limits.low[1])
    # Classes that a column tells apart, in rows that count several times: the slope is 0.
    x = np.column_stack([np.arange(-9.5, 10), np.sin(np.arange(20)), np.ones(20)])
    y, counts = (x[:, 0] > 0).astype(float), 1.0 + np.arange(20) % 3
    p = expit(x @ estimate_site(Rows(x, y, counts), family="logistic", firth=True).coef)
    weights = counts * p * (1 - p)
    leverage = np.diag(x @ np.linalg.inv((x.T * weights) @ x) @ x.T) * weights
    slope = x.T @ (counts * (y - p) + leverage * (0.5 - p))
    np.testing.assert_allclose(slope, 0, atol=1e-7)


def test_meta_analyses_are_those_of_r():
    coef, error = np.array(R["trials"]["coef"]), np.array(R["trials"]["variance"]) ** 0.5
    names = [f"trial {i}" for i in range(len(coef))]
    for method in ("DL", "REML"):
        random = R["meta"][method]
        found = meta_analysis("vaccine", names, coef, error, scatter=method)
        for effect, expected in zip(found.effects.rows(), (R["meta"]["FE"], random), strict=True):
            for key, ours in (("p", "p-value"), *((key, key) for key in ("coef", "error", "low"))):
                assert effect[ours] == pytest.approx(expected[key], rel=1e-6)
        assert (found.tau2, found.q) == pytest.approx((random["tau2"], random["q"]), rel=1e-6)
        assert found.p_value == pytest.approx(random["q_p"], rel=1e-6)
        assert found.predicted == pytest.approx(tuple(random["predicted"]), rel=1e-6)
    assert found.i2 == pytest.approx(R["meta"]["DL"]["i2"], rel=1e-6)
    with pytest.raises(ValueError, match="column dose needs estimates of at least 2 sites, got 1"):
        meta_analysis("dose", ["a", "b"], np.zeros(2), np.array([1.0, np.inf]))


def test_simultaneous_intervals_and_p_values():
    three = np.array([[1, 0.5, 0.2], [0.5, 1, 0.3], [0.2, 0.3, 1]])
    for matrix, name in ((three, "three"), (np.array([[1, 0.8], [0.8, 1]]), "two")):
        found = [max_t_quantile(0.95, 4 * matrix, freedom) for freedom in (np.inf, 20, 5)]
        np.testing.assert_allclose(found, R["max_t"][name], rtol=1e-6)
    independent = max_t_quantile(0.9, np.eye(6))
    assert independent == pytest.approx(norm.ppf((1 + 0.9 ** (1 / 6)) / 2), rel=1e-6)
    # At levels near 1, points of many dimensions may put it beyond Sidak's.
    eight = np.corrcoef(np.random.default_rng(10).normal(size=(12, 8)).T)
    assert norm.ppf(0.9995) < max_t_quantile(0.999, eight) < norm.ppf(1 - 0.0005 / 8) * 1.02
    assert sidak(0.9, 6) == 0.9 ** (1 / 6)
    given = "Cox", ["a", "b", "c"], np.array([0.3, -1.0, 0.1]), three
    table = summarize(*given, ratio="hazard ratio", simultaneous=True)
    assert table.limits.high == pytest.approx(table.coef + R["max_t"]["three"][0], rel=1e-6)
    assert table.rows()[1]["hazard-ratio"] == pytest.approx(np.exp(-1))
    assert "hazard ratio  " in str(table)


def test_rubins_rules_are_those_of_r():
    given = R["rubin"]
    coefs, variances = np.array(given["q"])[:, None], np.array(given["u"])[:, None, None]
    found = rubin(coefs, variances, 37)
    for ours, key in zip(found, ("coef", "variance", "freedom"), strict=True):
        assert ours.item() == pytest.approx(given[key], rel=1e-6)
    assert rubin(coefs * 0, variances).freedom.tolist() == [np.inf]
