"""Intervals that borrow from other tasks: coverage at every distance, and length."""

import numpy as np
import pytest

from engram.tables.borrowing_intervals import (
    honest_interval,
    honest_intervals,
    suggest,
    tail_shares,
)
from engram.tables.intervals import own_interval
from engram.tables.site import SiteEstimate
from tests.samples import sampled

GAPS = np.array([0.0, 1, 2, 3, 4, 6, 10, 20])


def sites(rng, tasks=20, freedom=np.inf):
    """Tasks with two columns for each gap: the first task's coefficients lie that far away."""
    truth = np.zeros((tasks, 2 * len(GAPS)))
    truth[0] = np.append(GAPS, -GAPS)
    coefs = truth + rng.normal(size=truth.shape)
    sigmas = np.ones(tasks)
    if freedom < np.inf:
        sigmas = np.sqrt(rng.chisquare(freedom, tasks) / freedom)
    scale = np.ones(2 * len(GAPS))
    each = zip(coefs, sigmas.tolist(), strict=True)
    return truth, [SiteEstimate(coef, scale, 50, sigma, freedom) for coef, sigma in each]


@pytest.mark.parametrize("freedom", sampled([8.0, np.inf], [np.inf]))
def test_they_cover_at_every_distance(freedom):
    rng = np.random.default_rng(0)
    covered, lengths = [], []
    for _ in range(180):
        truth, found = sites(rng, tasks=8, freedom=freedom)
        low, high = honest_interval(found[0], suggest(found[1:]))
        own = own_interval(found[0])
        covered.append((low <= truth[0]) & (truth[0] <= high))
        lengths.append((high - low) / (own.high - own.low))
    assert (np.mean(covered, axis=0).reshape(2, -1).mean(axis=0) >= 0.93).all()
    length = np.mean(lengths, axis=0)[: len(GAPS)]
    assert length[:2].max() < 0.93
    assert length.max() < 1.2
    assert length[-1] == pytest.approx(1.0, abs=0.02)


def test_shares_are_one_half_at_the_center_and_far_away():
    (shares,) = tail_shares(np.array([0.5]), np.array([0.2]))
    assert shares[len(shares) // 2] == pytest.approx(0.5, abs=1e-4)
    assert shares[[0, -1]] == pytest.approx([0.5, 0.5], abs=0.15)
    np.testing.assert_allclose(shares, 1 - shares[::-1], atol=1e-4)
    # Above the center alpha is spent below: there y is likely under m, and costs much length.
    assert shares[len(shares) // 2 + 15] < 0.1


def test_the_other_tasks_alone_decide():
    _, found = sites(np.random.default_rng(1))
    one = honest_intervals(found)
    moved = found[0]._replace(coef=found[0].coef + 1e9)
    far = honest_intervals([moved, *found[1:]])
    own = own_interval(moved)
    np.testing.assert_allclose(far.high[0] - far.low[0], own.high - own.low, rtol=1e-6)
    assert np.isfinite(one.low).all()


def test_what_is_not_determined_has_no_interval_and_two_tasks_have_their_own():
    _, found = sites(np.random.default_rng(1), tasks=4)
    unknown = np.where(np.arange(16) == 2, np.inf, 1.0)
    low, high = honest_intervals([found[0]._replace(scale=unknown), *found[1:]])
    assert np.isinf(low[0]).tolist() == np.isinf(high[0]).tolist() == (unknown == np.inf).tolist()
    assert np.isfinite(low[1:]).all()
    pair = honest_intervals(found[:2])
    own = [own_interval(site) for site in found[:2]]
    np.testing.assert_allclose(pair.low, [each.low for each in own])
    kept = honest_intervals(found, intercept=True)
    np.testing.assert_allclose(kept.low[:, -1], [own_interval(s).low[-1] for s in found])


def test_bad_arguments_are_refused():
    _, found = sites(np.random.default_rng(1))
    with pytest.raises(ValueError, match=r"level must be in \(0, 1\), got 95"):
        honest_intervals(found, level=95)
    with pytest.raises(ValueError, match="number of tasks must be at least 2, got 1"):
        honest_intervals(found[:1])
