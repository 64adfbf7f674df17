"""Multitask bandit policies: MOLARB (Algorithms 2 and 5), and the baselines of Section 4.1.

All play greedily in doubling batches, and differ in the estimator of coefficients at the end of a
batch. Default constants are those of J.1, which the authors tuned for noise of deviation 0.5.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from engram.core.arrays import Array
from engram.core.checks import require
from engram.tables.bandits.environments import TaskEnvironment, regret
from engram.tables.bandits.site import History, TaskBandit, TaskEstimator, TaskState
from engram.tables.bandits.trace_norm import LeastSquaresMoments, fit_trace_norm
from engram.tables.lasso import lasso, lasso_debiasing, lasso_strength
from engram.tables.median import trimmed_mean
from engram.tables.shrinkage import Option, Shared, combine, personalize
from engram.tables.site import Rows, SiteEstimate, estimate_site

Sent = TypeVar("Sent")
Reply = TypeVar("Reply")


def exchange(
    method: TaskEstimator[Sent, Reply], sent: Sequence[Sequence[Sent | None]]
) -> list[list[Reply | None]]:
    """Combines the tasks' estimates of each parameter at the end of a batch: the server's part.

    Args:
        method: The tasks' estimator.
        sent: Each task's estimate of each parameter; None where it had too few rows.

    Returns:
        The reply to each task for each parameter; None where it sent nothing.
    """
    replies: list[list[Reply | None]] = [[None] * len(own) for own in sent]
    for p in range(len(sent[0])):
        taking_part = [m for m, own in enumerate(sent) if own[p] is not None]
        estimates = [one for own in sent if (one := own[p]) is not None]
        if estimates:
            for m, answer in zip(taking_part, method.combine(estimates), strict=True):
                replies[m][p] = answer
    return replies


def close_tasks(
    policy: TaskBandit[Sent, Reply], states: Sequence[TaskState]
) -> tuple[TaskState, ...]:
    """Ends a batch of all tasks: those with enough rows get new coefficients."""
    replies = exchange(policy.method, [policy.close_batch(own) for own in states])
    pairs = zip(states, replies, strict=True)
    return tuple(policy.receive(own, reply) for own, reply in pairs)


def molar_bandit(
    *,
    c: float = 1.0,
    option: Option = "hard",
    sigma: float | None = None,
    history: History = "batch",
    c_rows: float = 1.0,
    max_weight: float = np.inf,
) -> TaskBandit[SiteEstimate, Shared]:
    """MOLARB: the weighted median of Algorithm 1, and shrinkage towards it.

    Args:
        c: Scale of the threshold, >= 0, as in ``shrinkage.threshold``: 1 is J.1's c_gamma =
            sigma. 0 gives the OLS bandit.
        option: Hard or soft thresholding.
        sigma: Standard deviation of the rewards' noise, > 0; None: each task estimates it from the
            same rows as its coefficients.
        history: See ``TaskBandit``.
        c_rows: See ``TaskBandit``.
        max_weight: See ``shrinkage.median_weights``; infinity if all tasks are trusted.
    """
    require(c >= 0, "c", c, "at least 0")

    def estimate(rows: Rows) -> SiteEstimate:
        return estimate_site(rows, sigma=sigma)

    def own(rows: Rows, shared: Shared) -> Array:
        return personalize(estimate(rows), shared, option=option, c=c)

    method = TaskEstimator(estimate, lambda sites: _median(sites, max_weight), own)
    return _bandit(method, history, c_rows)


def _median(sites: Sequence[SiteEstimate], max_weight: float) -> list[Shared | None]:
    """Combines the estimates; a coefficient that no task's rows determine is 0.

    This happens in early, small batches, when no task has seen a rare feature yet.
    """
    known = np.any([site.determined for site in sites], axis=0)
    if not known.any():
        return [None] * len(sites)
    parts = [site._replace(coef=site.coef[known], scale=site.scale[known]) for site in sites]
    found = combine(parts, max_weight=max_weight)
    coef = np.zeros(len(known))
    coef[known] = found.coef
    return [found._replace(coef=coef)] * len(sites)


def ols_bandit(*, history: History = "batch") -> TaskBandit[tuple[()], tuple[()]]:
    """The OLS bandit (Goldenshluger and Zeevi, 2013) of each task alone."""
    return _alone(lambda rows: estimate_site(rows).coef, history)


def lasso_bandit(
    *, c: float = 0.025, history: History = "batch"
) -> TaskBandit[tuple[()], tuple[()]]:
    """The LASSO bandit (Ren and Zhou, 2023) of each task alone, lambda = c sqrt(ln(d) / n_m)."""
    require(c >= 0, "c", c, "at least 0")
    return _alone(lambda rows: lasso(rows, _strength(rows, c)), history)


def robust_multitask_bandit(
    *, c: float = 0.175, proportion: float = 0.1, history: History = "batch"
) -> TaskBandit[Array, Array]:
    """The robust multitask bandit (Xu and Bastani, 2024), lambda = c sqrt(ln(d) / n_m).

    It has their estimator, with ``proportion`` of tasks trimmed at either end, but not their forced
    exploration, which the batches make unnecessary.
    """
    require(c >= 0, "c", c, "at least 0")

    def center(sent: Sequence[Array]) -> list[Array]:
        return [trimmed_mean(np.stack(sent), proportion)] * len(sent)

    def own(rows: Rows, center: Array) -> Array:
        return lasso_debiasing(rows, center, _strength(rows, c))

    method = TaskEstimator(lambda rows: estimate_site(rows).coef, center, own)
    return _bandit(method, history)


def trace_norm_bandit(*, c: float = 1.0) -> TaskBandit[LeastSquaresMoments, Array]:
    """The trace-norm bandit (Cella et al., 2022), lambda_m = c sqrt((M + d) / n_m).

    M is the number of tasks that take part in a batch. A task takes no step of its own, so earlier
    batches are not used.
    """
    require(c > 0, "c", c, "positive")

    def estimate(rows: Rows) -> LeastSquaresMoments:
        n = len(rows.y)
        return LeastSquaresMoments(rows.x.T @ rows.x / n, rows.x.T @ rows.y / n, float(n))

    method = TaskEstimator(estimate, lambda sent: list(fit_trace_norm(sent, c)), lambda _, own: own)
    return _bandit(method, "batch")


def _strength(rows: Rows, c: float) -> float:
    n, d = rows.x.shape
    return lasso_strength(n, d, c)


def _alone(fit: Callable[[Rows], Array], history: History) -> TaskBandit[tuple[()], tuple[()]]:
    method = TaskEstimator[tuple[()], tuple[()]](
        lambda rows: (), lambda sent: sent, lambda rows, nothing: fit(rows)
    )
    return _bandit(method, history)


def _bandit(
    method: TaskEstimator[Sent, Reply], history: History, c_rows: float = 1.0
) -> TaskBandit[Sent, Reply]:
    require(history in ("batch", "all"), "history", history, "batch or all")
    require(c_rows >= 0, "c_rows", c_rows, "at least 0")
    return TaskBandit(method, history, c_rows)


class Batch(NamedTuple):
    """Rounds t with ``start < t <= stop`` in which estimates do not change."""

    start: int  # 0, or the last round of the previous batch
    stop: int  # its last round
    full: bool  # whether estimates follow: not if the horizon has cut the batch short


def batches(first: int, horizon: int) -> Iterator[Batch]:
    """Yields H_0 and H_q = {t: 2^(q-1) H_0 < t <= min(2^q H_0, T)} of Algorithms 2 and 5."""
    require(first >= 1, "first", first, "at least 1")
    require(horizon >= 1, "horizon", horizon, "at least 1")
    start, stop = 0, first
    while start < horizon:
        yield Batch(start, min(stop, horizon), stop <= horizon)
        start, stop = stop, 2 * stop


def play_tasks(
    policy: TaskBandit[Any, Any],
    environments: Sequence[TaskEnvironment],
    rngs: Sequence[np.random.Generator],
    *,
    first: int = 1,
) -> Array:
    """Returns the cumulative regret of each task after each round, shape (M, T).

    Each of M >= 1 environments has T rounds, and a generator to break ties. The first batch has
    ``first`` rounds, H_0; 1 in the paper.
    """
    require(len(environments) >= 1, "tasks", len(environments), "at least 1")
    horizons = {len(environment.active) for environment in environments}
    require(len(horizons) == 1, "numbers of rounds", horizons, "the same for all tasks")
    start = policy.init(environments[0].parameters, environments[0].contexts.shape[2])
    states: Sequence[TaskState] = [start] * len(environments)
    lost: list[Array] = []
    for batch in batches(first, horizons.pop()):
        now = [environment.rounds(batch.start, batch.stop) for environment in environments]
        played = [policy.play(*task) for task in zip(states, now, rngs, strict=True)]
        states = [state for state, *_ in played]
        if batch.full:
            states = close_tasks(policy, states)
        each = zip(now, played, strict=True)
        lost.append(np.stack([regret(rounds, arms) for rounds, (_, arms, _) in each]))
    return np.cumsum(np.hstack(lost), axis=1)
