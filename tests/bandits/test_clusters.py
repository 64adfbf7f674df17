"""CLUB, SCLUB, COFIBA and LOCB against plain loops over their papers' lines, and known clusters."""

from operator import attrgetter

import numpy as np
import pytest

from engram.bandits import graph
from engram.bandits.club import club
from engram.bandits.cofiba import cofiba
from engram.bandits.locb import locb
from engram.bandits.policy import best
from engram.bandits.sclub import sclub
from tests.bandits.support import Groups, bounds, components, play, spread, theta, width
from tests.samples import entry

DIM, LAM, ALPHA = 5, 0.3, 0.2


def pooled(rows, users):
    return [row for user in sorted(users) for row in rows[user]]


class PlainClub:
    """Edges are pairs; everything is computed anew from rows each time."""

    def __init__(self, alpha2):
        self.alpha2, self.rows, self.edges = alpha2, {}, set()

    def clusters(self):
        return components(self.rows, self.edges)

    def come(self, user):
        if user not in self.rows:
            self.edges |= {frozenset((user, other)) for other in self.rows}
            self.rows[user] = []

    def scores(self, user, x):
        self.come(user)
        mine = next(them for them in self.clusters() if user in them)
        return bounds(pooled(self.rows, mine), LAM, ALPHA, x)

    def learn(self, user, x, reward):
        self.come(user)
        self.rows[user].append((x, reward))
        for edge in [edge for edge in self.edges if user in edge]:
            (other,) = edge - {user}
            one, two = self.rows[user], self.rows[other]
            apart = np.linalg.norm(theta(one, LAM, DIM) - theta(two, LAM, DIM))
            if apart > self.alpha2 * (spread(len(one)) + spread(len(two))):
                self.edges.remove(edge)


class PlainSclub:
    def __init__(self, alpha2, alpha_p):
        self.alpha2, self.alpha_p, self.rows = alpha2, alpha_p, {}
        self.parts, self.pivots = {0: set()}, {0: (np.zeros(DIM), 0)}
        self.tau, self.phase, self.checked = 0, 0, set()

    def clusters(self):
        return {frozenset(part) for part in self.parts.values() if part}

    def come(self, user):
        if user not in self.rows:
            self.rows[user] = []
            self.parts[0].add(user)

    def home(self, user):
        return next(j for j, part in self.parts.items() if user in part)

    def estimate(self, j):
        rows = pooled(self.rows, self.parts[j])
        return theta(rows, LAM, DIM), len(rows)

    def scores(self, user, x):
        self.come(user)
        return bounds(pooled(self.rows, self.parts[self.home(user)]), LAM, ALPHA, x)

    def learn(self, user, x, reward):
        self.come(user)
        if self.tau == 2 ** (self.phase + 1) - 2:  # so many rounds have the phases before
            self.phase, self.checked = self.phase + 1, set()
            self.pivots = {j: self.estimate(j) for j in self.parts}
        self.tau += 1
        self.rows[user].append((x, reward))
        self.checked.add(user)
        j = self.home(user)
        changed = {j}
        mine, n = theta(self.rows[user], LAM, DIM), len(self.rows[user])
        pivot, m = self.pivots[j]
        rare = any(
            abs(n - len(self.rows[other])) / self.tau > 2 * self.alpha_p * spread(self.tau)
            for other in self.parts[j]
        )
        far = np.linalg.norm(mine - pivot) > self.alpha2 * (spread(n) + spread(m))
        if len(self.parts[j]) > 1 and (far or rare):
            new = max(self.parts) + 1
            self.parts[j].remove(user)
            self.parts[new], self.pivots[new] = {user}, (mine, n)
            changed.add(new)
        for number in sorted(changed):
            self.merge(number)

    def merge(self, j):
        while j in self.parts and self.parts[j] and self.parts[j] <= self.checked:
            for k in sorted(self.parts):
                if k != j and self.parts[k] and self.parts[k] <= self.checked and self.one(j, k):
                    j, gone = min(j, k), max(j, k)
                    self.parts[j] |= self.parts.pop(gone)
                    del self.pivots[gone]
                    self.pivots[j] = self.estimate(j)
                    break
            else:
                return

    def one(self, j, k):
        (t1, n1), (t2, n2) = self.estimate(j), self.estimate(k)
        p1, p2 = (n / (len(self.parts[i]) * self.tau) for n, i in ((n1, j), (n2, k)))
        near = np.linalg.norm(t1 - t2) < self.alpha2 / 2 * (spread(n1) + spread(n2))
        return near and abs(p1 - p2) < self.alpha_p * spread(self.tau)


