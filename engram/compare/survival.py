"""Survival without a network: Kaplan-Meier curves and Cox models, as outputs of a network.

With K cells of time these are logits of hazards, (n, K); with a single one, log hazards, (n, 1).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.special import logit

from engram.core.arrays import Array
from engram.tables.random_effects import Prior
from engram.tables.survival.baseline import baseline_hazard
from engram.tables.survival.partial import Subjects
from engram.tables.survival.site_effects import posterior_mode, site_sums

_LEAST: Final = 1e-6  # hazard of a cell without a death, in which somebody may die later


def kaplan_meier(y: Array, cells: int) -> Array:
    """Returns the outputs (K,) of the curve of rows with times and events y, (n, 2)."""
    if cells == 1:
        return np.zeros(1)
    hazard = baseline_hazard(_subjects(np.zeros((len(y), 0)), y), np.zeros(0)).cumulative_hazard(0)
    shares = np.diff(hazard.y, prepend=0.0)
    alive = np.cumsum(np.log1p(-np.minimum(shares, 1 - _LEAST)))
    return _logits(-np.expm1(_of_cells(hazard.x, alive, cells)))


def cox_models(
    x: Array, y: npt.NDArray[Any], strengths: Sequence[float], outputs: int
) -> Iterator[partial[Array]]:
    """Fits Cox models with a ridge penalty, by Breslow's partial likelihood, for each strength.

    Baseline hazards are Breslow's. The strength is that of each row.
    """
    subjects, d = _subjects(x, y), x.shape[1]
    (sums_at,) = site_sums([subjects], "breslow")
    for strength in strengths:
        ridge = Prior(np.zeros(d), np.full(d, 1 / (strength * len(y))))
        beta, _ = posterior_mode(sums_at, ridge)
        hazard = baseline_hazard(subjects, beta).cumulative_hazard(0)
        yield partial(_outputs, beta, np.maximum(_of_cells(hazard.x, hazard.y, outputs), _LEAST))


def _subjects(x: Array, y: npt.NDArray[Any]) -> Subjects:
    return Subjects(x, y[:, 0].astype(np.float64), y[:, 1] > 0)


def _outputs(beta: Array, baseline: Array, x: Array) -> Array:
    risk = (x @ beta)[:, None]
    if len(baseline) == 1:
        return np.asarray(risk)
    return _logits(-np.expm1(-baseline * np.exp(risk)))


def _of_cells(at: Array, sums: Array, cells: int) -> Array:
    """Returns the rise in each cell, (K,), of sums at some times; the first has the time 0."""
    ends = np.searchsorted(at, np.arange(1, cells + 1), side="right")
    return np.diff(np.append(0.0, sums)[ends], prepend=0.0)


def _logits(hazards: Array) -> Array:
    return np.asarray(logit(np.clip(hazards, _LEAST, 1 - _LEAST)))
