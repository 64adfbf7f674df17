"""Appendix F: what the formulas are by hand, and whether intervals cover what they say."""

import numpy as np
import pytest
from scipy.stats import norm, t

from engram.tables.intervals import own_interval, shared_half_width, site_interval
from engram.tables.shrinkage import combine
from engram.tables.site import SiteEstimate
from tests.evidence.molar import coverage
from tests.samples import entry


def agreeing(count, odd=0, *, size=100.0):
    """Sites with standard errors 0.1 and 0.2 in turn, of which the last are far away."""
    return [
        SiteEstimate(
            np.array([50.0 if m >= count - odd else 0.0]), np.array([0.1 * (1 + m % 2)]), size, 1.0
        )
        for m in range(count)
    ]


def test_the_practical_half_width_by_hand():
    for count, odd in [(40, 0), (40, 6)]:
        with entry(count, odd):
            sites = agreeing(count, odd)
            (half,) = shared_half_width(sites, combine(sites), level=0.9)
            rest = count - odd
            part = odd / (2 * rest) + norm.ppf(0.975) / (2 * np.sqrt(rest))
            assert half == pytest.approx(norm.ppf(0.5 + part) * 0.15, rel=1e-12)


def test_the_papers_half_width_by_hand():
    sites = agreeing(200, 20)
    (half,) = shared_half_width(sites, combine(sites), level=0.9, method="paper")
    delta = np.log(2 * 100) / 2  # the larger of 8 / 0.1 and 2 n
    part = 0.1 + np.sqrt(1.01 * delta / 180)
    # C_0.45 is about 324: the largest phi(z) (1 - 0.9 / (1 - 2 eps)), at eps near 0.024.
    z = norm.ppf(1 - np.linspace(0.001, 0.049, 100_000))
    constant = 1 / (norm.pdf(z) * (1 - 0.9 / (2 * norm.cdf(z) - 1))).max()
    assert constant == pytest.approx(324, abs=0.5)
    assert half == pytest.approx(1.25 * constant * part * 0.15, rel=1e-6)


def test_too_few_tasks_say_nothing_and_each_keeps_its_own():
    sites = agreeing(4)
    shared = combine(sites)
    for method in ("practical", "paper"):
        half = shared_half_width(sites, shared, method=method)
        assert half.tolist() == [np.inf]
        low, high = site_interval(sites[0], shared, half, method=method)
        z = norm.ppf(1 - 0.05 / 4)
        assert (low[0], high[0]) == (pytest.approx(-0.1 * z), pytest.approx(0.1 * z))


def test_where_a_task_disagrees_the_interval_is_its_own():
    sites = agreeing(40, 3)
    shared = combine(sites)
    half = shared_half_width(sites, shared)
    low, high = site_interval(sites[-1], shared, half)
    assert low[0] < 50 < high[0]
    low, high = site_interval(sites[0], shared, half)
    assert (high[0] - low[0], high[0] + low[0]) == (pytest.approx(2 * half[0]), 0)
    assert half[0] < 0.1 * norm.ppf(0.975)


def test_what_is_not_determined_may_be_anything():
    sites = agreeing(40)
    blind = SiteEstimate(np.zeros(1), np.array([np.inf]), 5.0, np.inf)
    shared = combine([*sites, blind])
    half = shared_half_width([*sites, blind], shared)
    assert half == pytest.approx(shared_half_width(sites, combine(sites)))
    assert site_interval(blind, shared, half) == (pytest.approx([-np.inf]), pytest.approx([np.inf]))


def test_a_tasks_own_interval_uses_students_t_where_noise_is_estimated():
    site = SiteEstimate(np.array([2.0]), np.array([0.5]), 10.0, 3.0, freedom=6.0)
    low, high = own_interval(site, level=0.9)
    half = t.ppf(0.95, 6) * 1.5
    assert (low[0], high[0]) == (pytest.approx(2 - half), pytest.approx(2 + half))
    known = own_interval(site._replace(freedom=np.inf), level=0.9)
    assert known.high[0] == pytest.approx(2 + norm.ppf(0.95) * 1.5)


def test_wide_gaps_are_covered_by_short_intervals_and_narrow_ones_are_not_covered():
    # Measured 1.000 and 0.982 at 0.29 of the length; and 0.17 of gaps of 3 sigma / sqrt(n).
    size = {"trials": 1, "dim": 60, "tasks": 100, "size": 400}
    wide = coverage(20.0, **size)
    assert min(wide.shared, wide.differing) >= 0.95
    assert wide.length <= 0.32
    assert coverage(3.0, **size).differing < 0.3


def test_refuses_other_levels_and_methods():
    for level, method in [(0, "practical"), (1, "paper"), (0.9, "exact")]:
        with entry(level, method):
            sites = agreeing(10)
            with pytest.raises(ValueError, match="must be"):
                shared_half_width(sites, combine(sites), level=level, method=method)
