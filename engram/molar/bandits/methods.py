"""Four estimators of tasks' coefficients from their rows at the end of a batch.

A task estimates, a server combines the estimates, and the task computes its coefficients from the
result. Default constants are those of J.1, tuned by the authors for noise of deviation 0.5.
"""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from engram.arrays import Array
from engram.checks import require
from engram.molar.lasso import lasso_debiasing
from engram.molar.shrinkage import Option, Shared, combine, personalize
from engram.molar.site import Rows, SiteEstimate, estimate_site
from engram.molar.trimmed_mean import trimmed_mean

Sent = TypeVar("Sent")
Reply = TypeVar("Reply")


class TaskEstimator(NamedTuple, Generic[Sent, Reply]):
    """An estimator for tasks that share through a server, as pure functions.

    Attributes:
        estimate: The task's part: maps the rows of one parameter, at least d + 2, to what it sends.
        combine: The server's part: maps what was sent, by at least one task, to a reply for each
            task; None if there is no estimate yet.
        personalize: The task's part: maps its rows and the reply to coefficients, shape (d,).
    """

    estimate: Callable[[Rows], Sent]
    combine: Callable[[Sequence[Sent]], Sequence[Reply | None]]
    personalize: Callable[[Rows, Reply], Array]


def molar(
    *, c: float, option: Option, sigma: float | None, max_weight: float = np.inf
) -> TaskEstimator[SiteEstimate, Shared]:
    """Algorithm 1: weighted median, and shrinkage towards it."""
    require(c >= 0, "c", c, "at least 0")

    def estimate(rows: Rows) -> SiteEstimate:
        return estimate_site(rows, sigma=sigma)

    def own(rows: Rows, shared: Shared) -> Array:
        return personalize(estimate(rows), shared, option=option, c=c)

    return TaskEstimator(estimate, lambda sites: _median(sites, max_weight), own)


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


def ols() -> TaskEstimator[tuple[()], tuple[()]]:
    """Each task's least squares; nothing is shared."""
    return _alone(lambda rows: estimate_site(rows).coef)


def lasso(*, c: float) -> TaskEstimator[tuple[()], tuple[()]]:
    """Each task's LASSO with lambda = c sqrt(ln(d) / n_m); nothing is shared."""
    require(c >= 0, "c", c, "at least 0")
    return _alone(lambda rows: lasso_debiasing(rows, np.zeros(rows.x.shape[1]), _rate(rows, c)))


def _alone(fit: Callable[[Rows], Array]) -> TaskEstimator[tuple[()], tuple[()]]:
    return TaskEstimator(lambda rows: (), lambda sent: sent, lambda rows, nothing: fit(rows))


def robust_multitask(*, c: float, proportion: float) -> TaskEstimator[Array, Array]:
    """Xu and Bastani (2024): the trimmed mean of least squares, and LASSO around it (App. E)."""
    require(c >= 0, "c", c, "at least 0")

    def center(sent: Sequence[Array]) -> list[Array]:
        return [trimmed_mean(np.stack(sent), proportion)] * len(sent)

    def own(rows: Rows, center: Array) -> Array:
        return lasso_debiasing(rows, center, _rate(rows, c))

    return TaskEstimator(lambda rows: estimate_site(rows).coef, center, own)


def _rate(rows: Rows, c: float) -> float:
    n, d = rows.x.shape
    return float(c * np.sqrt(np.log(d) / n))
