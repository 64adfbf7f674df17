"""Linear models of rows: each client's own, or the pooled one.

For classes a linear model is a logistic regression with a ridge penalty on standardized inputs; for
values, ridge regression; for times, Cox's with a ridge penalty. The penalty's strength is chosen on
validation rows, if there are any.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from scipy.special import expit, softmax

from engram.compare.survival import cox_models, kaplan_meier
from engram.core.standardization import Moments
from engram.data.federated import FederatedData, Split
from engram.data.lazy import RowNumbers
from engram.scoring.metrics import Metric
from engram.scoring.score_metrics import measure
from engram.scoring.tasks import Task

_STRENGTHS: Final = (0.1, 1e-2, 1e-3, 1.0)  # of ridge, for each row; chosen on validation rows
_LEAST: Final = 1e-6  # share of a class that a client has not seen
_SMALL: Final = 200  # coefficients, up to which Newton's steps take less time than L-BFGS
_STEPS: Final = 200
_FLAT: Final = 1e-8  # slope of a minimum
_TINY: Final = 1e-12  # share of a step, and of the ridge, that changes nothing

Array = npt.NDArray[Any]
_Predicts = Callable[[Array], Array]


def fit(
    task: Task, data: FederatedData, rows: RowNumbers, held_out: RowNumbers | None, ends: float
) -> _Predicts:
    """Fits a linear model to rows; where their targets are all alike, it is a constant.

    Args:
        task: The task: classification, regression or survival.
        data: All rows.
        rows: Numbers of the training rows.
        held_out: Those of the validation rows; None without any.
        ends: Processor time after which no further strength is tried, seconds.
    """
    if alike(data.train, rows):
        return constant(task.name, data, rows)
    x, targets = _taken(data.train, rows)
    mean, deviation = map(np.array, Moments.of(x).standard())
    basis: Array | None = None

    def seen(x: Array) -> Array:
        found: Array = (x - mean) / deviation
        return found if basis is None else found @ basis

    if 2 * x.shape[0] < x.shape[1]:
        # A ridge penalty keeps coefficients in the span of the rows, whose coordinates are fewer.
        basis = np.linalg.qr(seen(x).T)[0]
    fits = FITS[task.name]
    strengths = _STRENGTHS[:1] if held_out is None else _STRENGTHS
    fitted = list[_Predicts]()
    for model in fits(seen(x), targets.numpy(), strengths, data.outputs):
        fitted.append(model)
        if time.process_time() >= ends:
            break
    if held_out is None or data.validation is None:
        best = fitted[0]
    else:
        x, targets = _taken(data.validation, held_out)
        best = _best(task, fitted, seen(x), targets)
    return lambda x: best(seen(x))


def constant(task: str, data: FederatedData, rows: RowNumbers) -> _Predicts:
    """Returns the shares of rows' classes, as logarithms, their curve, or their mean value."""
    y = data.train.y[torch.from_numpy(rows)].numpy()
    same = y.mean(0)
    if task == "classification":
        same = np.log(np.maximum(np.bincount(y, minlength=data.outputs) / len(y), _LEAST))
    if task == "survival":
        same = kaplan_meier(y.astype(np.float64), data.outputs)
    return lambda x: np.tile(same, (len(x), *[1] * np.ndim(same)))


def predicted(predicts: _Predicts, split: Split, rows: RowNumbers) -> torch.Tensor:
    """Returns a model's outputs for rows, shape (k, ...)."""
    return torch.from_numpy(predicts(_taken(split, rows)[0])).float()


def alike(split: Split, rows: RowNumbers) -> bool:
    """Returns whether all targets of rows are equal."""
    return len(np.unique(split.y[torch.from_numpy(rows)].numpy(), axis=0)) < 2


def in_memory(split: Split) -> bool:
    """Returns whether inputs are one array of numbers in memory."""
    x = split.x
    return isinstance(x, torch.Tensor) and (x.dtype == torch.uint8 or x.is_floating_point())


def scored(metric: Metric, outputs: torch.Tensor, y: torch.Tensor) -> float | None:
    """Returns a client's score; None without a finite value."""
    value = float(measure(metric, outputs[None], y[None], torch.ones(1, len(y)).bool()))
    return value if np.isfinite(value) else None


def _taken(split: Split, rows: RowNumbers) -> tuple[Array, torch.Tensor]:
    """Returns inputs, flattened, or of no numbers where a row is no array; and targets."""
    if not in_memory(split):
        return np.zeros((len(rows), 0)), split.y[torch.from_numpy(rows)]
    x, y = split.take(torch.from_numpy(rows), exact=True)
    return x.flatten(1).double().numpy(), y


