"""References that any network has to beat: a constant and linear models, own and pooled.

They are computed where a comparison has the data, and kept in its folder.
"""

import json
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from client.training.measures import measure
from client.training.rows import query_rows
from engram.metrics import Metric
from engram.process import filtering
from engram.tasks import TASKS
from engram.units import Moments, Standard
from federation.data.dealing import federated_data
from federation.data.federated import FederatedData, Split
from federation.experiment import Experiment
from federation.files import replace_file
from federation.methods.network import NetworkMethod
from federation.stored import Figure, Stored, read_stored
from federation.streams import scored, unseen
from server.record import RunRecord

__all__ = [
    "CONSTANT",
    "LINEAR",
    "NAMES",
    "POOLED",
    "References",
    "read_notes",
    "read_references",
    "references",
    "write_references",
]

CONSTANT: Final = "constant, own"
LINEAR: Final = "linear model, own"
POOLED: Final = "linear model, pooled"
NAMES: Final = (CONSTANT, LINEAR, POOLED)
_FILE: Final = "references.json"
_STRENGTHS: Final = (0.1, 1e-2, 1e-3, 1.0)  # of ridge, for each row; chosen on validation rows
_LEAST: Final = 1e-6  # share of a class that a client has not seen
_MOST: Final = 2 * 10**6  # numbers of the rows that the pooled model learns from
_SECONDS: Final = 60.0  # of processor time, for the linear models of a seed, own and pooled each

Array = npt.NDArray[Any]
_Predicts = Callable[[Array], Array]
_ModelOf = Callable[[int], _Predicts | None]


class References(NamedTuple):
    """Scores without a network, and words on them.

    Attributes:
        scores: By reference, each metric of each client, None where it has no value.
        notes: By reference, why it is left out, or on which rows or clients it is.
    """

    scores: dict[str, dict[str, list[float | None]]]
    notes: dict[str, str]


def references(experiment: Experiment) -> References:
    """Scores a constant and linear models on the test rows that methods have.

    Own models learn from the client's training rows alone, the pooled one from those of all clients
    that train, or a random part of them. For classes the constant is their shares, and a linear
    model a logistic regression with a ridge penalty on standardized inputs; for values, the mean
    and ridge. The penalty's strength is chosen on validation rows, if there are any. Linear models
    need inputs that are one array of numbers, and stop after ``_SECONDS``.
    """
    if experiment.loss or experiment.task not in ("classification", "regression"):
        why = "a loss of your own" if experiment.loss else f"the task {experiment.task}"
        return References({}, dict.fromkeys(NAMES, f"none for {why}"))
    data = federated_data(experiment)
    found = {CONSTANT: _scored(experiment, data, partial(_constant, experiment.task, data))}
    if not _in_memory(data.train):
        why = "none for inputs that are not one array of numbers in memory"
        return References(found, dict.fromkeys((LINEAR, POOLED), why))
    notes: dict[str, str] = {}
    for name, make in ((LINEAR, _own), (POOLED, _pooled)):
        model_of, words = make(experiment, data)
        found[name] = _scored(experiment, data, model_of)
        if words:
            notes[name] = "; ".join(words)
    return References(found, notes)


def _in_memory(split: Split) -> bool:
    x = split.x
    return isinstance(x, torch.Tensor) and x.dtype in (torch.uint8, torch.float32)


def _clients(e: Experiment, data: FederatedData) -> list[int]:
    """Returns the clients that are scored in the runs, too."""
    able = [c for c in range(e.num_clients) if c not in {*data.left_out, *data.unscored}]
    return scored(e, able, unseen(e, data.names))


def _scored(
    experiment: Experiment, data: FederatedData, model_of: _ModelOf
) -> dict[str, list[float | None]]:
    """Returns each metric of each client by its model; None without a model, or rows."""
    metrics = experiment.of(NetworkMethod).metrics(experiment)
    found: dict[str, list[float | None]] = {metric.name: [] for metric in metrics}
    there = {*_clients(experiment, data)}
    for client in range(experiment.num_clients):
        predicts = model_of(client) if client in there else None
        if predicts is None:
            for scores in found.values():
                scores.append(None)
            continue
        x, y = _taken(data.test, query_rows(experiment, data.test, client))
        outputs = torch.from_numpy(predicts(x)).float()
        for metric in metrics:
            own = metric.of(data.names.get(client, client))
            found[metric.name].append(_score(own, outputs, y))
    return found


class _References(Stored):
    """Scores of each client, by seed, reference and metric; and notes by reference."""

    notes: dict[str, str] | None = None
    __pydantic_extra__: dict[str, dict[str, dict[str, list[Figure | None]]]]


def write_references(folder: Path, experiments: Iterable[Experiment]) -> None:
    """Keeps the references of a comparison's runs in its folder, by seed."""
    by_seed = {e.seed: e for e in experiments}
    found = {str(seed): references(e) for seed, e in by_seed.items()}
    notes = {name: words for each in found.values() for name, words in each.notes.items()}
    held: dict[str, Any] = {seed: each.scores for seed, each in found.items() if each.scores}
    replace_file(folder / _FILE, json.dumps(held | ({"notes": notes} if notes else {})).encode())


