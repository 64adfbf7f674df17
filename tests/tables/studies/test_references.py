"""References of every family, fitted to tables: against definitions, and what they lack."""

import numpy as np
import pytest

from engram.data.tables.tables import Table
from engram.tables.baselines import DebiasedRegressor
from engram.tables.simulation import sparse_parameters
from engram.tables.studies import comparison
from engram.tables.studies.comparison import Shares, compare_once, methods_for
from engram.tables.studies.preparation import independent, of_columns, site_level
from engram.tables.studies.references import FixedEffects, Mixed, Robust
from tests.tables.studies.test_comparison import simulated


def rare(tasks=12, rows=40):
    """Small tasks with some 6 % of cases, and nothing in which they differ but base rates."""
    rng = np.random.default_rng(1)
    task, x = np.repeat(np.arange(tasks), rows), rng.normal(size=(tasks * rows, 5))
    odds = -3.2 + 0.4 * rng.normal(size=tasks)[task] + x @ [0.6, -0.5, 0.3, 0.0, 0.0]
    y = (rng.random(len(task)) < 1 / (1 + np.exp(-odds))).astype(float)
    return Table(x, y, task, list("abcde"))


@pytest.mark.full
def test_rare_classes_are_compared_with_what_knows_next_to_nothing():
    table = rare()
    found = compare_once(table, "logistic", Shares(0.6, 0.2), np.random.default_rng(0))
    losses = {name: score.loss for name, score in found.items()}
    assert next(iter(losses)) == "constant"
    assert losses["constant"] < 0.9 * losses["MOLAR, hard"]  # which alone looked like a winner
    assert losses["MOLAR, adaptive"] < 1.05 * min(losses.values())
    assert all(0 < score.brier < 0.3 and 0 <= score.calibration < 0.3 for score in found.values())
    assert found["pooled"].auc > 0.55
    ours, theirs = found["constant"], np.mean(table.y)
    assert ours.brier == pytest.approx(theirs * (1 - theirs), abs=0.03)


@pytest.mark.full
def test_every_reference_of_a_family_is_fitted_or_says_why_not():
    rng = np.random.default_rng(0)
    task, x = np.repeat(np.arange(4), 40), rng.normal(size=(160, 2))
    eta = 0.5 + x @ [0.8, -0.8] + 0.3 * task
    for family, y in (
        ("linear", eta + rng.normal(size=160)),
        ("poisson", rng.poisson(np.exp(eta))),
        ("logistic", rng.random(160) < 1 / (1 + np.exp(-eta))),
    ):
        table = Table(x, y.astype(float), task, ["a", "b"])
        found = compare_once(table, family, Shares(0.6, 0.2), np.random.default_rng(0))
        failed = {name: score.reason for name, score in found.items() if score.reason}
        expected = {"LASSO": "scikit-learn has no LASSO for counts"} if family == "poisson" else {}
        assert failed == expected
        assert found["mixed"].loss < found["constant"].loss


def grouped(rng, tasks=30, rows=8):
    """Tasks in which a column of theirs, their size, explains most of what they differ in."""
    task = np.repeat(np.arange(tasks), rows)
    size, x = rng.normal(size=tasks)[task], rng.normal(size=len(task))
    y = 2 * size + x + 0.3 * rng.normal(size=tasks)[task] + rng.normal(size=len(task))
    return Table(np.column_stack([x, size, x + size]), y, task, ["dose", "size", "both"])


def test_columns_of_tasks_are_for_models_that_can_use_them(monkeypatch):
    table = grouped(np.random.default_rng(0))
    kept, words = independent(table)
    assert len(words) == 2
    assert len(kept.columns) == 1  # dose, or both, which is dose within tasks
    (added,) = site_level(table, kept.columns)
    assert added in ("size", "both")
    assert site_level(of_columns(table, ["dose", "both"]), ["dose"]) == ["both"]
    constant = table._replace(x=np.ones((240, 1)), columns=["one"])
    assert site_level(constant, []) == []
    every = methods_for("linear", paper=False)
    few = {name: every[name] for name in ("constant", "pooled", "fixed effects", "mixed")}
    monkeypatch.setattr(comparison, "methods_for", lambda family, paper: few)
    found = compare_once(table, "linear", Shares(0.4, 0.2), np.random.default_rng(1))
    assert found["pooled"].loss < 0.5 * found["constant"].loss
    # Fixed effects must learn 30 intercepts.
    assert found["mixed"].loss < 0.95 * found["fixed effects"].loss


def test_the_mixed_model_has_one_coefficient_of_a_column_of_tasks():
    rng = np.random.default_rng(0)
    table = grouped(rng)
    x = np.column_stack([table.x[:, :2], rng.normal(size=240)])
    model = Mixed().fit(x, table.y, table.task)
    assert np.ptp(model.coef_[:, 1]) == 0
    assert model.shared_coef_[1] == pytest.approx(2 * x[:, 1].std(), abs=0.3)
    assert np.ptp(model.intercept_) > 0.2


def test_pooling_with_an_intercept_for_each_task_is_least_squares_with_indicators():
    table = simulated(np.tile([1.0, 2.0], (3, 1)), rows=10)
    y = table.y + 10 * table.task
    model = FixedEffects(standardize=False).fit(table.x, y, table.task)
    design = np.hstack([table.x, np.eye(3)[table.task]])
    expected = np.linalg.lstsq(design, y)[0]
    np.testing.assert_allclose(model.coef_, np.tile(expected[:2], (3, 1)))
    np.testing.assert_allclose(model.intercept_, expected[2:])
    # Frisch and Waugh: the slopes are those of columns and target that are centered within tasks.
    x, y = (each.reshape(3, 10, -1) for each in (table.x, y))
    x, y = (each - each.mean(axis=1, keepdims=True) for each in (x, y))
    within = np.linalg.lstsq(x.reshape(30, 2), y.reshape(30))[0]
    np.testing.assert_allclose(model.coef_, np.tile(within, (3, 1)))


def test_rm_of_a_linear_model_is_that_of_the_library():
    table = simulated(sparse_parameters(np.random.default_rng(3), 4, 3, 1), rows=30)
    one = Robust(c=0.7).fit(table.x, table.y, table.task)
    other = DebiasedRegressor(c=0.7).fit(table.x, table.y, table.task)
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-8)


def test_rm_of_classes_minimizes_the_likelihood_with_its_penalty():
    rng = np.random.default_rng(0)
    task, x = np.repeat([0, 1, 2], 150), rng.normal(size=(450, 2))
    y = (rng.random(450) < 1 / (1 + np.exp(-x @ [1.0, -1.0]))).astype(float)
    model = Robust(family="logistic", standardize=False).fit(x, y, task)
    strength = 0.35 * np.sqrt(np.log(3) / 150)
    for m in range(3):
        own = task == m
        eta = x[own] @ model.coef_[m] + model.intercept_[m]
        slope = np.column_stack([x[own], np.ones(150)]).T @ (1 / (1 + np.exp(-eta)) - y[own]) / 150
        assert abs(slope[2]) < 1e-5  # the intercept is free
        moved = np.abs(model.coef_[m] - model.shared_coef_) > 1e-9
        assert (np.abs(slope[:2]) <= strength + 1e-5).all()
        np.testing.assert_allclose(np.abs(slope[:2][moved]), strength, atol=1e-5)