def _logistic(x: Array, y: Array, strengths: Sequence[float], classes: int) -> Iterator[_Predicts]:
    """Logistic regressions with an intercept, for each strength of the ridge, from the one before.

    The mean cross-entropy plus strength/2 times the squared coefficients is minimized: of two
    classes, those of the difference of their logits. scikit-learn's fits give the same, and take
    some five times as long for a client's few rows.
    """
    seen, y = np.unique(y, return_inverse=True)
    x, theta = _with_ones(x), np.zeros((x.shape[1] + 1, len(seen)))
    small = len(seen) == 2 and len(theta) <= _SMALL
    for strength in strengths:
        theta = _newton(x, y, theta, strength) if small else _l_bfgs(x, y, theta, strength)
        yield partial(_log_shares, theta, seen, classes)


def _with_ones(x: Array) -> Array:
    return np.column_stack([x, np.ones(len(x))])


def _log_shares(theta: Array, seen: Array, classes: int, x: Array) -> Array:
    shares = np.full((len(x), classes), _LEAST)
    shares[:, seen] = np.maximum(softmax(_with_ones(x) @ theta, axis=1), _LEAST)
    return np.asarray(np.log(shares))


def _newton(x: Array, y: Array, theta: Array, strength: float) -> Array:
    """Takes Newton's steps, halved until the loss falls, from coefficients (p, 2)."""
    n, sign = len(y), 2.0 * y - 1
    ridge = np.append(np.full(x.shape[1] - 1, strength), 0.0)

    def at(beta: Array) -> tuple[float, Array]:
        logits = x @ beta
        return float(np.logaddexp(0, -sign * logits).mean() + ridge @ beta**2 / 2), logits

    beta, least = theta[:, 1] - theta[:, 0], np.diag(ridge + _TINY)
    loss, logits = at(beta)
    for _ in range(_STEPS):
        shares = expit(logits)
        slope = x.T @ (shares - y) / n + ridge * beta
        if np.abs(slope).max() < _FLAT:
            break
        step = np.linalg.solve((x.T * (shares * (1 - shares) / n)) @ x + least, slope)
        before, size, (loss, logits) = loss, 1.0, at(beta - step)
        while size > _TINY and loss > before:
            size /= 2
            loss, logits = at(beta - size * step)
        beta = beta - size * step
    return np.stack([np.zeros_like(beta), beta], axis=1)


def _l_bfgs(x: Array, y: Array, theta: Array, strength: float) -> Array:
    """Minimizes by L-BFGS, from coefficients (p, K)."""
    of_class = np.eye(theta.shape[1])[y]
    ridge = np.full((len(theta), 1), strength * (1 + (theta.shape[1] == 2)))
    ridge[-1] = 0

    slope = np.empty(theta.size)  # at the coefficients whose loss was last asked for

    def objective(flat: Array) -> float:
        own = flat.reshape(theta.shape)
        logits = x @ own
        logits -= logits.max(1, keepdims=True)
        shares = np.exp(logits)
        sums = shares.sum(1, keepdims=True)
        loss = (np.log(sums).sum() - np.vdot(logits, of_class)) / len(y)
        slope[:] = (x.T @ (shares / sums - of_class) / len(y) + ridge * own).ravel()
        return float(loss + np.vdot(ridge * own, own) / 2)

    how = {"maxiter": _STEPS, "gtol": 1e-4, "ftol": 64 * np.finfo(float).eps}
    found = minimize(objective, theta.ravel(), jac=lambda _: slope, method="L-BFGS-B", options=how)
    return np.asarray(found.x.reshape(theta.shape))


def _ridge(x: Array, y: Array, strengths: Sequence[float], outputs: int) -> Iterator[_Predicts]:
    from sklearn.linear_model import Ridge  # noqa: PLC0415 - a second to import

    def predicts(model: Ridge, x: Array) -> Array:
        return np.asarray(model.predict(x)).reshape(len(x), outputs)

    for strength in strengths:
        model = Ridge(alpha=strength * len(y)).fit(x, y.reshape(len(y), -1))
        yield partial(predicts, model)


FITS: Final[dict[str, Callable[..., Iterator[_Predicts]]]] = {
    "classification": _logistic,
    "regression": _ridge,
    "survival": cox_models,
}
"""By task, what fits a linear model for each strength of a ridge penalty."""


def _best(task: Task, models: Sequence[_Predicts], x: Array, y: torch.Tensor) -> _Predicts:
    outputs = torch.from_numpy(np.stack([model(x) for model in models])).float()
    counted = torch.ones(len(models), len(y), dtype=torch.bool)
    losses = measure(task.metric, outputs, y.expand(len(models), *y.shape), counted).numpy()
    return models[int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))]
