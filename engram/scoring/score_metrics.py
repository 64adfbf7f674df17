"""A metric's values for clients, by the outputs of their models."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from engram.core.checks import must
from engram.core.tree import select
from engram.networks.base import Outputs
from engram.scoring.metrics import Metric, fitted


class NoScore(ValueError):
    """An error of a metric that does not return numbers."""


def measure(metric: Metric, outputs: Outputs, targets: Tensor, counted: Tensor) -> Tensor:
    """Returns a metric of each client, shape (c,).

    Args:
        metric: The metric.
        outputs: Outputs of the clients' models, shape (c, q, ...).
        targets: Shape (c, q, ...).
        counted: Mask of the rows that are not padding, shape (c, q); at least one for each client.

    Raises:
        NoScore: If the metric is neither one number nor one for each row.
    """
    finite = torch.stack(
        [x.isfinite().reshape(*counted.shape, -1).all(-1) for x in tree_leaves(outputs)]
    ).all(0)
    if metric.by_row:
        y = targets.flatten(0, 1)
        rows = _each_row(metric, fitted(flattened(outputs), y), y)
        values = torch.where(finite, rows.view_as(finite), metric.worst)
        if metric.partial:
            counted = counted & ~values.isnan()
        # Values of padding are set to zero, not multiplied by it: they may be infinite.
        return torch.where(counted, values, 0.0).sum(1) / counted.sum(1)
    each = [
        _one_number(metric, select(select(outputs, i), some), targets[i][some])
        if finite[i][some].all()
        else metric.worst
        for i, some in enumerate(counted)
    ]
    return torch.tensor(each, dtype=torch.float32, device=targets.device)


def _each_row(metric: Metric, outputs: Outputs, targets: Tensor) -> Tensor:
    rows = torch.as_tensor(metric.score(outputs, targets))
    expected = f"one number for each of {len(targets)} rows"
    if rows.shape != (len(targets),):
        raise NoScore(must(f"metric {metric.name}", tuple(rows.shape), expected))
    return rows


def _one_number(metric: Metric, outputs: Outputs, targets: Tensor) -> float:
    outputs = fitted(outputs, targets)
    if metric.by_row:
        rows = _each_row(metric, outputs, targets).double()
        return float(rows.nanmean() if metric.partial else rows.mean())
    value = metric.score(outputs, targets)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # as torch, numpy and Python say it
        found = tuple(getattr(value, "shape", ())) or type(value).__name__
        expected = "one number for the rows of a client"
        raise NoScore(must(f"metric {metric.name}", found, expected)) from error


def flattened(stacked: Any) -> Any:
    """Returns the rows of all clients, (c q, ...), for (c, q, ...)."""
    return tree_map(lambda leaf: leaf.flatten(0, 1), stacked)
