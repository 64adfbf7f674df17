"""Trial of the loss and the metrics on some rows, before anything is trained or written."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from engram.core.checks import must, require
from engram.core.types import Params
from engram.data.federated import FederatedData, Split
from engram.data.lazy import RowNumbers
from engram.networks.base import Inputs, Model, Outputs
from engram.networks.loss_fit import tried
from engram.scoring.metrics import BUILT_IN, Metric
from engram.scoring.score_metrics import NoScore, measure
from engram.scoring.tasks import Task

_TRAINED, _SCORED = 8, 64  # rows that the loss, and metrics, are tried on, at most


def on_rows(
    task: Task, metrics: Sequence[Metric], network: Model, w: Params, data: FederatedData
) -> Task:
    """Tries a task's loss and the metrics on rows of the first client that has any.

    What is built in is tried where targets have several axes; for others its network's outputs
    have been checked already.

    Raises:
        ValueError: If one of them fails on the network's outputs, or returns something else than
            it should.
    """
    client = next((c for c, rows in enumerate(data.train.rows) if len(rows)), None)
    own = [metric for metric in metrics if metric.name not in BUILT_IN and metric.name != "loss"]
    if client is None or not (task.own or own or data.train.y.ndim > 1):
        return task
    x, y = _taken(data.train, _varied(data.train, client))
    with torch.no_grad():
        if network.train is None:
            outputs = network.apply(w, x)
        else:
            outputs = network.train(w, x, torch.zeros((), dtype=torch.int64, device=y.device))
    task = tried(task, outputs, y)
    split = data.test if len(data.test.rows[client]) else data.train
    x, y = _taken(split, _some(split, client, _SCORED))
    with torch.no_grad():
        outputs = network.apply(w, x)
    for metric in metrics:
        _try_metric(metric, task, outputs, y)
    return task


def _try_metric(metric: Metric, task: Task, outputs: Outputs, y: Tensor) -> None:
    several = task.targets == "classes" and y.ndim > 1
    if several and metric.name in BUILT_IN - {"accuracy"}:
        expected = "accuracy, or one of your own, where a row has several classes"
        raise ValueError(must("metrics", metric.name, expected))
    outputs, y = tree_map(lambda leaf: leaf[None], outputs), y[None]
    every = torch.ones(y.shape[:2], dtype=torch.bool, device=y.device)
    try:
        one, again = (measure(metric, outputs, y, every) for _ in range(2))
    except NoScore:
        raise
    except Exception as error:  # a metric may be anybody's
        shapes = tree_map(lambda leaf: tuple(leaf.shape[1:]), outputs)
        takes = f"outputs of shape {shapes}, and targets {tuple(y.shape[1:])}"
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"metric {metric.name} must take {takes}: {said}") from error
    alike, name = torch.equal(one.nan_to_num(), again.nan_to_num()), f"metric {metric.name}"
    require(alike, name, [float(one), float(again)], "the same for the same outputs and targets")


def _taken(split: Split, rows: RowNumbers) -> tuple[Inputs, Tensor]:
    return split.take(torch.from_numpy(rows).to(split.y.device))


def _some(split: Split, client: int, most: int) -> RowNumbers:
    own = split.rows[client]
    return own[np.linspace(0, len(own) - 1, min(most, len(own))).astype(np.int64)]


def _varied(split: Split, client: int) -> RowNumbers:
    """Returns some of a client's rows, two at least, with different targets if it has some."""
    rows = _some(split, client, _SCORED)
    kinds = split.y[torch.from_numpy(rows).to(split.y.device)].reshape(len(rows), -1).cpu()
    first = np.unique(kinds.numpy(), axis=0, return_index=True)[1]
    ordered = np.concatenate([first, np.setdiff1d(np.arange(len(rows)), first)])
    return np.resize(rows[ordered[:_TRAINED]], max(2, min(_TRAINED, len(rows))))
