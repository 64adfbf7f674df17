"""CLUB: clusters are the components of a graph that loses the edges between differing users.

Gentile, Li, Zappella. Online Clustering of Bandits. ICML 2014, Figure 1.
"""

from typing import NamedTuple

import numpy as np

from engram.bandits import graph
from engram.bandits.graph import Graph
from engram.bandits.policy import Policy, best
from engram.bandits.ridge import UserStats, check_ridge, confidence_radius, empty, optimistic
from engram.core.arrays import Array


class Club(NamedTuple):
    """The state."""

    stats: UserStats  # statistics of users and clusters
    graph: Graph  # graph of the users seen so far; clusters are its components


def club(dim: int, *, alpha: float, lam: float, alpha2: float = 1.0) -> Policy[Club]:
    """Plays by the estimate of the user's cluster, as LinUCB does by a user's own.

    The edge between the user served, i, and another user l is deleted when their estimates differ:

        ||theta_i - theta_l|| > alpha2 (F(T_i) + F(T_l)),    F(T) = sqrt((1 + ln(1 + T)) / (1 + T))

    with T rows of each. A cluster's A is lambda I + sum (A_i - lambda I) over its users. The paper
    starts from a complete or a sparse random graph of all users. Here users may arrive at any time,
    and a new user gets edges to all who are there. (Until enough is known of a new user, it
    connects clusters, as all users do at the start in the paper.)

    ``alpha2`` >= 0 is the scale of the radius by which estimates may differ; for the rest see
    ``linucb``.
    """
    check_ridge(dim, lam, alpha=alpha, alpha2=alpha2)

    def choose(state: Club, user: int, arms: Array, rng: np.random.Generator) -> tuple[int, Club]:
        state = _with(state, user)
        ridge, stats = state.stats.of_cluster(graph.component(state.graph, user), lam)
        return best(optimistic(ridge, arms, alpha), rng), state._replace(stats=stats)

    def update(state: Club, user: int, x: Array, reward: float, _: np.random.Generator) -> Club:
        state = _with(state, user)
        stats = state.stats.with_row(user, x, reward)
        apart = np.linalg.norm(stats.thetas - stats.thetas[user], axis=1)
        radius = confidence_radius(stats.rows)
        left = graph.cut(state.graph, user, apart > alpha2 * (radius + radius[user]))
        return Club(stats.prune(user, [graph.component(left, user)]), left)

    return Policy(lambda rng: Club(empty(dim, lam), graph.EMPTY), choose, update)


def _with(state: Club, user: int) -> Club:
    if user in state.stats.users:
        return state
    everyone = frozenset(state.stats.users)
    stats = state.stats.with_user(user, [everyone])  # if there is more than one group, they merge
    return Club(stats, graph.joined(state.graph, user, np.array(sorted(everyone), dtype=np.intp)))