def read_notes(folder: Path) -> dict[str, str]:
    """Returns why a comparison's references are left out, or what they are of, by their names."""
    path = folder / _FILE
    held = read_stored(path, _References) if path.is_file() else {}
    return dict(held.get("notes") or {})


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
        for name in NAMES
        if all(metric in held.get(seed, {}).get(name, {}) for seed in seeds)
    }


def _of_seen(scores: Sequence[float | None], unseen: Sequence[int]) -> npt.NDArray[np.float64]:
    found = np.array(scores, dtype=float)
    found[np.array(unseen, dtype=int)] = np.nan
    return found


def _taken(split: Split, rows: npt.NDArray[np.int64]) -> tuple[Array, torch.Tensor]:
    """Returns inputs, flattened, or of no numbers where a row is no array; and targets."""
    if not _in_memory(split):
        return np.zeros((len(rows), 0)), split.y[torch.from_numpy(rows)]
    x, y = split.take(torch.from_numpy(rows))
    return x.flatten(1).double().numpy(), y


def _score(metric: Metric, outputs: torch.Tensor, y: torch.Tensor) -> float | None:
    value = float(measure(metric, outputs[None], y[None], torch.ones(1, len(y)).bool()))
    return value if np.isfinite(value) else None


# --- Models: what predicts outputs (k, ...) from inputs (k, ...) ---------------------------------


def _constant(task: str, data: FederatedData, client: int) -> _Predicts:
    y = data.train.y[torch.from_numpy(data.train.rows[client])].numpy()
    constant = _shares(y, data.outputs) if task == "classification" else y.mean(0)
    return lambda x: np.tile(constant, (len(x), *[1] * np.ndim(constant)))


def _own(experiment: Experiment, data: FederatedData) -> tuple[_ModelOf, list[str]]:
    """Returns each client's linear model, all fitted; and of how many clients, if not of all."""
    task, ends, models = experiment.task, time.process_time() + _SECONDS, dict[int, _Predicts]()
    clients = _clients(experiment, data)
    for client in clients:
        if time.process_time() >= ends:
            break
        rows = data.train.rows[client]
        if len(np.unique(data.train.y[torch.from_numpy(rows)].numpy(), axis=0)) < 2:
            models[client] = _constant(task, data, client)
        else:
            held_out = None if data.validation is None else data.validation.rows[client]
            models[client] = _linear(task, data, rows, held_out, ends)
    over = f"of {len(models)} of {len(clients)} clients: its {_SECONDS:g} s were over"
    return models.get, [over] * (len(models) < len(clients))


def _pooled(experiment: Experiment, data: FederatedData) -> tuple[_ModelOf, list[str]]:
    """Returns the linear model of all clients' rows; and of how many, if not of all."""
    away = set(data.left_out) | unseen(experiment, data.names)
    clients = [c for c in range(experiment.num_clients) if c not in away]
    rng = np.random.default_rng([experiment.seed, len(clients)])
    most = max(1, _MOST // data.train.numbers)

    def some(split: Split) -> npt.NDArray[np.int64]:
        return rng.permutation(np.concatenate([split.rows[c] for c in clients]))[:most]

    rows, total = some(data.train), sum(len(data.train.rows[c]) for c in clients)
    words = [f"of {len(rows):,} of {total:,} rows, drawn at random"] * (len(rows) < total)
    if len(np.unique(data.train.y[torch.from_numpy(rows)].numpy(), axis=0)) < 2:
        return lambda client: None, ["none, since all targets are alike"]
    held_out = None if data.validation is None else some(data.validation)
    model = _linear(experiment.task, data, rows, held_out, time.process_time() + _SECONDS)
    return lambda client: model, words


def _linear(
    task: str,
    data: FederatedData,
    rows: npt.NDArray[np.int64],
    held_out: npt.NDArray[np.int64] | None,
    ends: float,
) -> _Predicts:
    """Fits a linear model, of the first strength, or of the best that were tried in time."""
    x, targets = _taken(data.train, rows)
    seen: _Predicts = partial(_standardized, Moments.of(x).standard())
    if x.shape[0] < x.shape[1]:
        # A ridge penalty keeps coefficients in the span of the rows, whose coordinates are fewer.
        basis = np.linalg.qr(seen(x).T)[0]
        seen = _after(seen, lambda x: x @ basis)
    fit = _logistic if task == "classification" else _ridge
    inputs, y, fitted = seen(x), targets.numpy(), list[_Predicts]()
    for strength in _STRENGTHS[:1] if held_out is None else _STRENGTHS:
        fitted.append(_after(seen, fit(inputs, y, strength, data.outputs)))
        if time.process_time() >= ends:
            break
    if held_out is None or data.validation is None:
        return fitted[0]
    return _best(task, fitted, *_taken(data.validation, held_out))


def _shares(y: Array, classes: int) -> Array:
    """Returns logarithms of the classes' shares, of which none is 0."""
    return np.log(np.maximum(np.bincount(y, minlength=classes) / len(y), _LEAST))


def _logistic(x: Array, y: Array, strength: float, classes: int) -> _Predicts:
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - a second to import

    seen = np.unique(y)
    model = LogisticRegression(C=1 / (strength * len(y)), max_iter=200)
    with filtering():
        warnings.simplefilter("ignore")  # of a fit that ends after so many steps
        model.fit(x, y)

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