class PlainCofiba:
    def __init__(self, alpha2, most):
        self.alpha2, self.most, self.rows, self.t = alpha2, most, {}, 0
        self.items, self.similar = [], set()  # and pairs of items
        self.graphs = {frozenset(): set()}  # pairs of users, by the item cluster

    def cluster(self, item):
        if item is None:
            return frozenset()
        parts = components(range(len(self.items)), self.similar)
        return next(part for part in parts if item in part)

    def nearest(self, x):
        gaps = [np.linalg.norm(x - item) for item in self.items]
        return int(np.argmin(gaps)) if gaps else None

    def come(self, user):
        if user not in self.rows:
            for edges in self.graphs.values():
                edges |= {frozenset((user, other)) for other in self.rows}
            self.rows[user] = []

    def group(self, user, items):
        return next(g for g in components(self.rows, self.graphs[items]) if user in g)

    def scores(self, user, x):
        self.come(user)
        found = []
        for row in x:
            mine = self.group(user, self.cluster(self.nearest(row)))
            found.append(bounds(pooled(self.rows, mine), LAM, ALPHA, row[None])[0])
        return np.array(found)

    def differ(self, user, other, x):
        one, two = self.rows[user], self.rows[other]
        gap = abs((theta(one, LAM, DIM) - theta(two, LAM, DIM)) @ x)
        scale = self.alpha2 * np.sqrt(np.log(self.t + 1))
        return gap > scale * width(one, LAM, x) + scale * width(two, LAM, x)

    def learn(self, user, x, reward):
        self.come(user)
        item = self.nearest(x)
        if len(self.items) < self.most and (
            item is None or not np.array_equal(self.items[item], x)
        ):
            before = self.cluster(item)
            item = len(self.items)
            self.items.append(x)
            self.similar |= {frozenset((item, other)) for other in before}
            self.graphs[before | {item}] = self.graphs.pop(before)
        self.t += 1
        self.rows[user].append((x, reward))
        before = self.cluster(item)
        edges = self.graphs.pop(before)
        for edge in [edge for edge in edges if user in edge]:
            (other,) = edge - {user}
            if self.differ(user, other, x):
                edges.remove(edge)
        near = [
            {other for other in self.rows if not self.differ(user, other, features)}
            for features in self.items
        ]
        for edge in [edge for edge in self.similar if item in edge]:
            (other,) = edge - {item}
            if near[other] != near[item]:
                self.similar.remove(edge)
        everyone = {frozenset((a, b)) for a in self.rows for b in self.rows if a < b}
        for part in components(range(len(self.items)), self.similar):
            if part <= before:
                self.graphs[part] = edges if item in part else set(everyone)


class PlainLocb:
    def __init__(self, alpha2, seeds, gamma):
        self.alpha2, self.seeds, self.gamma = alpha2, seeds, gamma
        self.rows, self.parts, self.final = {}, {}, set()

    def come(self, user):
        if user not in self.rows:
            self.rows[user] = []
            for seed in self.parts.keys() - self.final:
                self.parts[seed].add(user)
            if len(self.parts) < self.seeds:
                self.parts[user] = set(self.rows)

    def scores(self, user, x):
        self.come(user)
        mine = [part for part in self.parts.values() if user in part] or [{user}]
        return np.max([bounds(pooled(self.rows, part), LAM, ALPHA, x) for part in mine], axis=0)

    def radius(self, user):
        return self.alpha2 * spread(len(self.rows[user]))

    def learn(self, user, x, reward):
        self.come(user)
        self.rows[user].append((x, reward))
        for seed in self.parts.keys() - self.final:
            one, two = (theta(self.rows[who], LAM, DIM) for who in (user, seed))
            if np.linalg.norm(one - two) > self.radius(user) + self.radius(seed):
                self.parts[seed].discard(user)
            else:
                self.parts[seed].add(user)
        self.final |= {seed for seed in self.parts if self.radius(seed) <= self.gamma / 4}


