"""Classes as bandits: layouts, uniform draws, and right arms that depend on the group."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from engram.bandits.environments.classes import LabeledRows, classes, laid_out
from tests.samples import entry

K, D = 4, 3


def data(seed, sizes=(5, 2, 9, 4)):
    """Rows that say in their first two features which class and which row they are."""
    y = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(seed)
    x = np.column_stack([1 + y, np.arange(len(y)), rng.random(len(y))])
    order = rng.permutation(len(y))
    return LabeledRows(x[order], y[order])


def environment(horizon=4000, seed=0, **options):
    return classes([data(1), data(2)], horizon=horizon, seed=seed, **options)


# --- Layouts -----------------------------------------------------------------------------------


def test_arms_are_shifted_by_one_place():
    assert laid_out(np.array([1.0, 2, 3]), 4).tolist() == [
        [1, 2, 3, 0, 0, 0],
        [0, 1, 2, 3, 0, 0],
        [0, 0, 1, 2, 3, 0],
        [0, 0, 0, 1, 2, 3],
    ]


def test_rows_have_length_one_or_zero():
    there = environment()
    assert (there.users, there.arms, there.dim) == (2 * K, K, D + K - 1)
    assert there.expected_rewards is None  # of images that a user never sees
    arms = there.round(3).arms
    np.testing.assert_allclose(np.linalg.norm(arms, axis=1), 1, rtol=1e-14)
    assert arms.shape == (K, D + K - 1)
    zeros = np.zeros((2, 3), np.uint8)
    zeros.setflags(write=False)
    there = classes([LabeledRows(zeros, np.array([0, 1]))], horizon=1, seed=0)
    assert not there.round(0).arms.any()


# --- The paper's users -------------------------------------------------------------------------


def test_a_user_is_a_class_of_a_data_set_and_its_arm_pays():
    given = [data(1), data(2)]
    there = environment()
    for t in range(200):
        now = there.round(t)
        source, label = divmod(now.user, K)
        assert now.rewards.tolist() == (np.arange(K) == label).tolist()
        assert now.means.tolist() == now.rewards.tolist()
        rows = given[source].x[given[source].y == label]
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        assert np.isclose(unit, now.arms[0, :D], rtol=1e-14, atol=0).all(axis=1).any()


def test_data_set_class_and_image_are_uniform():
    given, there = [data(1), data(2)], environment()
    users, images = Counter(), Counter()
    for t in range(there.horizon):
        now = there.round(t)
        users[now.user] += 1
        if now.user == K + 2:  # the third class of the second data set has nine images
            images[tuple(now.arms[0, :D].round(9))] += 1
    assert chisquare([users[u] for u in range(2 * K)]).pvalue > 0.01
    assert len(images) == np.count_nonzero(given[1].y == 2) == 9
    assert chisquare(list(images.values())).pvalue > 0.01


# --- Groups ------------------------------------------------------------------------------------


def test_groups_share_where_the_right_arm_of_a_class_is():
    there = environment(groups=2)
    right, users = {}, Counter()
    for t in range(there.horizon):
        now = there.round(t)
        source, member = divmod(now.user, K)
        label = label_of(now, source)
        arm = int(now.rewards.argmax())
        assert now.rewards.sum() == 1
        assert right.setdefault((source, member % 2, label), arm) == arm
        users[now.user, label] += 1
    # Every user meets every class as often, and in no group is an arm right for two classes.
    assert len(users) == 2 * K * K
    assert chisquare(list(users.values())).pvalue > 0.01
    for source in range(2):
        for group in range(2):
            arms = [right[source, group, label] for label in range(K)]
            assert sorted(arms) == list(range(K))


def label_of(now, source):
    rows = data(source + 1)
    unit = rows.x / np.linalg.norm(rows.x, axis=1, keepdims=True)
    return int(rows.y[np.abs(unit - now.arms[0, :D]).sum(axis=1).argmin()])


def test_opinions_are_what_each_user_would_have_got():
    there = environment(groups=2)
    seen = {}
    rounds = [there.round(t) for t in range(500)]
    labels = [label_of(now, now.user // K) for now in rounds]
    for now, label in zip(rounds, labels, strict=True):
        seen[now.user, label] = now.means
    for t, label in enumerate(labels):
        found = there.expected_rewards(t)
        assert found.shape == (K, 2 * K)
        for user in range(2 * K):
            assert found[:, user].tolist() == seen[user, label].tolist()


# --- What is refused ----------------------------------------------------------------------------


X, Y = np.ones((4, 2)), np.array([0, 1, 0, 1])
CLASSES = "classes must be 0, 1, ..., each of some row, two at least, got"
BAD = {
    "at least one": ([], {}),
    r"must be \(4, d\)": ([LabeledRows(np.ones(4), Y)], {}),
    r"must be \(3, d\)": ([LabeledRows(X, Y[:3])], {}),
    "must be finite": ([LabeledRows(X * np.nan, Y)], {}),
    rf"{CLASSES} \[0, 2\]": ([LabeledRows(X, 2 * Y)], {}),
    r"got \[0\]": ([LabeledRows(X, 0 * Y)], {}),
    "the same for all": ([LabeledRows(X, Y), LabeledRows(X[:, :1], Y)], {}),
    "horizon must be at least 1, got 0": ([LabeledRows(X, Y)], {"horizon": 0}),
    r"groups must be None, or in \[1, 2\], got 3": ([LabeledRows(X, Y)], {"groups": 3}),
}


def test_what_is_refused():
    for message, (datasets, options) in BAD.items():
        with entry(message), pytest.raises(ValueError, match=message):
            classes(datasets, **{"horizon": 5, "seed": 0, **options})
