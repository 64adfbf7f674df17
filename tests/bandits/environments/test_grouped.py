"""Known groups: means are expectations, gaps are kept, linear is linear, topics part users."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from engram.bandits.environments.grouped import REWARDS, grouped
from engram.bandits.studies.trials import true_groups
from tests.samples import entry


def environment(**options):
    usual = {"users": 12, "groups": 3, "dim": 7, "horizon": 3000, "seed": 0, "arms": 5}
    return grouped(**{**usual, **options})


@pytest.mark.parametrize("reward", REWARDS)
def test_means_are_expectations_of_rewards(reward):
    there = environment(reward=reward, noise=0.3)
    rounds = [there.round(t) for t in range(there.horizon)]
    means, rewards = (np.stack([getattr(now, of) for now in rounds]) for of in ("means", "rewards"))
    assert ((means >= 0) & (means <= 1) & (rewards >= 0) & (rewards <= 1)).all()
    # Arms with low, middling and high means alike, each within four standard errors.
    for arms in np.array_split(np.argsort(means, axis=None), 3):
        off = (rewards - means).ravel()[arms]
        assert abs(off.mean()) < 4 * off.std() / np.sqrt(len(off))


def test_little_noise_is_as_large_as_it_says():
    there = environment(noise=0.01)
    off = np.concatenate([now.rewards - now.means for now in map(there.round, range(600))])
    assert abs(off.std() / 0.01 - 1) < 4 / np.sqrt(2 * len(off))


def test_rewards_that_are_not_linear():
    """From the same draws, z is what the linear rewards say."""
    line, bent = (environment(reward=name) for name in ("linear", "cosine"))
    for t in range(20):
        z = 2 * line.round(t).means - 1
        expected = (1 + np.cos(3 * z)) / 2
        np.testing.assert_allclose(bent.round(t).means, expected, rtol=1e-12, atol=1e-12)


def test_linear_means_are_a_parameter_times_the_arm_of_length_one():
    for topics in [1, 2, 3]:
        with entry(topics):
            there = environment(topics=topics)
            arms, means = {}, {}
            for now in map(there.round, range(400)):
                np.testing.assert_allclose(np.linalg.norm(now.arms, axis=1), 1, rtol=1e-14)
                arms.setdefault(now.user, []).append(now.arms)
                means.setdefault(now.user, []).append(now.means)
            for user in range(there.users):
                x, y = np.concatenate(arms[user]), np.concatenate(means[user])
                theta, _, rank, _ = np.linalg.lstsq(x, y)
                assert rank == there.dim
                np.testing.assert_allclose(x @ theta, y, atol=1e-12)
                # theta = (a of each topic, 1) / sqrt 2
                assert theta @ theta == pytest.approx((topics + 1) / 2)


def test_users_topics_and_directions_are_uniform():
    there = environment(topics=2)
    users, topics, signs = Counter(), Counter(), Counter()
    for now in map(there.round, range(there.horizon)):
        users[now.user] += 1
        for arm in now.arms:
            topic = int(arm[3:6].any())
            assert not arm[:3].any() or not arm[3:6].any()
            topics[topic] += 1
            signs[tuple(arm[3 * topic : 3 * topic + 3] > 0)] += 1
    for counts, outcomes in ((users, 12), (topics, 2), (signs, 8)):
        assert len(counts) == outcomes
        assert chisquare(list(counts.values())).pvalue > 0.01


# --- Groups ------------------------------------------------------------------------------------


def test_with_one_topic_groups_are_always_the_same_and_of_one_size():
    there = environment()
    groups = {true_groups(there.expected_rewards(t), 0).tobytes() for t in range(20)}
    assert len(groups) == 1
    assert np.frombuffer(groups.pop(), bool).reshape(5, 12).sum(axis=1).tolist() == [4] * 5


def test_with_more_users_agree_on_some_arms_and_not_on_others():
    there = environment(topics=2)
    agree = np.stack([true_groups(there.expected_rewards(t), 0) for t in range(50)]).reshape(-1, 12)
    assert (agree.sum(axis=1) == 4).all()
    sometimes = agree.any(axis=0) & ~agree.all(axis=0)
    assert sometimes.any()
    assert len(np.unique(agree, axis=0)) == 2


@given(
    users=st.integers(1, 9),
    groups=st.integers(1, 4),
    topics=st.integers(1, 3),
    reward=st.sampled_from(sorted(REWARDS)),
    seed=st.integers(0, 99),
)
def test_the_served_users_opinion_is_the_round_s_means(users, groups, topics, reward, seed):
    there = environment(
        users=max(users, groups), groups=groups, dim=1 + 2 * topics, topics=topics, seed=seed
    )
    now = there.round(7)
    expected_rewards = there.expected_rewards(7)
    assert expected_rewards.shape == (5, there.users)
    assert expected_rewards[:, now.user].tolist() == now.means.tolist()
    assert all(len(np.unique(row)) <= groups for row in expected_rewards)


def test_different_groups_are_a_gap_apart():
    for topics in [1, 2]:
        with entry(topics):
            there = environment(gap=0.07, topics=topics)
            for t in range(100):
                expected_rewards = there.expected_rewards(t)
                apart = np.abs(expected_rewards[:, :, None] - expected_rewards[:, None, :])
                assert (apart[apart > 0] >= 0.07).all()


# --- What is refused ----------------------------------------------------------------------------


BAD = {
    "horizon must be at least 1, got 0": {"horizon": 0},
    "arms must be at least 1, got 0": {"arms": 0},
    r"groups must be in \[1, 12\], the number of users, got 13": {"groups": 13},
    r"groups must be in \[1, 0\], the number of users, got 3": {"users": 0},
    "topics must be at least 1, got 0": {"topics": 0},
    r"dim must be 1 \+ a multiple of 2, the number of topics, got 8": {"topics": 2, "dim": 8},
    r"dim must be 1 \+ a multiple of 1, the number of topics, got 1": {"dim": 1},
    "reward must be one of linear, cosine, got 'cubic'": {"reward": "cubic"},
    "noise must be at least 0, got -1": {"noise": -1},
    r"gap must be in \[0, 1\), got 1": {"gap": 1},
    r"gap must be less: with these groups \d.\d% of arms keep it, and 1% must, got 0.9": {
        "gap": 0.9
    },
}


def test_what_is_refused():
    for message, settings in BAD.items():
        with entry(message), pytest.raises(ValueError, match=message):
            environment(**settings)
