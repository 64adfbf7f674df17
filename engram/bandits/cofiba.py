"""COFIBA: clusters of items, and for each a clustering of users.

Li, Karatzoglou, Gentile. Collaborative Filtering Bandits. SIGIR 2016, Figures 1 to 3.
"""

from collections.abc import Mapping
from math import log, sqrt
from typing import NamedTuple

import numpy as np
from scipy.linalg.blas import dsymv

from engram.bandits import graph
from engram.bandits.graph import Graph
from engram.bandits.policy import Policy, best
from engram.bandits.ridge import UserStats, check_ridge, empty, optimistic, widths
from engram.core.arrays import Array, Ints
from engram.core.checks import require


class Cofiba(NamedTuple):
    """The state."""

    stats: UserStats  # statistics of users and clusters
    items: Array  # features of the items, shape (m, d)
    similar: Graph  # the graph of items; item clusters are its components
    # The graph of users for each item cluster, by the cluster's label in ``similar``. Before there
    # is an item there is one graph, for cluster 0.
    graphs: Mapping[int, Graph]
    means: Array  # theta_i' x of each user i and item x, shape (n, m)
    widths: Array  # sqrt(x' A_i^-1 x) of each user and item, shape (n, m)
    rounds: int  # t, the number of rewards so far


def cofiba(
    dim: int, *, alpha: float, lam: float, alpha2: float = 1.0, items: int = 10
) -> Policy[Cofiba]:
    """Plays by the estimate of the user's cluster, in the user graph of the arm's item cluster.

    When user i has played arm x, which counts as an item of cluster j, the edge from i to user l is
    deleted in j's user graph if

        |theta_i' x - theta_l' x| > CB_i(x) + CB_l(x),
        CB_i(x) = alpha2 sqrt(x' A_i^-1 x log(t + 1)),

    The edge from that item to item z is deleted if i's neighbors by z differ from those by the
    item: if the inequality holds for one of the two and not for the other, for some user l. When an
    item cluster falls apart, the part with the item played keeps the user graph, and each other
    part starts anew from the complete graph.

    The paper has a fixed set of items. Here arms are feature vectors that may never recur: the
    first ``items`` distinct arms played become the items, and any other arm counts as the item
    nearest to it. A new item is linked to the cluster of its nearest item, and a new user to
    everyone in every graph. A round costs O(d^2 m) for one user at all items, and O(n d^2) to
    compare users at an arm.

    ``alpha2`` >= 0 is the scale of the confidence radius CB, ``items`` the number of items m >= 1
    (each new item cluster has to tell users apart again); for the rest see ``linucb``.
    """
    check_ridge(dim, lam, alpha=alpha, alpha2=alpha2)
    require(items >= 1, "items", items, "at least 1")

    none, nobody = np.zeros((0, 0)), graph.EMPTY
    start = Cofiba(empty(dim, lam), np.zeros((0, dim)), nobody, {0: nobody}, none, none, 0)

    def choose(
        state: Cofiba, user: int, arms: Array, rng: np.random.Generator
    ) -> tuple[int, Cofiba]:
        state = _with_user(state, user)
        stats, bounds = state.stats, np.empty(len(arms))
        clusters = _item_clusters(state, arms)
        for label in np.unique(clusters):
            ridge, stats = stats.of_cluster(graph.component(state.graphs[int(label)], user), lam)
            alike = clusters == label
            bounds[alike] = optimistic(ridge, arms[alike], alpha)
        return best(bounds, rng), state._replace(stats=stats)

    def update(state: Cofiba, user: int, x: Array, reward: float, _: np.random.Generator) -> Cofiba:
        state, item = _with_item(_with_user(state, user), x, items)
        state = _learned(state, user, x, reward)
        state = _clustered(state, user, item, x, alpha2 * sqrt(log(state.rounds + 1)))
        groups = {graph.component(users, user) for users in state.graphs.values()}
        return state._replace(stats=state.stats.prune(user, groups))

    return Policy(lambda rng: start, choose, update)


def _distances(state: Cofiba, x: Array) -> Array:
    return np.asarray(np.linalg.norm(state.items - x, axis=1))


def _item_clusters(state: Cofiba, arms: Array) -> Ints:
    if not len(state.items):
        return np.zeros(len(arms), dtype=np.intp)
    return state.similar.labels[[int(_distances(state, x).argmin()) for x in arms]]


def _with_user(state: Cofiba, user: int) -> Cofiba:
    if user in state.stats.users:
        return state
    everyone = frozenset(state.stats.users)
    nodes = np.array(sorted(everyone), dtype=np.intp)
    stats = state.stats.with_user(user, [everyone])
    more = ((0, len(stats.rows) - len(state.means)), (0, 0))
    means, widths_ = np.pad(state.means, more), np.pad(state.widths, more)
    widths_[user] = widths(stats.unseen.ridge, state.items)
    return state._replace(
        stats=stats,
        graphs={j: graph.joined(users, user, nodes) for j, users in state.graphs.items()},
        means=means,
        widths=widths_,
    )


def _with_item(state: Cofiba, x: Array, most: int) -> tuple[Cofiba, int]:
    """Returns the number of the item that an arm is taken for, and the state that has it."""
    distances, new = _distances(state, x), len(state.items)
    if new == most or (new and distances.min() == 0):
        return state, int(distances.argmin())
    nearest = graph.members(state.similar, int(distances.argmin())) if new else np.arange(0)
    column = np.zeros(len(state.means))
    for user, member in state.stats.users.items():
        column[user] = widths(member.ridge, x[None])[0]
    added = state._replace(
        items=np.vstack([state.items, x]),
        similar=graph.joined(state.similar, new, nearest),
        means=np.column_stack([state.means, state.stats.thetas @ x]),
        widths=np.column_stack([state.widths, column]),
    )
    return added, new


def _learned(state: Cofiba, user: int, x: Array, reward: float) -> Cofiba:
    stats = state.stats.with_row(user, x, reward)
    means, widths_, own = state.means.copy(), state.widths.copy(), stats.users[user].ridge
    means[user], widths_[user] = state.items @ own.theta, widths(own, state.items)
    return state._replace(stats=stats, means=means, widths=widths_, rounds=state.rounds + 1)


def _clustered(state: Cofiba, user: int, item: int, x: Array, scale: float) -> Cofiba:
    before = int(state.similar.labels[item])
    users = _cut(state.stats, state.graphs[before], user, x, scale)
    seen, radius = users.labels >= 0, scale * state.widths
    far = np.abs(state.means - state.means[user]) > radius + radius[user]
    similar = graph.cut(state.similar, item, (far != far[:, [item]])[seen].any(axis=0))
    graphs = {label: own for label, own in state.graphs.items() if label != before}
    for label in np.unique(similar.labels[state.similar.labels == before]).tolist():
        graphs[label] = users if label == similar.labels[item] else graph.complete(seen)
    return state._replace(similar=similar, graphs=graphs)


def _cut(stats: UserStats, users: Graph, user: int, x: Array, scale: float) -> Graph:
    near = np.flatnonzero(users.edges[user])
    means = stats.thetas[near] @ x
    inverses = [stats.users[other].ridge.inverse for other in near.tolist()]
    radius = scale * np.sqrt([dsymv(1.0, inverse, x) @ x for inverse in inverses])
    me = int(np.searchsorted(near, user))
    off = np.zeros(len(users.labels), dtype=np.bool_)
    off[near] = np.abs(means - means[me]) > radius + radius[me]
    return graph.cut(users, user, off)
