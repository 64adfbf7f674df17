"""Runs that are played at once, against the same policy that serves users one by one."""

from collections import Counter

import numpy as np
import pytest

from engram.bandits.environments.grouped import grouped
from engram.bandits.play import play_policy
from engram.bandits.policy import batched, policy_server
from tests.bandits.scripted import noisy
from tests.samples import entry

DIM, HORIZON = 5, 60


def environment(seed, **options):
    usual = {"users": 7, "groups": 2, "dim": DIM, "horizon": HORIZON, "arms": 4}
    return grouped(seed=seed, **{**usual, **options})


def served(policy, there, seed):
    """Arms, rewards and regrets of a ``Policy``, by a plain loop."""
    one = policy_server(policy, DIM)
    state = one.init(seed)
    arms, rewards, regrets, total = [], [], [], 0.0
    for t in range(there.horizon):
        now = there.round(t)
        arm, state = one.choose(state, f"user {now.user}", now.arms)
        state = one.update(state, f"user {now.user}", arm, now.rewards[arm])
        total += now.means.max() - now.means[arm]
        arms.append(arm)
        rewards.append(now.rewards[arm])
        regrets.append(total)
    return arms, rewards, regrets, state


def test_a_run_is_the_policy_that_serves_users_one_by_one():
    policies = [noisy(DIM, 0.1), noisy(DIM, 1.0), noisy(DIM, 0.1)]
    environments, seeds = [environment(1), environment(2), environment(2)], [7, 7, 8]
    played = play_policy(batched(policies), environments, seeds)
    assert played.regrets.shape == played.arms.shape == played.rewards.shape == (3, HORIZON)
    for run, there in enumerate(environments):
        arms, rewards, regrets, _ = served(policies[run], there, seeds[run])
        assert played.arms[run].tolist() == arms
        assert played.rewards[run].tolist() == rewards
        np.testing.assert_allclose(played.regrets[run], regrets, rtol=1e-12)
    assert len({arms.tobytes() for arms in played.arms}) == 3


def test_a_world_that_runs_share_is_made_once_a_round():
    asked = Counter()
    there = environment(3)

    def counted(t):
        asked[t] += 1
        return there.round(t)

    shared = there._replace(round=counted)
    together = play_policy(batched([noisy(DIM)] * 3), [shared] * 3, [0, 1, 0])
    assert asked == dict.fromkeys(range(HORIZON), 1)
    apart = play_policy(
        batched([noisy(DIM)] * 3), [environment(3), environment(3), environment(3)], [0, 1, 0]
    )
    for one, two in zip(together, apart, strict=True):
        assert np.array_equal(one, two)
    assert np.array_equal(together.arms[0], together.arms[2])


def test_who_watches_sees_the_state_before_the_choice_and_who_has_come():
    there, moments = environment(4), []
    play_policy(batched([noisy(DIM)]), [there], [5], watch=moments.append)
    _, _, _, last = served(noisy(DIM), there, 5)
    assert [moment.t for moment in moments] == list(range(HORIZON))
    came = []
    for t, moment in enumerate(moments):
        user = there.round(t).user
        came = came if user in came else [*came, user]
        assert moment.came == (tuple(came),)
        assert moment.rounds[0].user == user
        assert moment.state[0]["asked"] == t
        assert set(moment.state[0]) - {"start", "asked"} <= set(range(len(came)))
    assert [f"user {user}" for user in came] == list(last.users)


BAD = {
    r"environments must be as many as seeds, 2, got 1": ([environment(0)], [0, 1]),
    "environments must be as many as seeds, 0, got 0": ([], []),
    r"must be the same in all environments, got \[\(60, 3, 5\), \(60, 4, 5\)\]": (
        [environment(0), environment(0, arms=3)],
        [0, 1],
    ),
}


def test_what_is_refused():
    for message, (environments, seeds) in BAD.items():
        with entry(message), pytest.raises(ValueError, match=message):
            play_policy(batched([noisy(DIM)] * 2), environments, seeds)
