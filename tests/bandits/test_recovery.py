"""Relative groups: Definition 3.1, and how inferred ones agree."""

import numpy as np

from engram.bandits.environments.grouped import grouped
from engram.bandits.play import play_policy
from engram.bandits.policy import batched
from engram.bandits.studies.trials import group_recovery, true_groups
from tests.bandits.scripted import noisy

EXPECTED = np.array([[0.2, 0.5, 0.2, 0.55], [0.1, 0.1, 0.1, 0.1]])


def test_true_groups_are_those_who_expect_the_same():
    assert true_groups(EXPECTED, 1).tolist() == [[False, True, False, False], [True] * 4]
    assert true_groups(EXPECTED, 0).tolist() == [[True, False, True, False], [True] * 4]


def test_recovery_by_hand():
    true = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], dtype=bool)
    found = np.array([[1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]], dtype=bool)
    exact, precision, recall = group_recovery(found, true)
    assert exact.tolist() == [True, False, False, False]
    assert precision.tolist() == [1, 1 / 2, 1, 1]
    assert recall.tolist() == [1, 1 / 3, 0, 3 / 4]


def test_more_axes_are_more_groups():
    rng = np.random.default_rng(0)
    found, true = rng.random((2, 5, 4, 6)) < 0.5
    true[..., 0] = True
    whole = group_recovery(found, true)
    for t in range(5):
        for all_of, one in zip(whole, group_recovery(found[t], true[t]), strict=True):
            assert all_of.shape == (5, 4)
            assert all_of[t].tolist() == one.tolist()


def test_who_infers_the_truth_recovers_it_in_all_rounds_of_a_run():
    there = grouped(users=9, groups=3, dim=7, topics=2, horizon=40, seed=0, arms=4)
    exact, sizes = [], []

    def watch(moment):
        came, user = moment.came[0], moment.rounds[0].user
        true = true_groups(there.expected_rewards(moment.t)[:, came], came.index(user))
        agree = [
            there.expected_rewards(moment.t)[:, other] == moment.rounds[0].means for other in came
        ]
        exact.append(group_recovery(np.stack(agree, axis=1), true).exact)
        sizes.append(true.sum(axis=1))

    play_policy(batched([noisy(7)]), [there], [0], watch)
    assert np.all(exact)
    assert sizes[0].tolist() == [1] * 4  # nobody else has come
    assert sizes[-1].tolist() == [3] * 4
