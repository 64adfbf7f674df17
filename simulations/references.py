"""References that any network has to beat: for each client by itself, a constant and a line.

They are computed where a comparison has the data, and kept in its folder.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from client.training.scoring import measure, query_rows
from engram.metrics import Metric
from engram.tasks import TASKS
from engram.units import Moments, Standard
from federation.data.dealing import federated_data
from federation.data.federated import FederatedData, Split
from federation.experiment import Experiment
from federation.files import replace_file
from federation.methods.network import NetworkMethod
from federation.stored import Figure, Stored, read_stored
from server.record import RunRecord

__all__ = ["CONSTANT", "LINEAR", "read_references", "references", "write_references"]

CONSTANT: Final = "constant, own"
LINEAR: Final = "linear model, own"
_FILE: Final = "references.json"
_STRENGTHS: Final = (1e-3, 1e-2, 0.1, 1.0)  # of ridge, for each row; chosen on validation rows
_LEAST: Final = 1e-6  # share of a class that a client has not seen
_MOST: Final = 10**7  # numbers that all training rows may have: 7 million take 43 s

Array = npt.NDArray[Any]
_Predicts = Callable[[Array], Array]


def references(experiment: Experiment) -> dict[str, dict[str, list[float | None]]]:
    """Scores each client's constant and its linear model on the test rows that methods have.

    Both learn from the client's own training rows alone. For classes the constant is their shares,
    and the linear model a logistic regression with a ridge penalty on standardized inputs; for
    values, the mean and ridge. The penalty's strength is chosen on the client's validation rows, if
    there are any.

    Returns:
        By reference, each metric of each client, None where it has no value. Empty for other tasks
        and for losses of a user, for inputs that are no single array of numbers, and where these
        are too many.
    """
    if experiment.task not in ("classification", "regression") or experiment.loss:
        return {}
    data = federated_data(experiment)
    train = data.train
    numbers = isinstance(train.x, torch.Tensor) and train.x.dtype in (torch.uint8, torch.float32)
    if not numbers or sum(map(len, train.rows)) * train.numbers > _MOST:
        return {}
    metrics = experiment.of(NetworkMethod).metrics(experiment)
    found: dict[str, dict[str, list[float | None]]] = {
        name: {metric.name: [] for metric in metrics} for name in (CONSTANT, LINEAR)
    }
    for client in range(experiment.num_clients):
        if client in data.left_out or client in data.unscored:
            for scores in [*found[CONSTANT].values(), *found[LINEAR].values()]:
                scores.append(None)
            continue
        x, y = _taken(data.test, query_rows(experiment, data.test, client))
        for name, predicts in _models(experiment.task, data, client).items():
            outputs = torch.from_numpy(predicts(x)).float()
            for metric in metrics:
                own = metric.of(data.names.get(client, client))
                found[name][metric.name].append(_score(own, outputs, y))
    return found


class _References(Stored):
    """Scores of each client, by seed, reference and metric."""

    __pydantic_extra__: dict[str, dict[str, dict[str, list[Figure | None]]]]


def write_references(folder: Path, experiments: Iterable[Experiment]) -> None:
    """Keeps the references of a comparison's runs in its folder, by seed."""
    by_seed = {e.seed: e for e in experiments}
    found = {str(seed): references(e) for seed, e in by_seed.items()}
    if all(found.values()):
        replace_file(folder / _FILE, json.dumps(found).encode())


def read_references(
    folder: Path, records: Sequence[RunRecord], metric: str
) -> dict[str, list[npt.NDArray[np.float64]]]:
    """Returns each client's scores by each reference, for the seeds of some runs.

    They are NaN where there are none, and for clients that never train, whom methods are not
    compared on.

    Args:
        folder: A comparison's.
        records: Its runs of one method.
        metric: The metric's name.
    """
    path = folder / _FILE
    if not path.is_file():
        return {}
    held = read_stored(path, _References)
    seeds = {
        str(r.config["settings"]["seed"]): (r.results or {}).get("unseen", ()) for r in records
    }
    return {
        name: [_of_seen(held[seed][name][metric], unseen) for seed, unseen in seeds.items()]
        for name in (CONSTANT, LINEAR)
        if all(metric in held.get(seed, {}).get(name, {}) for seed in seeds)
    }


def _of_seen(scores: Sequence[float | None], unseen: Sequence[int]) -> npt.NDArray[np.float64]:
    found = np.array(scores, dtype=float)
    found[np.array(unseen, dtype=int)] = np.nan
    return found


def _rows(split: Split, client: int) -> tuple[Array, torch.Tensor]:
    return _taken(split, split.rows[client])


def _taken(split: Split, rows: npt.NDArray[np.int64]) -> tuple[Array, torch.Tensor]:
    x, y = split.take(torch.from_numpy(rows))
    return x.flatten(1).double().numpy(), y


def _score(metric: Metric, outputs: torch.Tensor, y: torch.Tensor) -> float | None:
    value = float(measure(metric, outputs[None], y[None], torch.ones(1, len(y)).bool()))
    return value if np.isfinite(value) else None


def _models(task: str, data: FederatedData, client: int) -> dict[str, _Predicts]:
    """Returns what predicts outputs (k, ...) from inputs (k, ...), by name."""
    x, targets = _rows(data.train, client)
    y = targets.numpy()
    constant = _shares(y, data.outputs) if task == "classification" else y.mean(0)
    models: dict[str, _Predicts] = {
        CONSTANT: lambda x: np.tile(constant, (len(x), *[1] * np.ndim(constant)))
    }
    models[LINEAR] = models[CONSTANT]
    if len(np.unique(y, axis=0)) > 1:
        held_out = None if data.validation is None else _rows(data.validation, client)
        fit = _logistic if task == "classification" else _ridge
        seen = partial(_standardized, Moments.of(x).standard())
        fitted = [_after(seen, fit(seen(x), y, each, data.outputs)) for each in _STRENGTHS]
        models[LINEAR] = fitted[-2] if held_out is None else _best(task, fitted, *held_out)
    return models


def _shares(y: Array, classes: int) -> Array:
    """Returns logarithms of the classes' shares, of which none is 0."""
    return np.log(np.maximum(np.bincount(y, minlength=classes) / len(y), _LEAST))


def _logistic(x: Array, y: Array, strength: float, classes: int) -> _Predicts:
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - a second to import

    seen = np.unique(y)
    model = LogisticRegression(C=1 / (strength * len(y)), max_iter=200).fit(x, y)

    def predicts(x: Array) -> Array:
        shares = np.full((len(x), classes), _LEAST)
        shares[:, seen] = np.maximum(model.predict_proba(x), _LEAST)
        return np.asarray(np.log(shares))

    return predicts


def _ridge(x: Array, y: Array, strength: float, outputs: int) -> _Predicts:
    from sklearn.linear_model import Ridge  # noqa: PLC0415 - a second to import

    model = Ridge(alpha=strength * len(y)).fit(x, y.reshape(len(y), -1))
    return lambda x: np.asarray(model.predict(x)).reshape(len(x), outputs)


def _standardized(standard: Standard, x: Array) -> Array:
    return standard.standardized(torch.from_numpy(x)).numpy()


def _after(seen: _Predicts, model: _Predicts) -> _Predicts:
    return lambda x: model(seen(x))


def _best(task: str, models: Sequence[_Predicts], x: Array, y: torch.Tensor) -> _Predicts:
    """Returns the model with the least loss on some rows."""
    loss = TASKS[task].metric
    losses = [_score(loss, torch.from_numpy(model(x)).float(), y) for model in models]
    return models[int(np.argmin([np.inf if value is None else value for value in losses]))]
