"""Differences between methods: known intervals, and how often false ones are shown."""

import itertools

import numpy as np
import pytest
from scipy.stats import skew, t, ttest_1samp
from statsmodels.stats.libqsturng import qsturng

from engram.compare.critical_values import ALPHAS, floor_of
from engram.compare.differences import LEAST_CLIENTS, gaps_of, pairwise
from tests.samples import sampled

NAN = np.nan


def difference(one, other):
    return pairwise({"one": list(one), "other": list(other)})["one", "other"]


def crossed(rng, methods, seeds, clients, *, between=0.0, within=0.0, noise=0.3):
    """Scores of methods that are alike: effects of seeds, of clients, and of both together."""
    by_seed = np.multiply(between, rng.normal(size=(methods, seeds, 1)).T).T
    by_client = within * rng.normal(size=(methods, 1, clients))
    scores = by_seed + by_client + noise * rng.normal(size=(methods, seeds, clients))
    return {f"method {k}": list(each) for k, each in enumerate(scores)}


def test_equal_scores_differ_by_nothing():
    scores = np.random.default_rng(1).random((3, 20))
    found = difference(scores, scores)
    assert found == (0, 0, 0, 20, 3, 1)
    assert not found.shown


def test_clients_are_compared_with_themselves():
    """Clients differ by far more than the methods; the difference is that of each client."""
    scores = np.random.default_rng(1).normal(0.5, 0.3, (3, 20))
    found = difference(scores + 0.01, scores)
    assert found[:3] == pytest.approx((0.01, 0.01, 0.01))
    assert found.shown


def test_every_ordered_pair_is_there_and_the_other_way_around_is_its_negative():
    found = pairwise(crossed(np.random.default_rng(1), 3, 4, 6))
    assert len(found) == 6
    for (one, other), d in found.items():
        assert found[other, one] == d.turned
        assert found[other, one].mean == -d.mean
        assert found[other, one].low == -d.high


def test_the_interval_of_two_methods_is_students_where_seeds_or_clients_are_alike():
    """With no variance of clients' means, it is the t-test's of the seeds' means; and likewise."""
    gaps = np.array([0.1, 0.3, -0.1, 0.5, 0.2])
    test = ttest_1samp(gaps, 0.0)
    for scores in (np.tile(gaps[:, None], 10), np.tile(gaps, (3, 1))):
        found = difference(scores, np.zeros(scores.shape))
        assert found[:3] == pytest.approx((0.2, *test.confidence_interval(0.95)))
        assert found.p == pytest.approx(test.pvalue, rel=1e-3)


def test_many_methods_have_wider_intervals_than_each_pair_by_itself():
    """At least as wide as Tukey's, whose variance is pooled, and less wide than Bonferroni's."""
    rng = np.random.default_rng(3)
    scores = crossed(rng, 8, 5, 400, between=1.0, noise=0.0)
    pairs = pairwise(scores)
    means = {name: np.array([each.mean() for each in seeds]) for name, seeds in scores.items()}
    errors = {
        (one, other): (means[one] - means[other]).std(ddof=1) / np.sqrt(5) for one, other in pairs
    }
    variances = np.array([*errors.values()]) ** 2
    numbers = np.array([[int(name[-1]) for name in pair] for pair in errors]).T
    usual = floor_of(variances, numbers)[0] ** 0.5
    ratios = [
        (d.high - d.mean) / error for pair, d in pairs.items() if (error := errors[pair]) >= usual
    ]
    tukey, bonferroni = qsturng(0.95, 8, 28) / np.sqrt(2), t.ppf(1 - 0.025 / 28, 4)
    assert np.ptp(ratios) < 0.05  # the simulated quantile, and a little for clients
    assert tukey < np.mean(ratios) < bonferroni


def test_a_pairs_variance_is_at_least_a_share_of_what_pairs_of_quieter_methods_have():
    """Of four methods the last varies most. Of 1, 2 and 30, the upper quartile is 16."""
    pairs = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]).T
    variances = np.array([1.0, 2.0, 500.0, 30.0, 700.0, 600.0])
    assert floor_of(variances, pairs) == pytest.approx([0.6 * (1 + 2 + 30) / 3])
    many = np.array(np.triu_indices(5, 1))  # the last is noisiest; upper quartile 1
    cut = np.where((many == 4).any(0), 99.0, np.where((many == 1).all(0) | (many[0] == 2), 50.0, 1))
    assert floor_of(np.stack([cut, cut]), many) == pytest.approx(np.full((2, 1), 0.6 * 8 / 6))
    assert floor_of(np.array([7.0]), np.array([[0], [1]])) == 0


def test_one_noisy_method_changes_no_other_pairs_interval():
    scores, found = crossed(np.random.default_rng(8), 12, 5, 9, between=0.1), []
    for times in (5, 14, 1000):
        noisy = scores["method 11"] + times * np.array([[0.1], [-0.1], [0.05], [-0.05], [0.2]])
        found.append(pairwise({**scores, "method 11": list(noisy)})["method 0", "method 1"])
    assert found[0] == found[1] == found[2]


