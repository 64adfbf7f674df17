"""Estimates from noisy sums: beside numpy's least squares, audited; and bandits that use them."""

import numpy as np
import pytest
import torch

from engram.tables.bandits.policies import molar_bandit
from engram.tables.private import (
    close_private_batch,
    estimate_of,
    noisy_statistics,
    statistics_size,
)
from engram.tables.site import Rows, estimate_site
from tests.epsilons import epsilon
from tests.samples import entry
from tests.strategies.running.test_audit import DELTA, found_by

DIM, BETA = 3, np.array([1.0, -2.0, 0.5])


def drawn(seed, n=400, sigma=0.5):
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=(n, DIM - 1)), np.ones(n)])
    return Rows(x, x @ BETA + sigma * rng.normal(size=n))


def statistics(rows, *, bound=8.0, multiplier=1.0, seed=0):
    normal = np.random.default_rng(seed).normal(size=statistics_size(rows.x.shape[1]))
    return noisy_statistics(rows, bound=bound, multiplier=multiplier, normal=normal)


def released(rows, bound, multiplier, seed=0):
    noisy = statistics(rows, bound=bound, multiplier=multiplier, seed=seed)
    return estimate_of(noisy, len(rows.y), multiplier * bound**2)


def test_without_clipping_and_almost_without_noise_it_is_least_squares():
    rows = drawn(0)
    found, plain = released(rows, 1e3, 1e-13), estimate_site(rows)
    expected, residual, *_ = np.linalg.lstsq(rows.x, rows.y, rcond=None)
    np.testing.assert_allclose(found.coef, expected, rtol=1e-6)
    assert found.sigma == pytest.approx(float(np.sqrt(residual[0] / (400 - DIM))), rel=1e-6)
    np.testing.assert_allclose(found.scale, plain.scale, rtol=1e-6)
    assert (found.size, found.freedom) == (plain.size, plain.freedom)


def test_noise_is_symmetric_normal_and_of_the_deviation_that_is_said():
    rows = drawn(1)
    quiet = statistics(rows, multiplier=1e-12)
    noise = np.stack([statistics(rows, multiplier=0.5, seed=s) - quiet for s in range(400)])
    np.testing.assert_allclose(noise, noise.swapaxes(1, 2))
    upper = noise[:, *np.triu_indices(DIM + 1)] / (0.5 * 8.0**2)
    assert abs(upper.std() - 1) < 0.06
    assert np.abs(np.corrcoef(upper.T) - np.eye(upper.shape[1])).max() < 0.25


def test_a_row_moves_the_statistics_by_at_most_the_squared_bound():
    for row in [[0, 0, 1, 0.5], [3, 4, 1, 100], [1e150, 0, 0, 0]]:
        with entry(row):
            rows = drawn(2, n=10)
            more = Rows(np.vstack([rows.x, row[:3]]), np.append(rows.y, row[3]))
            gap = statistics(more, bound=2.0) - statistics(rows, bound=2.0)
            assert np.linalg.norm(np.triu(gap)) <= 4.0 * (1 + 1e-12)


def test_standard_errors_count_the_noise():
    """About 68 % of 300 estimates, whose error is mostly noise, lie within one of them."""
    errors = []
    for seed in range(300):
        rows = drawn(seed, n=2000)
        found = released(rows, 8.0, 0.5, seed)
        errors.append((found.coef - BETA) / found.standard_error)
        assert (found.standard_error > 2 * estimate_site(rows).standard_error).all()
    assert 0.62 < (np.abs(np.array(errors)) < 1).mean() < 0.74


def test_statistics_that_are_noise_give_finite_estimates():
    for multiplier in [10.0, 1000.0]:
        with entry(multiplier):
            found = released(drawn(3), 8.0, multiplier)
            assert np.isfinite(found.coef).all()
            assert (found.scale > 0).all()
            assert np.isfinite(found.scale).all()
            assert found.sigma > 0


def test_too_few_rows_determine_nothing():
    found = released(drawn(0, n=3), 8.0, 1.0)
    assert np.isinf(found.scale).all()
    assert np.isinf(found.sigma)
    assert not found.coef.any()


def audited(multiplier):
    """Returns what is found of canaries: rows along a column of their own, of full length."""
    count, seen, unseen = 100, [], []
    for seed in range(6):
        rows = Rows(5.0 * np.eye(count, 2 * count), np.zeros(count))
        sent = statistics(rows, bound=2.0, multiplier=multiplier, seed=seed)
        found = torch.from_numpy(np.diagonal(sent).copy())
        seen.append(found[:count])
        unseen.append(found[count : 2 * count])
    return found_by(torch.cat(seen), torch.cat(unseen))


def test_an_audit_finds_something_and_no_more_than_is_claimed():
    assert 0.1 * epsilon(1.0, 1, DELTA) < audited(1.0) <= epsilon(1.0, 1, DELTA)


def test_an_audit_finds_out_a_twelfth_of_the_noise():
    assert audited(0.25) > epsilon(3.0, 1, DELTA)


# --- Bandits: how far a turn reaches, and what is remembered -----------------------------------

SITE = molar_bandit()


def after(turns, seed=0):
    """A task's state after so many turns."""
    rng = np.random.default_rng(seed)
    contexts, state = rng.normal(size=(turns, 3, 2)), SITE.init(1, 2)
    return SITE.observe(state, contexts, rng.integers(3, size=turns), rng.normal(size=turns))


def closed(state, multiplier=1.0):
    return close_private_batch(SITE, state, lambda rows: released(rows, 4.0, multiplier))


def test_another_turn_moves_the_sums_by_root_two_squared_bounds_at_most():
    rng = np.random.default_rng(1)

    def sums(*row):
        rows = Rows(np.array([row[:2], [1.0, 1.0]]), np.array([row[2], 0.0]))
        return noisy_statistics(rows, bound=4.0, multiplier=1.0, normal=np.zeros(6))

    most = np.sqrt(2) * 4.0**2
    pairs = rng.normal(scale=9, size=(200, 2, 3))
    gaps = [np.linalg.norm(sums(*one) - sums(*other)) for one, other in pairs]
    assert max(gaps) <= most * (1 + 1e-12)
    # Turns at right angles, as long as is allowed, are as far apart as any.
    assert np.linalg.norm(sums(9.0, 0.0, 0.0) - sums(0.0, 9.0, 0.0)) == pytest.approx(most)


def test_a_batch_is_released_once_and_its_rows_forgotten():
    state = after(30)
    (own,) = SITE.close_batch(state)
    sent, left = closed(state, multiplier=1e-13)
    np.testing.assert_allclose(sent.coef, own.coef, rtol=1e-6)
    assert [len(part.y) for part in (left.fresh, left.past)] == [0, 0]
    assert closed(left) == (None, left)


def test_too_few_rows_wait_and_draw_nothing_into_coefficients():
    state = after(3)
    sent, left = closed(state)
    assert sent is None
    assert left is state
