"""The adapter plays MOLARB as it is: the same choices where users come by turns."""

import numpy as np
import pytest

from engram.bandits.molar import molar
from engram.tables.bandits.policies import close_tasks, molar_bandit
from tests.bandits.support import Groups


@pytest.mark.parametrize("history", ["batch", "all"])
def test_users_by_turns_are_tasks_that_play_in_batches(history):
    users, first, rounds = 3, 4, 32  # of each user: batches end after 4, 8, 16, 32
    environment = Groups(groups=2, users=users, dim=4, seed=1)
    theirs = molar_bandit(c=0.5, history=history)
    tasks = [theirs.init(1, 4)] * users
    policy = molar(4, c=0.5, history=history, first=first * users)
    ours, rng = policy.init(np.random.default_rng(0)), np.random.default_rng(5)
    learned = set()
    for t in range(rounds):
        x = rng.normal(size=(users, 6, 4))
        rewards = np.einsum("mkd,md->mk", x, environment.thetas) + 0.1 * rng.normal(size=(users, 6))
        mine = []
        for user in range(users):
            arm, ours = policy.choose(ours, user, x[user], np.random.default_rng((t, user)))
            ours = policy.update(ours, user, x[user, arm], float(rewards[user, arm]), rng)
            mine.append(arm)
        chosen = []
        for user, task in enumerate(tasks):
            (arm,) = theirs.choose(task, x[user][None], np.random.default_rng((t, user)))
            reward = rewards[user, [arm]]
            tasks[user] = theirs.observe(task, x[user][None], np.array([arm]), reward)
            chosen.append(arm)
        assert mine == chosen
        if t + 1 in (4, 8, 16, 32):
            tasks = list(close_tasks(theirs, tasks))
        for user, task in enumerate(tasks):
            assert np.array_equal(ours.users[user].coefs, task.coefs)
        learned.add(tasks[0].coefs.tobytes())
    assert len(learned) >= 4  # coefficients of 0, and three estimates
