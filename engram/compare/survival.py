"""Survival without a network: Kaplan-Meier curves and Cox models, as outputs of a network.

With K cells of time these are logits of hazards, (n, K); with a single one, log hazards, (n, 1).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from scipy.special import logit
from torch import Tensor
from torch.func import grad_and_value

from engram.core.arrays import Array
from engram.scoring.survival_losses import cox

_LEAST: Final = 1e-6  # hazard of a cell without a death, in which somebody may die later


def kaplan_meier(y: Array, cells: int) -> Array:
    """Returns the outputs (K,) of the curve of rows with times and events y, (n, 2)."""
    if cells == 1:
        return np.zeros(1)
    deaths, at, at_risk = _deaths(y, np.ones(len(y)))
    alive = np.cumsum(np.log1p(-np.minimum(deaths / at_risk, 1 - _LEAST)))
    return _logits(-np.expm1(_of_cells(at, alive, cells)))


def cox_models(
    x: Array, y: npt.NDArray[Any], strengths: Sequence[float], outputs: int
) -> Iterator[partial[Array]]:
    """Fits Cox models with a ridge penalty, by Breslow's partial likelihood, for each strength.

    Baseline hazards are Breslow's.
    """
    rows, targets, share = torch.from_numpy(x), torch.from_numpy(y).double(), float(y[:, 1].mean())

    def loss(beta: Tensor, strength: float) -> Tensor:
        return share * cox(rows @ beta, targets) + strength / 2 * beta.square().sum()

    def objective(beta: Array, strength: float) -> tuple[Array, Array]:
        slope, value = grad_and_value(loss)(torch.from_numpy(beta), strength)
        return value.numpy(), slope.numpy()

    beta = np.zeros(x.shape[1])
    for strength in strengths:
        beta = minimize(objective, beta, (strength,), jac=True, method="L-BFGS-B").x
        deaths, at, at_risk = _deaths(y, np.exp(x @ beta))
        baseline = _of_cells(at, np.cumsum(deaths / at_risk), outputs)
        yield partial(_outputs, beta, np.maximum(baseline, _LEAST))


def _outputs(beta: Array, baseline: Array, x: Array) -> Array:
    risk = (x @ beta)[:, None]
    if len(baseline) == 1:
        return np.asarray(risk)
    return _logits(-np.expm1(-baseline * np.exp(risk)))


def _deaths(y: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Returns numbers of deaths, their times, and weights at risk then, each (T,)."""
    at, deaths = np.unique(y[y[:, 1] > 0, 0], return_counts=True)
    order = np.argsort(y[:, 0])
    left = np.append(np.cumsum(weights[order][::-1])[::-1], 0.0)
    return deaths.astype(np.float64), at, left[np.searchsorted(y[order, 0], at)]


def _of_cells(at: Array, sums: Array, cells: int) -> Array:
    """Returns the rise in each cell, (K,), of sums at some times; the first has the time 0."""
    ends = np.searchsorted(at, np.arange(1, cells + 1), side="right")
    return np.diff(np.append(0.0, sums)[ends], prepend=0.0)


def _logits(hazards: Array) -> Array:
    return np.asarray(logit(np.clip(hazards, _LEAST, 1 - _LEAST)))
