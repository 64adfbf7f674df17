"""Relative groups: Definition 3.1, and how inferred ones agree."""

import numpy as np

from engram.bandits.studies.trials import group_recovery, true_groups

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
