"""Linear models of rows: each client's own, or the pooled one.

For classes a linear model is a logistic regression with a ridge penalty on standardized inputs; for
values, ridge regression; for times, Cox's with a ridge penalty. The penalty's strength is chosen on
validation rows, if there are any.
"""

import copy
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from engram.compare.survival import cox_models, kaplan_meier
from engram.core.process_modes import filtering
from engram.core.standardization import Moments
from engram.data.federated import FederatedData, Split
from engram.data.lazy import RowNumbers
from engram.scoring.metrics import Metric
from engram.scoring.score_metrics import measure
from engram.scoring.tasks import Task

_STRENGTHS: Final = (0.1, 1e-2, 1e-3, 1.0)  # of ridge, for each row; chosen on validation rows
_LEAST: Final = 1e-6  # share of a class that a client has not seen

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
    standard = Moments.of(x).standard()
    basis: Array | None = None

    def seen(x: Array) -> Array:
        found: Array = standard.standardized(torch.from_numpy(x)).numpy()
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
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - a second to import

    model = LogisticRegression(max_iter=200, warm_start=True)

    def predicts(model: LogisticRegression, x: Array) -> Array:
        shares = np.full((len(x), classes), _LEAST)
        shares[:, model.classes_] = np.maximum(model.predict_proba(x), _LEAST)
        return np.asarray(np.log(shares))

    for strength in strengths:
        with filtering():
            warnings.simplefilter("ignore")  # of a fit that ends after so many steps
            model.set_params(C=1 / (strength * len(y))).fit(x, y)
        yield partial(predicts, copy.copy(model))


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
    losses = [scored(task.metric, torch.from_numpy(model(x)).float(), y) for model in models]
    return models[int(np.argmin([np.inf if value is None else value for value in losses]))]
