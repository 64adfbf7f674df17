"""Intervals of scores: as wide as they must be, also where all rows are right."""

import numpy as np
import pytest
import torch
from scipy.stats import binom

from engram.home.card import mean_of, scored
from engram.scoring.intervals import of_draws, of_mean, of_proportion
from engram.scoring.metrics import METRICS, Metric


def predictions(hits, rows):
    """Returns outputs and classes of rows, of which the first ones are predicted."""
    y = torch.arange(rows) % 2
    outputs = torch.nn.functional.one_hot(y, 2).float()
    outputs[hits:] = 1 - outputs[hits:]
    return outputs, y


def accuracy(hits, rows):
    (found,) = scored([METRICS["accuracy"]], *predictions(hits, rows))
    return found


def test_an_accuracys_interval_covers_it_at_any_probability():
    for rows in (1, 8, 30):
        ends = [accuracy(hits, rows) for hits in range(rows + 1)]
        for p in (0.03, 0.3, 0.5, 0.8, 0.9, 0.97, 0.99, 0.999):
            covers = [each.low <= p <= each.high for each in ends]
            # The coverage itself, and not an estimate of it: the sum over all outcomes.
            assert binom.pmf(np.arange(rows + 1), rows, p)[covers].sum() >= 0.95


def test_an_accuracys_interval_is_that_of_the_equations():
    # With all of n right, the lower end p has p^n = 0.025; with none, the upper one (1 - p)^n.
    assert accuracy(8, 8)[1:] == pytest.approx((1, 0.025 ** (1 / 8), 1))
    assert accuracy(0, 8)[1:] == pytest.approx((0, 0, 1 - 0.025 ** (1 / 8)))
    low, high = of_proportion(5, 12)
    assert binom.sf(4, 12, low) == pytest.approx(0.025)
    assert binom.cdf(5, 12, high) == pytest.approx(0.025)


def test_a_means_interval_covers_it_with_few_rows():
    for draw, mean in [
        (lambda rng: rng.normal(size=8), 0.0),
        (lambda rng: rng.exponential(size=8), 1.0),  # percentiles: 0.84
        (lambda rng: rng.lognormal(sigma=0.5, size=20), np.exp(0.125)),
    ]:
        rng = np.random.default_rng(1)
        found = [of_mean(draw(rng)) for _ in range(400)]
        coverage = np.mean([low <= mean <= high for low, high in found])
        assert coverage >= 0.93 - 2 * np.sqrt(0.95 * 0.05 / 400), mean


def test_a_mean_of_many_rows_has_the_intervals_of_the_normal_distribution():
    values = np.random.default_rng(2).normal(size=2000)
    error = 1.96 * values.std() / np.sqrt(2000)
    expected = (values.mean() - error, values.mean() + error)
    assert of_mean(values) == pytest.approx(expected, abs=0.01)
    assert of_draws(2000, lambda rows: values[rows].mean()) == pytest.approx(expected, abs=0.01)
    assert mean_of("loss", torch.from_numpy(values))[2:] == of_mean(values)


def test_values_that_tell_no_spread_have_no_interval():
    assert of_mean(np.ones(9)) is None
    assert of_mean(np.full(50, 0.1)) is None  # whose mean is rounded
    assert of_mean(np.array([1.0, 2.0])) is None
    assert of_draws(20, lambda rows: 1.0) is None
    assert of_draws(20, lambda rows: np.nan) is None
    assert mean_of("loss", torch.tensor([1.0, np.inf])) == ("loss", None, None, None)


def rows_of_values(rows):
    rng = np.random.default_rng(3)
    y = torch.from_numpy(rng.normal(size=rows))
    return y + torch.from_numpy(rng.standard_t(5, size=rows)), y


def test_errors_of_values_have_the_interval_of_their_rows():
    outputs, y = rows_of_values(40)
    for name, errors, back in [("mae", np.abs, lambda mean: mean), ("rmse", np.square, np.sqrt)]:
        (found,) = scored([METRICS[name]], outputs.float(), y.float())
        own = errors((outputs - y).numpy())
        expected = (back(own.mean()), *back(np.array(of_mean(own))))
        assert found[1:] == pytest.approx(expected, rel=1e-5)


def test_a_mean_of_users_own_is_found_out_and_what_is_none_is_resampled():
    outputs, y = rows_of_values(40)

    def off(outputs, targets):
        return (outputs - targets).abs().sqrt().mean()

    def median(outputs, targets):
        if len(targets) < 2:
            raise RuntimeError("several rows, please")
        return (outputs - targets).abs().median()

    own = [Metric("off", off, low=0, better="lower"), Metric("median", median, better="lower")]
    mean, other = scored(own, outputs, y)
    assert (mean.low, mean.high) == pytest.approx(
        of_mean((outputs - y).abs().sqrt().numpy()), rel=1e-5
    )
    assert other.low < other.value < other.high


def test_balanced_accuracy_is_no_mean_of_rows_though_all_are_right():
    outputs, y = predictions(12, 12)
    balanced, f1 = scored([METRICS["balanced-accuracy"], METRICS["f1"]], outputs, y)
    assert (balanced.value, balanced.low) == (1, None)
    assert (f1.value, f1.low) == (1, None)
    outputs, y = predictions(9, 12)
    (some,) = scored([METRICS["balanced-accuracy"]], outputs, y)
    assert some.low < some.value < some.high
