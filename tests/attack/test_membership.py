"""The attack, written out row by row with scipy, and on models whose answers are drawn."""

import numpy as np
import pytest
from scipy import stats

from engram.attack.membership import confidence, halves, likelihood_ratios, power


def test_each_row_is_in_half_of_the_models():
    members = halves(50, 6, np.random.default_rng(0))
    assert members.shape == (6, 50)
    assert (members.sum(0) == 3).all()
    assert len({tuple(column) for column in members.T}) > 10
    with pytest.raises(ValueError, match="models must be an even number, at least 4, got 5"):
        halves(50, 5, np.random.default_rng(0))


def test_confidence_is_the_logit_of_a_likelihood():
    p = np.array([0.2, 0.5, 0.99])
    np.testing.assert_allclose(confidence(-np.log(p), likelihood=True), np.log(p / (1 - p)))
    np.testing.assert_allclose(confidence(np.array([4.0]), likelihood=False), -np.log(4.0))
    assert np.isfinite(confidence(np.zeros(1), likelihood=True)).all()


def test_ratios_are_those_of_normal_densities():
    rng = np.random.default_rng(1)
    members = halves(7, 6, rng)
    signals = rng.normal(size=(6, 7)) + members
    found = likelihood_ratios(signals, members)
    for target in range(6):
        rest = [model for model in range(6) if model != target]
        groups = {}
        for inside in (True, False):
            each = [[signals[m, i] for m in rest if members[m, i] == inside] for i in range(7)]
            squares = sum(((np.array(x) - np.mean(x)) ** 2).sum() for x in each)
            pooled = np.sqrt(squares / sum(len(x) - 1 for x in each))
            groups[inside] = [np.mean(x) for x in each], pooled
        for i in range(7):
            densities = {}
            for group, (means, deviation) in groups.items():
                count = sum(members[m, i] == group for m in rest)
                wide = deviation * np.sqrt(1 + 1 / count)
                density = stats.norm.logpdf(signals[target, i], means[i], wide)
                densities[group] = density + np.log(wide / deviation)
            assert found[target, i] == pytest.approx(densities[True] - densities[False])


def test_power_counts_members_above_almost_all_others():
    members = np.array([[True] * 4 + [False] * 200] * 4)
    outside = np.arange(200.0)
    inside = [[500.0, 199.5, 198.5, -1.0], [500.0] * 4, [0.0] * 4, [500.0, 500.0, 0.0, 0.0]]
    scores = np.array([[*some, *outside] for some in inside])
    found = power(scores, members)  # two of 200 may be wrong: above 197
    shares = [0.75, 1.0, 0.0, 0.5]
    assert found.share == pytest.approx(np.mean(shares))
    reach = stats.t.ppf(0.975, 3) * np.std(shares, ddof=1) / 2
    ends = max(0, 0.5625 - reach), min(1, 0.5625 + reach)
    assert (found.low, found.high) == pytest.approx(ends)
    with pytest.raises(ValueError, match="rows must be at least 100 that a model has not seen"):
        power(scores[:, :90], members[:, :90])


def test_models_that_learn_nothing_are_not_told_apart_and_others_are():
    rng = np.random.default_rng(2)
    members = halves(2000, 8, rng)
    noise, hard = rng.normal(size=members.shape), 3 * rng.normal(size=2000)
    nothing = power(likelihood_ratios(noise + hard, members), members)
    assert nothing.low <= 0.01 <= nothing.high
    assert nothing.area == pytest.approx(0.5, abs=0.02)
    told = power(likelihood_ratios(noise + hard + 2 * members, members), members)
    # With the true means, members would be told by N(2, 1) above N(0, 1)'s upper hundredth.
    most = float(stats.norm.sf(stats.norm.isf(0.01) - 2))
    assert 0.1 < told.low < told.high < most
