"""Algorithm 1 from its statements: both ends of the threshold, permutations, pooling's rate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.tables.shrinkage import Shared, combine, median_weights, personalize, shrink, threshold
from engram.tables.site import Rows, SiteEstimate, estimate_site


def site(coef, *, scale=0.1, size=50.0, sigma=1.0):
    coef = np.atleast_1d(np.array(coef, dtype=float))
    return SiteEstimate(coef, np.broadcast_to(np.array(scale, float), coef.shape), size, sigma)


def tasks(seed=0, count=6, n=40, d=5, differing=1):
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=d)
    sites, truth = [], []
    for m in range(count):
        beta = shared.copy()
        beta[rng.choice(d, differing, replace=False)] += 3
        x = rng.normal(size=(n + 7 * m, d))
        sites.append(estimate_site(Rows(x, x @ beta + 0.5 * rng.normal(size=len(x)))))
        truth.append(beta)
    return sites, np.array(truth)


# --- Thresholding ------------------------------------------------------------------------------


def test_both_options_by_hand():
    own, shared = np.array([1.0, 1.0, -2.0, 0.5]), np.array([0.0, 0.75, 1.0, 0.5])
    radius = np.array([0.25, 0.25, 1.0, 0.0])
    # Gaps 1, 0.25, -3 and 0: the second is just within, the others beyond (or nowhere to go).
    assert shrink(own, shared, radius, "hard").tolist() == [1.0, 0.75, -2.0, 0.5]
    assert shrink(own, shared, radius, "soft").tolist() == [0.75, 0.75, -1.0, 0.5]


def test_threshold_zero_is_least_squares_and_an_infinite_one_the_shared_estimate():
    sites, _ = tasks()
    shared = combine(sites)
    for own in sites:
        for option in ("hard", "soft"):
            assert np.array_equal(personalize(own, shared, option=option, c=0), own.coef)
            assert np.array_equal(personalize(own, shared, option=option, c=np.inf), shared.coef)


@given(st.floats(0, 100), st.floats(0, 100), st.integers(0, 5))
def test_soft_thresholding_shrinks_and_never_past_the_shared_value(low, high, which):
    sites, _ = tasks()
    shared, own = combine(sites), sites[which]
    scales = max(low, high), min(low, high)
    near, far = (personalize(own, shared, option="soft", c=c) for c in scales)
    gaps = [np.abs(beta - shared.coef) for beta in (near, far, own.coef)]
    assert (gaps[0] <= gaps[1] + 1e-12).all()
    assert (gaps[1] <= gaps[2] + 1e-12).all()
    assert ((near - shared.coef) * (own.coef - shared.coef) >= 0).all()


def test_thresholds_constants():
    # d = 8 and n_[M] / n_m = 500 / 20 = 25: the smaller is 8. Beside 100 rows it is 5.
    wide, long = site(np.zeros(8), size=20, sigma=0.5), site(np.zeros(8), size=100, sigma=3.0)
    assert threshold(wide, 500) == pytest.approx(np.log(8) * 0.5)
    assert threshold(wide, 500, option="soft", c=2) == pytest.approx(2 * np.sqrt(np.log(8)) * 0.5)
    assert threshold(long, 500) == pytest.approx(np.log(5) * 3)
    assert threshold(long, 60) == 0  # a task that is larger than all others has nothing to learn


# --- The shared parameter ----------------------------------------------------------------------


def test_weights_are_sizes_over_variances():
    sites = [site([1.0, 1.0], size=30, sigma=2.0), site([5.0, 5.0], size=10, sigma=0.5)]
    weights = median_weights(sites)
    # 30 / 4 = 7.5 and 10 / 0.25 = 40, to a common factor.
    assert weights[1, 0] / weights[0, 0] == pytest.approx(40 / 7.5)
    assert combine(sites) == Shared(pytest.approx([5.0, 5.0]), 40)


def test_tasks_without_noise_know_the_truth():
    sites = [site(1.0, size=1000), site(2.0, sigma=0.0, size=3), site(7.0, sigma=0.0, size=4)]
    assert median_weights(sites)[:, 0].tolist() == [0, 3, 4]
    assert combine(sites) == Shared(pytest.approx([7.0]), 7)


def test_a_task_that_does_not_know_takes_what_the_others_share_and_has_no_say():
    blind = site([0.0, 9.0], scale=[np.inf, 0.1], size=1e9)
    shared = combine([site([1.0, 2.0]), site([3.0, 2.0]), blind])
    assert shared.coef.tolist() == [2.0, 9.0]
    for c in (0.0, 1.0):
        assert personalize(blind, shared, c=c).tolist() == [2.0, 9.0]
    noisy = site([0.0, 0.0], scale=[np.inf, np.inf], size=3, sigma=np.inf)
    shared = combine([site([1.0, 2.0], size=50), noisy])
    assert shared == Shared(pytest.approx([1.0, 2.0]), 50)  # its three rows do not count
    assert personalize(noisy, shared).tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="weights must be positive"):
        combine([blind, blind])
    with pytest.raises(ValueError, match="number of tasks must be at least 1"):
        combine([])


@given(st.permutations(range(6)), st.sampled_from(["hard", "soft"]))
def test_permuting_tasks_permutes_results(order, option):
    sites, _ = tasks()
    shared, other = combine(sites), combine([sites[i] for i in order])
    assert np.array_equal(shared.coef, other.coef)
    for i in order:
        one = personalize(sites[i], shared, option=option)
        assert np.array_equal(one, personalize(sites[i], other, option=option))


# --- The paper's statements --------------------------------------------------------------------


def test_moderated_noise_by_hand():
    sites = [
        site(0.0, sigma=1.0, size=10)._replace(freedom=4.0),
        site(0.0, sigma=3.0, size=10)._replace(freedom=12.0),
        site(0.0, sigma=2.0, size=10),  # known: as it is
    ]
    # v = 4, the median of 1, 9, 4. (4 * 1 + 4 * 4) / 8 = 2.5 and (12 * 9 + 4 * 4) / 16 = 7.75.
    weights = median_weights(sites)[:, 0]
    np.testing.assert_allclose(weights / weights[2], [4 / 2.5, 4 / 7.75, 1])
