"""Refusals of a bandit's policy, and the users that it knows."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.bandits.linucb import linucb
from engram.bandits.policy import Policy, best, generator, policy_server
from engram.online.state_arrays import to_arrays
from tests.samples import entry

DIM = 3
ARMS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])


def rows(arms):
    return tuple(map(tuple, arms.tolist()))


class Log(NamedTuple):
    """A policy's state that records every call."""

    calls: tuple


def scribe():
    """A policy that plays arms in turn, and records every call."""

    def choose(state, user, arms, rng):
        call = ("choose", user, rows(arms), rng.random())
        return len(state.calls) % len(arms), Log((*state.calls, call))

    def update(state, user, x, reward, rng):
        return Log((*state.calls, ("update", user, tuple(x.tolist()), reward, rng.random())))

    return Policy(lambda rng: Log((("init", rng.random()),)), choose, update)


SCRIBE = policy_server(scribe(), DIM)


def test_users_are_numbered_as_they_come_and_rewards_go_to_arms_offered():
    state = SCRIBE.init(5)
    arm, state = SCRIBE.choose(state, "ann", ARMS)
    assert arm == 1
    _, state = SCRIBE.choose(state, 7, 2 * ARMS)
    state = SCRIBE.update(state, "ann", 0, 0.25)  # not what was chosen, but offered
    _, state = SCRIBE.choose(state, "ann", 3 * ARMS)
    _, state = SCRIBE.choose(state, "ann", 4 * ARMS)  # which takes the offer's place
    state = SCRIBE.update(state, "ann", np.int64(1), 1)
    state = SCRIBE.update(state, 7, 1, 0.0)
    assert state.users == {"ann": 0, 7: 1}
    assert (state.chosen, state.updated, state.open) == (4, 3, {})
    uniforms = [generator(5, t, 0).random() for t in range(4)]
    rewards = [generator(5, t, 1).random() for t in range(3)]
    assert state.learned.calls == (
        ("init", generator(5, 0, 2).random()),
        ("choose", 0, rows(ARMS), uniforms[0]),
        ("choose", 1, rows(2 * ARMS), uniforms[1]),
        ("update", 0, (1.0, 0.0, 0.0), 0.25, rewards[0]),
        ("choose", 0, rows(3 * ARMS), uniforms[2]),
        ("choose", 0, rows(4 * ARMS), uniforms[3]),
        ("update", 0, (0.0, 4.0, 0.0), 1.0, rewards[1]),
        ("update", 1, (0.0, 2.0, 0.0), 0.0, rewards[2]),
    )


def test_the_arms_offered_are_kept_as_they_were_lists_too():
    arms = ARMS.copy()
    _, state = SCRIBE.choose(SCRIBE.init(0), 1, arms)
    arms[:] = 9
    assert SCRIBE.update(state, 1, 0, 1.0).learned.calls[-1][2] == (1.0, 0.0, 0.0)
    _, state = SCRIBE.choose(SCRIBE.init(0), 1, ARMS.astype(int).tolist())
    assert state.open[0].dtype == np.float64


BAD_ARMS = [
    (np.ones((2, DIM + 1)), r"the arms' shape must be \(K, 3\), K at least 1, got \(2, 4\)"),
    (np.ones(DIM), r"the arms' shape must be \(K, 3\), K at least 1, got \(3,\)"),
    (np.ones((0, DIM)), r"the arms' shape must be \(K, 3\), K at least 1, got \(0, 3\)"),
    ([], "the arms' shape must be"),
    (None, "the arms' shape must be"),
    ([[1.0, 2.0, 3.0], [1.0]], r"arms must be numbers of shape \(K, 3\), got a list"),
    (np.array([["a", "b", "c"]] * 40), r"arms must be numbers of shape \(K, 3\), got a ndarray"),
    ([[0, 1, np.nan]], r"arms must be finite, got \[0.0, 1.0, nan\] for arm 0"),
    ([[0, 1, 2], [np.inf, 1, 2]], r"arms must be finite, got \[inf, 1.0, 2.0\] for arm 1"),
]
BAD_USERS = [None, True, 1.5, (1, 2), np.array([1])]
BAD_ARM = [2, -1, 0.0, None, "0", True]
BAD_REWARDS = [1.5, -0.1, np.nan, np.inf, None, "much", [0.5, 0.5]]


def refused(state, call, message):
    before = to_arrays(state)
    with pytest.raises(ValueError, match=message) as refusal:
        call(state)
    assert "\n" not in str(refusal.value)
    after = to_arrays(state)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.filterwarnings("error")
