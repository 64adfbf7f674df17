"""Users' rows: which are kept, and which are drawn."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram.bandits.replay import add, draw, drawn_rows, empty, kept_rows, of_each, with_users
from tests.bandits.plain_meta_ban import drawn

RUNS, DIM = 2, 2


def pooled(kept, runs, weights, uniforms):
    """Returns the rows that uniforms (M, n) draw, as those of one step of two."""
    both = np.stack([np.full_like(uniforms, 0.5), uniforms], axis=1)
    return drawn_rows(kept, draw(kept_rows(kept)[runs], runs, weights, both).step(1))


def filled(steps, limit=5, runs=RUNS):
    """Rows (t, run, ...) of users ``steps[t][run]``, and the same as lists."""
    kept = empty(runs, DIM, limit)
    plain = [[[] for _ in range(8)] for _ in range(runs)]
    for t, users in enumerate(steps):
        x = np.array([[t, run] for run in range(runs)], dtype=float)
        kept = add(kept, np.array(users), x, x[:, 0] / 100)
        for run, user in enumerate(users):
            plain[run][user].append((t, run))
    return kept, [[rows[-limit:] for rows in run] for run in plain]


def row_numbers(kept, run, user):
    count = min(int(kept.seen[run, user]), kept.limit)
    return sorted(kept.x.read()[run, user, :count, 0].int().tolist())


STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40)


@given(STEPS, st.sampled_from([1, 3, 8, 9, 20]))
def test_each_user_s_last_rows_are_kept(steps, limit):
    kept, plain = filled(steps, limit)
    for run in range(RUNS):
        for user in range(4):
            times = [t for t, _ in plain[run][user]]
            assert row_numbers(kept, run, user) == times
            assert kept.seen[run, user] == sum(step[run] == user for step in steps)
            rewards = kept.rewards.read()[run, user, : len(times)]
            expected = kept.x.read()[run, user, : len(times), 0] / 100
            torch.testing.assert_close(rewards, expected)
    assert kept.x.read().shape[2] <= limit


@given(STEPS)
def test_more_users_change_no_rows(steps):
    kept, _ = filled(steps)
    more = with_users(kept, 19)
    assert more.seen.shape == (RUNS, 19)
    assert torch.equal(more.x.read()[:, :8], kept.x.read())
    assert torch.equal(more.rewards.read()[:, :8], kept.rewards.read())
    assert (more.seen[:, :8] == kept.seen).all()
    assert not more.seen[:, 8:].any()


WEIGHTS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=8, max_size=8)


@given(
    STEPS,
    st.lists(st.tuples(st.integers(0, 1), WEIGHTS), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
)
def test_draws_are_those_of_a_plain_loop(steps, learners, seed):
    kept, _ = filled(steps, limit=4)
    runs = np.array([run for run, _ in learners])
    weights = np.array([each for _, each in learners])
    uniforms = np.random.default_rng(seed).random((len(runs), 7))
    sample = pooled(kept, runs, weights, uniforms)
    held = kept.x.read()[..., 0]  # in the order of their places
    for m, run in enumerate(runs):
        counts = np.minimum(kept.seen[run], 4)
        rows = [held[run, user, : counts[user]].tolist() for user in range(8)]
        expected = drawn(rows, dict(enumerate(weights[m])), uniforms[m])
        shares = 7 * sample.shares[m]
        if expected:
            assert sample.x[m, 0].tolist() == expected
            assert sample.x[m, 1].tolist() == [run] * 7
            torch.testing.assert_close(shares, torch.ones(7))
        else:
            assert not shares.any()
    assert sample.x.isfinite().all()


def test_the_largest_lot_draws_the_last_row():
    # Where it is added to a number, it may round up to 1, of which there is no row.
    kept, _ = filled([(0,), (3,), (3,)], runs=1)
    weights = np.tile([1.0, 1, 1, 1, 0, 0, 0, 0], (500, 1))
    uniforms = np.full((500, 2), np.nextafter(1, 0))
    sample = pooled(kept, np.zeros(500, dtype=int), weights, uniforms)
    assert (sample.x[:, 0] == 2).all()


@given(STEPS, st.integers(0, 2**32 - 1))
def test_rows_of_each_user_are_those_of_a_pool_of_one(steps, seed):
    kept, _ = filled(steps, limit=3)
    uniforms = np.random.default_rng(seed).random((RUNS, 5))
    found = of_each(kept, uniforms)
    for run in range(RUNS):
        alone = pooled(kept, np.full(8, run), np.eye(8), uniforms[run].repeat(8).reshape(5, 8).T)
        assert torch.equal(found.shares[run], alone.shares)
        for user in np.flatnonzero(kept.seen[run]):
            assert torch.equal(found.x[run, user], alone.x[user])
            assert torch.equal(found.rewards[run, user], alone.rewards[user])
