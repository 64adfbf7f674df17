"""Replay of logged rounds is unbiased, and what it keeps is what a policy would have seen."""

from itertools import product

import numpy as np
import pytest

from engram.bandits.logged import logged, replay
from engram.bandits.policy import Policy, policy_server
from tests.bandits.scripted import noisy
from tests.samples import entry


def fixed(choose):
    """A policy that learns nothing."""
    return policy_server(Policy(lambda rng: None, choose, lambda state, *_: state), 1)


def first_or_last(state, user, arms, rng):
    return (0 if arms[0, 0] > 0 else len(arms) - 1), state


def draw(rng, rounds, probabilities):
    """Rounds of two kinds, x > 0 or x < 0, of 3 arms, with rewards that depend on both."""
    kinds = rng.random(rounds) < 0.3
    arms = np.where(kinds, 1.0, -1.0)[:, None, None] * np.ones((rounds, 3, 1))
    p = np.array(probabilities)
    chosen = rng.choice(3, rounds, p=p)
    means = np.array([[0.1, 0.4, 0.2], [0.9, 0.3, 0.5]])  # of x < 0, x > 0
    rewards = (rng.random(rounds) < means[kinds.astype(int), chosen]).astype(float)
    return logged(np.zeros(rounds, int), arms, chosen, rewards, p[chosen])


def test_the_mean_of_what_is_kept_is_the_policy_s_own():
    # Of x > 0, 30 % of rounds, the policy plays arm 0, and else arm 2.
    for probabilities in [(1 / 3, 1 / 3, 1 / 3), (0.6, 0.1, 0.3)]:
        with entry(probabilities):
            truth = 0.3 * 0.9 + 0.7 * 0.2
            found = replay(
                fixed(first_or_last), draw(np.random.default_rng(0), 20_000, probabilities), 0
            )
            count = len(found.kept)
            assert count / 20_000 == pytest.approx(min(probabilities), rel=0.1)
            assert found.rewards.mean() == pytest.approx(
                truth, abs=4 * found.rewards.std() / count**0.5
            )


def test_all_logs_of_three_rounds_by_enumeration():
    """A policy that learns: its first reward makes it stay with arm 0, or play 1 from then on.

    Rewards are certain: arm 0 pays 0.25, and arm 1 pays 1 in even rounds and 0 in odd ones. A
    replay keeps the rounds in which both agree; given that two are kept, what they pay is what the
    policy would get in any two rounds out of three.
    """
    stay = Policy(lambda _: 0, lambda seen, *_: (min(seen, 1), seen), lambda seen, *_: seen + 1)
    learner = policy_server(stay, 1)
    pays = np.array([[0.25, 1.0], [0.25, 0.0], [0.25, 1.0]])
    for chosen in product(range(2), repeat=3):
        given = np.array(chosen), pays[np.arange(3), chosen], np.full(3, 0.5)
        found = replay(learner, logged(np.zeros(3, int), np.ones((3, 2, 1)), *given), 0)
        kept, seen = [], 0
        for t, arm in enumerate(chosen):
            if arm == min(seen, 1):
                kept.append(t)
                seen += 1
        assert found.kept.tolist() == kept
        assert found.rewards.tolist() == [pays[t, chosen[t]] for t in kept]
        assert found.state.learned == seen
        assert found.state.updated == len(kept)


def test_rounds_that_are_not_kept_leave_no_trace():
    rng = np.random.default_rng(1)
    names = rng.choice(["ann", "ben", "cat"], 200)
    arms, chosen = rng.standard_normal((200, 4, 5)), rng.integers(4, size=200)
    log = logged(names, arms, chosen, rng.random(200), np.full(200, 0.25))
    one = policy_server(noisy(5), 5)
    found = replay(one, log, 3)
    state = one.init(3)
    for t in found.kept:
        _, state = one.choose(state._replace(chosen=int(t)), log.users[t], arms[t])
        state = one.update(state, log.users[t], int(chosen[t]), log.rewards[t])
    assert found.state.users == state.users
    assert found.state.learned.keys() == state.learned.keys()
    for key, value in state.learned.items():
        assert np.array_equal(found.state.learned[key], value)


GOOD = np.array([3, 3]), np.ones((2, 2, 1)), np.array([0, 1]), *[np.array([0.5, 1.0])] * 2
BAD = {
    r"users' shape must be \(2,\), as arms, got \(1,\)": (0, GOOD[0][:1]),
    "users must be numbers or strings, got dtype": (0, GOOD[0] / 2),
    r"arms' shape must be \(n, K, d\), none of them 0, got \(2, 2\)": (1, GOOD[1][..., 0]),
    r"arms' shape must be \(n, K, d\), none of them 0, got \(2, 0, 1\)": (1, GOOD[1][:, :0]),
    r"arms\[1\] must be finite, got 'NaN or infinity'": (
        1,
        np.array([[[1], [2]], [[1], [np.nan]]]),
    ),
    r"chosen\[1\] must be in 0, ..., 1, got 2": (2, np.array([0, 2])),
    "chosen must be numbers of arms, got dtype": (2, np.array([0.0, 1.0])),
    r"rewards\[0\] must be finite, got inf": (3, np.array([np.inf, 1])),
    r"propensities\[0\] must be in \(0, 1\], got 0.0": (4, np.array([0.0, 1.0])),
    r"propensities\[1\] must be in \(0, 1\], got nan": (4, np.array([0.5, np.nan])),
}


def test_what_is_refused():
    assert logged(*GOOD).users == (3, 3)
    for message, (place, value) in BAD.items():
        given = list(GOOD)
        given[place] = value
        with entry(message), pytest.raises(ValueError, match=message):
            logged(*given)
