"""Tasks of MOLARB that learn from noisy sums: how far a turn reaches, and what is remembered."""

import numpy as np
import pytest

from engram.tables.bandits.policies import molar_bandit
from engram.tables.private import (
    close_private_batch,
    noisy_statistics,
    receive_private,
    statistics_size,
)
from engram.tables.shrinkage import Shared
from engram.tables.site import Rows

DIM, ARMS, BOUND = 2, 3, 4.0
SITE = molar_bandit().site


def after(turns, seed=0):
    """A task's state after so many turns."""
    rng = np.random.default_rng(seed)
    contexts, state = rng.normal(size=(turns, ARMS, DIM)), SITE.init(1, DIM)
    return SITE.observe(state, contexts, rng.integers(ARMS, size=turns), rng.normal(size=turns))


def closed(state, *, multiplier=1.0, seed=0):
    normal = np.random.default_rng(seed).normal(size=statistics_size(DIM))
    return close_private_batch(SITE, state, bound=BOUND, multiplier=multiplier, normal=normal)


def test_another_turn_moves_the_sums_by_root_two_squared_bounds_at_most():
    rng = np.random.default_rng(1)

    def sums(*row):
        rows = Rows(np.array([row[:DIM], [1.0, 1.0]]), np.array([row[DIM], 0.0]))
        quiet = np.zeros(statistics_size(DIM))
        return noisy_statistics(rows, bound=BOUND, multiplier=1.0, normal=quiet)

    most = np.sqrt(2) * BOUND**2
    gaps = [
        np.linalg.norm(sums(*one) - sums(*other))
        for one, other in rng.normal(scale=9, size=(200, 2, DIM + 1))
    ]
    assert max(gaps) <= most * (1 + 1e-12)
    # Turns at right angles, as long as is allowed, are as far apart as any.
    assert np.linalg.norm(sums(9.0, 0.0, 0.0) - sums(0.0, 9.0, 0.0)) == pytest.approx(most)


def test_almost_without_noise_it_is_the_estimate_of_the_task_itself():
    state = after(30)
    (own,) = SITE.close_batch(state)
    sent, left = closed(state, multiplier=1e-13)
    np.testing.assert_allclose(sent.coef, own.coef, rtol=1e-6)
    shared = Shared(np.array([0.3, 0.1]), 200.0)
    mine = receive_private(left, sent, shared, option="hard", c=1.0)
    np.testing.assert_allclose(mine.coefs, SITE.receive(state, [shared]).coefs, rtol=1e-6)


def test_rows_are_forgotten_with_their_one_release():
    sent, left = closed(after(30))
    assert sent is not None
    assert [len(part.y) for part in (left.fresh, left.past)] == [0, 0]
    assert closed(left) == (None, left)


def test_too_few_rows_wait_and_draw_nothing_into_coefficients():
    state = after(DIM + 1)
    sent, left = closed(state)
    assert sent is None
    assert left is state
