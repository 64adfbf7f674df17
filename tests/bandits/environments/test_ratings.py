"""Ratings as bandits: a tiny table by hand, the decomposition, and how rounds are drawn."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from engram.bandits.environments.ratings import rated, ratings
from tests.samples import entry

# ann rates all four items, ben three of them (the film "c" twice), cat two, dan one.
USERS = np.array(["ann", "ann", "ann", "ann", "ben", "ben", "ben", "ben", "cat", "cat", "dan"])
ITEMS = np.array(["a", "b", "c", "d", "c", "a", "b", "c", "a", "b", "a"])
STARS = np.array([1.0, 5, 1.5, 2, 1, 4, 0.5, 3, 1, 1, 2])


def table(**options):
    usual = {"top_users": 3, "top_items": 3, "rank": 2, "groups": 2}
    return rated(USERS, ITEMS, STARS, **{**usual, **options})


def test_top_users_and_items_by_count():
    # Users: ann 4, ben 4, cat 2 (dan is out). Items: a 4, b 3, c 3 (d is out).
    found = table()
    assert [own.tolist() for own in found.bad] == [[0, 2], [1], [0, 1]]
    assert [own.tolist() for own in found.other] == [[1], [0, 2], []]  # ben's last word on c is 3
    assert found.users.shape == found.items.shape == (3, 2)
    assert sorted(np.bincount(found.groups)) == [1, 2]


def test_who_can_be_served():
    found = table()
    assert found.served(2).tolist() == [0, 1]
    assert found.served(3).tolist() == [1]
    assert found.served(4).tolist() == []


def test_vectors_span_what_the_singular_vectors_do():
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((30, 20)) < 0.4)
    # As many ratings as there are, and all kept: numbers follow the counts.
    stars = rng.integers(1, 6, len(user)).astype(float)
    found = rated(user, item, stars, top_users=30, top_items=20, rank=4, groups=3)
    matrix = np.zeros((30, 20))
    order_u = np.argsort(-np.bincount(user), kind="stable")
    order_i = np.argsort(-np.bincount(item), kind="stable")
    matrix[np.argsort(order_u)[user], np.argsort(order_i)[item]] = stars
    left, _, right = np.linalg.svd(matrix)
    for vectors, full in ((found.users, left[:, :4]), (found.items, right[:4].T)):
        unit = full / np.linalg.norm(full, axis=1, keepdims=True)
        np.testing.assert_allclose(vectors @ vectors.T, unit @ unit.T, atol=1e-8)


def large(seed=0, **options):
    """60 users who rate 40 items each of 80; about a fifth badly."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(60), 40)
    item = np.concatenate([rng.permutation(80)[:40] for _ in range(60)])
    stars = rng.integers(1, 6, len(user)).astype(float)
    return rated(user, item, stars, rank=3, groups=5, **options)


def index_of(vectors, rows):
    return np.abs(vectors[:, None] - rows).sum(axis=2).argmin(axis=0)


def test_one_bad_item_and_nine_others_of_the_user_served():
    found = large()
    there = ratings(found, horizon=200, seed=0)
    assert (there.users, there.arms, there.dim, there.expected_rewards) == (60, 10, 3, None)
    served = found.served(10)
    for t in range(200):
        now = there.round(t)
        items = index_of(found.items, now.arms)
        name = served[now.user]
        assert len(set(items.tolist())) == 10
        paid = now.rewards == 1
        assert paid.sum() == 1
        assert set(items[paid]) <= set(found.bad[name])
        assert set(items[~paid]) <= set(found.other[name])
        assert now.means.tolist() == now.rewards.tolist()


def test_groups_users_items_and_places_are_uniform():
    found = large()
    there = ratings(found, horizon=4000, seed=1)
    counts = [Counter() for _ in range(4)]
    groups, users, places, items = counts
    of_user = found.groups[found.served(10)]
    largest = np.bincount(of_user).argmax()
    someone = int(np.flatnonzero(of_user == largest)[0])
    for now in map(there.round, range(4000)):
        groups[of_user[now.user]] += 1
        places[int(now.rewards.argmax())] += 1
        if of_user[now.user] == largest:
            users[now.user] += 1
        if now.user == someone:
            items[int(index_of(found.items, now.arms[now.rewards == 1])[0])] += 1
    assert len(users) == np.count_nonzero(of_user == largest)
    assert set(items) == set(found.bad[found.served(10)[someone]])
    assert (len(groups), len(places)) == (5, 10)
    for each in counts:
        assert chisquare(list(each.values())).pvalue > 0.01


def test_users_who_cannot_be_served_are_no_users_of_the_world():
    there = ratings(table(), horizon=50, seed=0, arms=3)
    assert there.users == 1
    assert {there.round(t).user for t in range(50)} == {0}


def test_a_round_is_a_function_of_seed_and_number():
    first, again, other = (ratings(large(), horizon=20, seed=seed) for seed in (5, 5, 6))
    for t in reversed(range(20)):
        for one, two in zip(again.round(t), first.round(t), strict=True):
            assert np.array_equal(one, two)
    assert not np.array_equal(first.round(0).arms, other.round(0).arms)


SAME = "numbers of users, items and stars must be the same, at least 1"
RANK = r"rank must be at least 1, and less than users and items, \(3, 3\), got 10"
BAD = {
    SAME: lambda: rated(USERS[1:], ITEMS, STARS),
    rf"{SAME}, got \(0, 0, 0\)": lambda: rated(USERS[:0], ITEMS[:0], STARS[:0]),
    r"stars must be finite and positive, got \[-1.0\]": lambda: rated(USERS, ITEMS, -1 * STARS),
    r"stars must be finite and positive, got \[nan\]": lambda: rated(USERS, ITEMS, np.nan * STARS),
    "how many are kept must be at least 1, got 0": lambda: table(top_items=0),
    RANK: lambda: table(rank=10),
    r"groups must be in \[1, 3\], the users, got 4": lambda: table(groups=4),
    "arms must be at least 2, got 1": lambda: ratings(table(), horizon=1, seed=0, arms=1),
    "enough for some user: 1 bad and 9 others": lambda: ratings(table(), horizon=1, seed=0),
}


def test_what_is_refused():
    for message, make in BAD.items():
        with entry(message), pytest.raises(ValueError, match=message):
            make()
