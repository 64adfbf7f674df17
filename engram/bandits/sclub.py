"""SCLUB: clusters of users that split and merge.

Li, Chen, Li, Leung. Improved Algorithm on Online Clustering of Bandits. IJCAI 2019, Algorithms 1
to 3.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from engram.bandits.policy import Policy, best
from engram.bandits.ridge import (
    Cluster,
    Ridge,
    UserStats,
    check_ridge,
    confidence_radius,
    empty,
    optimistic,
)
from engram.core.arrays import Array


class Sclub(NamedTuple):
    """The state."""

    stats: UserStats  # statistics of users and clusters
    # The users of each cluster, by the cluster's number. New users start in cluster 0, which exists
    # even if it is empty.
    clusters: Mapping[int, Cluster]
    # Each cluster's estimate at the start of the phase, or when the cluster was made.
    pivots: Mapping[int, Ridge]
    checked: Cluster  # the users served in this phase
    rounds: int  # tau, the number of rewards so far


def sclub(
    dim: int, *, alpha: float, lam: float, alpha2: float = 1.0, alpha_p: float = 2**0.5
) -> Policy[Sclub]:
    """Plays by the estimate of the user's cluster, as LinUCB does by a user's own.

    Phase s = 1, 2, ... has 2^s rounds. The user served, i, leaves its cluster j of several users if

        ||theta_i - theta~_j|| > alpha2 (F(T_i) + F(T~_j)), or
        |p_i - p_l| > 2 alpha_p F(tau) for another of its users, l,

    and then forms a cluster of its own. Here F(T) = sqrt((1 + ln(1 + T)) / (1 + T)), T_i is the
    number of i's rows, p_i = T_i / tau, and ~ marks j's estimate at the start of the phase. Two
    clusters all of whose users have been served in this phase merge, under the lower number, if

        ||theta_j - theta_k|| < (alpha2 / 2) (F(T_j) + F(T_k)) and
        |p_j - p_k| < alpha_p F(tau),    p_j = T_j / (|j| tau).

    A cluster's A is lambda I + sum (A_i - lambda I). Two points that the paper leaves open:
    the ~ of a cluster made during a phase is its estimate at that time, and only pairs that this
    round has changed are compared, not all pairs. (The authors' code compares p_i with the
    cluster's p, compares theta_i with the cluster's latest estimate, and forgets each round who was
    served.)

    ``alpha2`` (alpha_theta) and ``alpha_p``, at least 0, are scales of the radii by which estimates
    and shares of rounds may differ; for the rest see ``linucb``.
    """
    check_ridge(dim, lam, alpha=alpha, alpha2=alpha2, alpha_p=alpha_p)

    def choose(state: Sclub, user: int, arms: Array, rng: np.random.Generator) -> tuple[int, Sclub]:
        state = _with(state, user)
        ridge, stats = state.stats.of_cluster(state.clusters[_cluster(state, user)], lam)
        return best(optimistic(ridge, arms, alpha), rng), state._replace(stats=stats)

    def update(state: Sclub, user: int, x: Array, reward: float, _: np.random.Generator) -> Sclub:
        state = _in_phase(_with(state, user), lam)
        stats = state.stats.with_row(user, x, reward)
        state = state._replace(stats=stats, checked=state.checked | {user}, rounds=state.rounds + 1)
        home = _cluster(state, user)
        if _differs(state, user, home, alpha2, alpha_p):
            state = _split(state, user, home)
        for number in dict.fromkeys((home, _cluster(state, user))):
            state = _merged(state, number, lam, alpha2, alpha_p)
        groups = [state.clusters[_cluster(state, user)]]
        return state._replace(stats=state.stats.prune(user, groups))

    none = empty(dim, lam)
    start = Sclub(none, {0: frozenset()}, {0: none.unseen.ridge}, frozenset(), 0)
    return Policy(lambda rng: start, choose, update)


def _with(state: Sclub, user: int) -> Sclub:
    if user in state.stats.users:
        return state
    stats = state.stats.with_user(user, [state.clusters[0]])
    return state._replace(stats=stats, clusters={**state.clusters, 0: state.clusters[0] | {user}})


def _cluster(state: Sclub, user: int) -> int:
    return next(number for number, them in state.clusters.items() if user in them)


def _in_phase(state: Sclub, lam: float) -> Sclub:
    """Begins a phase if the next round is its first: 2^s - 2 rounds are before phase s."""
    before = state.rounds + 2
    if before & (before - 1):  # no power of 2
        return state
    stats, pivots = state.stats, {}
    for number, them in state.clusters.items():
        pivots[number], stats = stats.of_cluster(them, lam) if them else (stats.unseen.ridge, stats)
    return state._replace(stats=stats, pivots=pivots, checked=frozenset())


def _differs(state: Sclub, user: int, home: int, alpha2: float, alpha_p: float) -> bool:
    others = sorted(state.clusters[home] - {user})
    if not others:
        return False
    rows, pivot = state.stats.rows, state.pivots[home]
    apart = float(np.linalg.norm(state.stats.thetas[user] - pivot.theta))
    shares = float(np.abs(rows[others] - rows[user]).max()) / state.rounds
    f_user, f_pivot, f_round = confidence_radius(np.array([rows[user], pivot.rows, state.rounds]))
    return bool(apart > alpha2 * (f_user + f_pivot) or shares > 2 * alpha_p * f_round)


def _split(state: Sclub, user: int, home: int) -> Sclub:
    new = max(state.clusters) + 1
    left = state.clusters[home] - {user}
    return state._replace(
        clusters={**state.clusters, home: left, new: frozenset({user})},
        pivots={**state.pivots, new: state.stats.users[user].ridge},
    )


def _merged(state: Sclub, number: int, lam: float, alpha2: float, alpha_p: float) -> Sclub:
    """Merges a cluster with others as long as there is one to merge it with (Merge)."""
    while True:
        ready = [k for k, them in sorted(state.clusters.items()) if them and them <= state.checked]
        if number not in ready:
            return state
        ridges, stats = [], state.stats
        for k in ready:
            ridge, stats = stats.of_cluster(state.clusters[k], lam)
            ridges.append(ridge)
        state, me = state._replace(stats=stats), ready.index(number)
        thetas, rows = np.array([r.theta for r in ridges]), np.array([r.rows for r in ridges])
        radius = alpha2 / 2 * confidence_radius(rows)
        shares = rows / [len(state.clusters[k]) * state.rounds for k in ready]
        near = np.linalg.norm(thetas - thetas[me], axis=1) < radius + radius[me]
        near &= np.abs(shares - shares[me]) < alpha_p * confidence_radius(np.array(state.rounds))
        near[me] = False
        if not near.any():
            return state
        low, high = sorted((number, ready[int(near.argmax())]))
        state, number = _united(state, low, high, lam), low


def _united(state: Sclub, low: int, high: int, lam: float) -> Sclub:
    them = state.clusters[low] | state.clusters[high]
    pivot, stats = state.stats.of_cluster(them, lam)
    clusters = {**state.clusters, low: them}
    pivots = {**state.pivots, low: pivot}
    del clusters[high], pivots[high]
    return state._replace(stats=stats, clusters=clusters, pivots=pivots)
