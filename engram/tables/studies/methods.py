"""The estimators that the MOLAR paper compares (Sec. 4.1), each a function of the same data."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from engram.core.arrays import Array
from engram.tables.families import FamilyName
from engram.tables.lasso import DEBIASING_SCALE, LASSO_SCALE, lasso, lasso_debiasing, lasso_strength
from engram.tables.median import trimmed_mean
from engram.tables.shrinkage import Option, Shared, combine, personalize
from engram.tables.site import Rows, SiteEstimate, estimate_site, pool

_TRIMMED: Final = 0.1  # of the tasks, at either end (J.1)


class Evidence(NamedTuple):
    """The data that every method estimates coefficients from."""

    tasks: Sequence[Rows]  # their rows
    sites: Sequence[SiteEstimate]  # each task's own estimate
    shared: Shared  # their weighted median
    family: FamilyName  # the model

    @property
    def own(self) -> Array:
        """The tasks' own coefficients, shape (M, d)."""
        return np.stack([site.coef for site in self.sites])


class Estimator(NamedTuple):
    """A method."""

    title: str  # its name in the paper
    estimate: Callable[[Evidence], Array]  # returns all tasks' coefficients, shape (M, d)


def gather(tasks: Sequence[Rows], *, family: FamilyName = "linear") -> Evidence:
    """Fits each task alone, and takes the weighted median."""
    sites = [estimate_site(rows, family=family) for rows in tasks]
    return Evidence(tasks, sites, combine(sites), family)


def errors(evidence: Evidence, truth: Array, methods: Sequence[str]) -> dict[str, float]:
    """Returns, by method, the mean over tasks of the l1 error ``||b_m - beta_m||_1``.

    The tasks' parameters ``truth`` have shape (M, d). LASSO, RM and ML are only for linear models.
    """
    found = {name: METHODS[name].estimate(evidence) for name in methods}
    return {name: float(np.abs(b - truth).sum(axis=1).mean()) for name, b in found.items()}


def _lasso(evidence: Evidence) -> Array:
    pairs = zip(evidence.tasks, evidence.sites, strict=True)
    return np.stack([lasso(rows, _strength(site, LASSO_SCALE)) for rows, site in pairs])


def _pool(evidence: Evidence) -> Array:
    shared = pool(evidence.tasks, family=evidence.family).coef
    return np.tile(shared, (len(evidence.tasks), 1))


def _debiased(evidence: Evidence, center: Array) -> Array:
    pairs = zip(evidence.tasks, evidence.sites, strict=True)
    around = [lasso_debiasing(r, center, _strength(site, DEBIASING_SCALE)) for r, site in pairs]
    return np.stack(around)


def _strength(site: SiteEstimate, scale: float) -> float:
    return lasso_strength(site.size, len(site.coef), scale * site.sigma)


def _molar(option: Option) -> Callable[[Evidence], Array]:
    def estimate(evidence: Evidence) -> Array:
        shared = evidence.shared
        return np.stack([personalize(own, shared, option=option) for own in evidence.sites])

    return estimate


METHODS: Final = {
    "ols": Estimator("OLS", lambda e: e.own),
    "lasso": Estimator("LASSO", _lasso),
    "pool": Estimator("Pool", _pool),
    "rm": Estimator("RM", lambda e: _debiased(e, trimmed_mean(e.own, _TRIMMED))),
    "ml": Estimator("ML", lambda e: _debiased(e, e.shared.coef)),
    "molar-soft": Estimator("MOLAR, soft", _molar("soft")),
    "molar": Estimator("MOLAR", _molar("hard")),
}
