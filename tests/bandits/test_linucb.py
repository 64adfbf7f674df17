"""LinUCB and its ridge regression against closed forms, and the trivial policies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.bandits.linucb import epsilon_greedy, linucb, random_play
from engram.bandits.policy import best
from engram.bandits.ridge import fitted, fresh, observed, widths
from tests.bandits.support import Groups, bounds, play
from tests.samples import entry


@pytest.mark.parametrize("shared", [True, False])
def test_all_choices_are_those_of_the_closed_form(shared):
    environment, lam, alpha = Groups(groups=2, users=4, dim=5, seed=3), 0.1, 0.7
    rows = {user: [] for user in range(4)}
    expected = []
    for t in range(300):
        user, x, _, rewards = environment.round(t)
        own = rows[0 if shared else user]
        rng = np.random.default_rng((environment.seed, t, 1))
        arm = best(bounds(own, lam, alpha, x), rng)
        expected.append(arm)
        own.append((x[arm], rewards[arm]))
    assert play(linucb(5, alpha=alpha, lam=lam, shared=shared), environment, 300)[0] == expected


def test_the_inverse_does_not_drift():
    for lam in [0.01, 1.0]:
        with entry(lam):
            dim, rng = 12, np.random.default_rng(0)
            scales = np.geomspace(1e-3, 1, dim)  # features of which some hardly vary
            x = rng.normal(size=(5000, dim)) * scales / np.sqrt(dim)
            r = rng.random(5000)
            ridge, gram = fresh(dim, lam), np.zeros((dim, dim))
            for row, reward in zip(x, r, strict=True):
                ridge, gram = observed(ridge, row, reward), gram + np.outer(row, row)
            a = lam * np.eye(dim) + x.T @ x
            upper = np.triu_indices(dim)
            inverse = np.linalg.inv(a)
            np.testing.assert_allclose(
                ridge.inverse[upper], inverse[upper], rtol=1e-9, atol=1e-12 / lam
            )
            np.testing.assert_allclose(
                ridge.theta, np.linalg.solve(a, x.T @ r), rtol=1e-8, atol=1e-10
            )
            arms = rng.normal(size=(7, dim))
            expected = np.sqrt(np.einsum("kd,de,ke->k", arms, inverse, arms))
            np.testing.assert_allclose(widths(ridge, arms), expected, rtol=1e-9)
            again = fitted([(gram, ridge)], lam)
            np.testing.assert_allclose(again.theta, ridge.theta, rtol=1e-8, atol=1e-10)
            assert again.rows == ridge.rows == 5000


@settings(max_examples=30)
@given(st.integers(0, 99), st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_estimates_of_several_are_that_of_all_their_rows(seed, counts):
    rng, lam, several, everything = np.random.default_rng(seed), 0.3, [], fresh(3, 0.3)
    for count in counts:
        one, gram = fresh(3, lam), np.zeros((3, 3))
        for _ in range(count):
            x, r = rng.normal(size=3), rng.random()
            one, everything = observed(one, x, r), observed(everything, x, r)
            gram = gram + np.outer(x, x)
        several.append((gram, one))
    before = [gram.copy() for gram, _ in several]
    together = fitted(several, lam)
    assert together.rows == sum(counts)
    np.testing.assert_allclose(together.theta, everything.theta, rtol=1e-9, atol=1e-12)
    arms = rng.normal(size=(4, 3))
    np.testing.assert_allclose(widths(together, arms), widths(everything, arms), rtol=1e-9)
    assert all(np.array_equal(a, b) for a, (b, _) in zip(before, several, strict=True))


def test_epsilon_greedy_explores_that_often():
    x = np.eye(4)
    policy, rng = epsilon_greedy(4, epsilon=0.2, lam=1.0), np.random.default_rng(1)
    state = policy.update(policy.init(rng), 3, x[1], 1.0, rng)
    arms = np.bincount([policy.choose(state, 3, x, rng)[0] for _ in range(4000)], minlength=4)
    # Others than the best arm: 0.2 * 3 / 4 of all, 600; three standard deviations are 68.
    assert abs(arms.sum() - arms[1] - 600) < 68
    assert (abs(arms[[0, 2, 3]] - 200) < 42).all()
    greedy = epsilon_greedy(4, epsilon=0.0, lam=1.0)
    assert {greedy.choose(state, 3, x, rng)[0] for _ in range(50)} == {1}


def test_random_play_is_fair():
    policy, rng = random_play(), np.random.default_rng(2)
    arms = np.bincount([policy.choose((), 0, np.eye(5), rng)[0] for _ in range(5000)], minlength=5)
    assert (abs(arms - 1000) < 85).all()  # three standard deviations