def clusters_of(users):
    return {frozenset(graph.members(users, u).tolist()) for u in np.flatnonzero(users.labels >= 0)}


def item_clusters(state):
    return {
        frozenset(graph.members(state.similar, label).tolist()): clusters_of(users)
        for label, users in state.graphs.items()
    }


def plain_item_clusters(plain):
    return {items: components(plain.rows, edges) for items, edges in plain.graphs.items()}


def occupied(state):
    return {them for them in state.clusters.values() if them}


BY_NUMBER = attrgetter("clusters"), attrgetter("parts")
CASES = {
    "club": ({"alpha2": 0.35}, lambda state: clusters_of(state.graph), PlainClub.clusters),
    "sclub": ({"alpha2": 0.45, "alpha_p": 0.5}, occupied, PlainSclub.clusters),
    "sclub, by frequency": ({"alpha2": 0.6, "alpha_p": 0.05}, *BY_NUMBER),
    "cofiba": ({"alpha2": 0.15, "items": 4}, item_clusters, plain_item_clusters),
    "locb": ({"alpha2": 0.35, "seeds": 3, "gamma": 0.55}, *BY_NUMBER),
}
PLAIN = {club: PlainClub, sclub: PlainSclub, cofiba: PlainCofiba, locb: PlainLocb}


@pytest.mark.parametrize("name", CASES)
def test_choices_and_clusters_are_those_of_a_plain_loop(name):
    settings, ours, theirs = CASES[name]
    make = RECOVERED[name.partition(",")[0]][0]
    policy, plain = make(DIM, alpha=ALPHA, lam=LAM, **settings), PLAIN[make](*settings.values())
    environment = Groups(groups=2, users=6, dim=DIM, noise=0.15, seed=5)
    state, before, changes = policy.init(np.random.default_rng(0)), None, 0
    for t in range(220):
        user, x, _, rewards = environment.round(t)
        rngs = [np.random.default_rng((5, t, 1)) for _ in range(2)]
        arm, state = policy.choose(state, user, x, rngs[0])
        assert arm == best(plain.scores(user, x), rngs[1]), t
        state = policy.update(state, user, x[arm], float(rewards[arm]), rngs[0])
        plain.learn(user, x[arm], float(rewards[arm]))
        assert ours(state) == theirs(plain), t
        before, changes = ours(state), changes + (before != ours(state))
    assert changes > 6  # so many newcomers, and clusters that came and went


# --- Known clusters --------------------------------------------------------------------------

RECOVERED = {
    "club": (club, {"alpha2": 0.5}, lambda state: clusters_of(state.graph)),
    "sclub": (sclub, {"alpha2": 1.0}, occupied),
    "locb": (locb, {"alpha2": 0.5, "seeds": 12}, lambda state: set(state.clusters.values())),
    "cofiba": (cofiba, {"alpha2": 0.2, "items": 1}, lambda state: clusters_of(state.graphs[0])),
}


@pytest.mark.parametrize("name", RECOVERED)
def test_clusters_are_found_exactly(name):
    for groups in [1, 2, 3]:
        with entry(groups):
            make, settings, found = RECOVERED[name]
            environment = Groups(groups, users=12, dim=6, noise=0.05)
            policy = make(6, alpha=0.1, lam=0.1, **settings)
            _, _, state = play(policy, environment, 1200)
            assert found(state) == environment.true_groups(range(12))
            assert set(state.stats.clusters) <= found(state)  # those of the past are forgotten