def test_the_skewness_of_clients_differences_is_told():
    values = np.random.default_rng(9).lognormal(size=30)
    gap = gaps_of({"one": [values, values], "other": [np.zeros(30)] * 2})["one", "other"]
    assert gap.skewness == pytest.approx(skew(values))
    alike = gaps_of({"one": [np.full(30, 0.3)] * 2, "other": [np.full(30, 0.2)] * 2})
    assert alike["one", "other"].skewness == pytest.approx(0)


def test_one_seed_or_too_few_clients_show_nothing():
    one = difference(np.full((1, 50), 0.9), np.zeros((1, 50)))
    assert one[:5] == (0.9, -np.inf, np.inf, 50, 1)
    few = LEAST_CLIENTS - 1
    two = difference(np.full((9, few), 0.9), np.zeros((9, few)))
    assert two[1:4] == (-np.inf, np.inf, few)
    assert not one.shown
    assert not two.shown
    assert np.isnan([one.p, two.p]).all()


def test_p_is_below_a_twentieth_just_where_the_interval_excludes_zero():
    one, other = names = "method 0", "method 1"
    for methods, least in itertools.product((2, 6), (0.999, 1.001)):
        scores = crossed(np.random.default_rng(4), methods, 4, 8, between=0.1, within=0.2)
        before = pairwise(scores)[names]
        half = before.high - before.mean
        shifted = scores | {one: [s - before.mean + least * half for s in scores[one]]}
        pairs = pairwise(shifted)
        assert pairs[names].shown == (least > 1)
        assert pairs[names].p == pairs[other, one].p == pytest.approx(0.05, rel=0.01)
        assert [d.p < 0.05 for d in pairs.values()] == [d.shown for d in pairs.values()]


def test_the_least_p_is_what_the_draws_show():
    scores = {"one": [np.full(9, 9.0)] * 2, "other": [np.arange(9) / 99] * 2}
    assert pairwise(scores)["one", "other"].p == pytest.approx(ALPHAS[0])
    assert ALPHAS[0] == 0.0002


def test_clients_without_a_score_are_left_out_and_counted():
    mine = np.array([[0.9, NAN, 0.7, 0.8], [0.9, NAN, NAN, 0.8]])
    found = difference(mine, np.array([[0.8, 0.1, 0.6, 0.7]] * 2))
    assert found.mean == pytest.approx(0.1)
    assert (found.clients, found.seeds) == (3, 2)
    nobody = difference(mine * NAN, mine)
    assert np.isnan(nobody.mean)
    assert (nobody.clients, nobody.shown) == (0, False)


TWO = np.where(np.arange(8) < 2, 1.0, 0.01)
SOME = np.exp(np.linspace(0, 3.5, 5))  # the deviations of five methods, up to 33 times as large


@pytest.mark.parametrize("seeds", sampled((2, 3, 5, 10), (2,)))
@pytest.mark.parametrize(
    ("methods", "clients", "effects"),
    [
        (8, 20, {"between": 1.0}),
        (8, 20, {"between": TWO}),  # most methods do not vary over seeds
        (5, 20, {"between": SOME}),
        (5, 20, {"between": 1 + 4 * (SOME == 1)}),  # one method varies more than the others
        (3, 4, {"between": 1.0, "within": 2.0}),
    ],
)
def test_methods_that_are_alike_are_seldom_told_apart(methods, clients, effects, seeds):
    """Any of the pairs is shown in at most 5 % of comparisons, but for the simulation's error."""
    rng, tries = np.random.default_rng(5), 100
    wrong = sum(
        any(d.shown for d in pairwise(crossed(rng, methods, seeds, clients, **effects)).values())
        for _ in range(tries)
    )
    assert wrong / tries <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / tries)


def test_two_seeds_tell_apart_what_differs_by_many_times_what_seeds_do():
    """Where most methods do not vary at all, chance agreement is not taken for certainty."""
    rng, found = np.random.default_rng(7), 0
    for _ in range(50):
        scores = crossed(rng, 8, 2, 20, between=0.01, noise=0.01)
        scores["method 0"] = [each + 0.3 for each in scores["method 0"]]
        found += pairwise(scores)["method 0", "method 1"].shown
    assert found >= 40


def test_ten_points_are_found_with_five_seeds():
    """Means of a pair's seeds vary by 2 points, and its clients by 7, more than twins' on digits.

    There they vary by 1.4 and 4.6 (``benchmarks/claims.py``, fine-tuned).
    """
    rng, found = np.random.default_rng(6), 0
    for _ in range(100):
        scores = crossed(rng, 8, 5, 20, between=0.02 / 2**0.5, within=0.03, noise=0.04)
        scores["method 0"] = [each + 0.1 for each in scores["method 0"]]
        found += pairwise(scores)["method 0", "method 1"].shown
    assert found >= 80