def test_bad_input_costs_one_line_and_changes_nothing():
    served = policy_server(linucb(DIM, alpha=0.1, lam=0.5), DIM)
    _, state = served.choose(served.init(3), "ann", ARMS)
    state = served.update(state, "ann", 0, 0.5)
    _, state = served.choose(state, "ann", ARMS)
    for arms, message in BAD_ARMS:
        refused(state, lambda s, arms=arms: served.choose(s, "ann", arms), message)
    for user in BAD_USERS:
        message = r"user must be an int or a string, got"
        refused(state, lambda s, user=user: served.choose(s, user, ARMS), message)
        refused(state, lambda s, user=user: served.update(s, user, 0, 0.5), message)
    for arm in BAD_ARM:
        message = "arm must be one of the 2 that were offered, from 0, got"
        refused(state, lambda s, arm=arm: served.update(s, "ann", arm, 0.5), message)
    for reward in BAD_REWARDS:
        message = r"reward must be in \[0, 1\], got"
        refused(state, lambda s, reward=reward: served.update(s, "ann", 0, reward), message)
    message = "user must be one that was offered arms since its last reward, got"
    refused(state, lambda s: served.update(s, "bob", 0, 0.5), message)
    state = served.update(state, "ann", 0, 0.5)
    refused(state, lambda s: served.update(s, "ann", 0, 0.5), message)  # twice


def test_rewards_are_rescaled_as_asked():
    stars = policy_server(scribe(), DIM, reward_range=(1.0, 5.0))
    _, state = stars.choose(stars.init(0), 0, ARMS)
    assert stars.update(state, 0, 0, 2.0).learned.calls[-1][3] == 0.4
    assert stars.update(state, 0, 0, 5).learned.calls[-1][3] == 1.0
    refused(state, lambda s: stars.update(s, 0, 0, 0.5), r"reward must be in \[1, 5\], got 0.5")
    for bad in [(1.0, 1.0), (2.0, 1.0), (0.0, np.inf), (np.nan, 1.0)]:
        with pytest.raises(ValueError, match="reward_range must be two finite numbers, in order"):
            policy_server(scribe(), DIM, reward_range=bad)
    with pytest.raises(ValueError, match="dim must be at least 1, got 0"):
        policy_server(scribe(), 0)


def test_linucb_is_that_of_the_rewards_with_a_width_in_their_units():
    # Li et al. (2010), Algorithm 1, with rewards as they are and alpha times the range's length.
    for ends, length in [((-1, 1), 2), ((-3, 1), 4), ((2, 5), 5), ((-6, -2), 6), ((0, 1), 1)]:
        with entry(ends, length):
            alpha, chosen, a, b = 0.3 * length, [], np.eye(DIM), np.zeros(DIM)
            served = policy_server(linucb(DIM, alpha=0.3, lam=1.0), DIM, reward_range=ends)
            state, rng = served.init(0), np.random.default_rng(1)
            for _ in range(60):
                arms = rng.normal(size=(5, DIM))
                reward = float(np.clip(ends[0] + arms[:, 0].mean() + 1, *ends))
                inverse = np.linalg.inv(a)
                bounds = arms @ inverse @ b + alpha * np.sqrt(((arms @ inverse) * arms).sum(1))
                arm, state = served.choose(state, "ann", arms)
                chosen.append(arm == bounds.argmax())
                state = served.update(state, "ann", arm, reward)
                a += np.outer(arms[arm], arms[arm])
                b += reward * arms[arm]
            assert all(chosen)


# --- The best of scores ------------------------------------------------------------------------


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=8), st.integers(0, 99))
def test_the_best_is_a_largest_score(scores, seed):
    rng = np.random.default_rng(seed)
    arm = best(np.array(scores, dtype=float), rng)
    assert scores[arm] == max(scores)
    after = np.random.default_rng(seed)
    after.random(len(scores))
    assert rng.random() == after.random()  # as many numbers drawn, ties or not


def test_ties_are_broken_fairly_and_rounding_is_a_tie():
    scores = np.array([0.3, 0.1 + 0.2, 0.1, 0.3 + 1e-9])
    assert best(scores, np.random.default_rng(0)) == 3
    arms = [best(scores[:3], np.random.default_rng(t)) for t in range(3000)]
    counts = np.bincount(arms, minlength=3)
    assert counts[2] == 0
    assert abs(counts[0] - 1500) < 83  # three standard deviations
    assert {best(np.zeros(3), np.random.default_rng(t)) for t in range(30)} == {0, 1, 2}
