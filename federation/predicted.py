"""What a model's outputs say, as columns of a table for people."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from engram.models.base import Inputs
from federation.errors import Refused

__all__ = ["PREDICTED", "columns_of", "outputs_of"]

PREDICTED: Final = "predicted"
"""The column of the likeliest class, or of the value."""

_BLOCK: Final = 1024  # rows at once

Columns = dict[str, list[Any]]


def outputs_of(runs: Callable[[Inputs], Any], x: Inputs, count: int) -> Tensor:
    """Returns a model's outputs (count, ...) of rows, block by block.

    Args:
        runs: What runs the model on rows.
        x: The rows.
        count: How many there are.

    Raises:
        Refused: If outputs are something else than one tensor.
    """
    with torch.no_grad():
        parts = [
            runs(tree_map(lambda leaf, at=at: leaf[at : at + _BLOCK], x))
            for at in range(0, max(1, count), _BLOCK)
        ]
    if not all(isinstance(part, Tensor) for part in parts):
        raise Refused("the model's outputs must be one tensor to be written as a table")
    return torch.cat(parts)


def columns_of(kind: str, outputs: Tensor, classes: Sequence[str]) -> Columns:
    """Returns predictions as columns, by name.

    Args:
        kind: What is predicted: ``classes``, ``labels``, ``tokens`` or ``values``.
        outputs: Of the model: logits of classes, labels or tokens.
        classes: What classes, labels or values are called.
    """
    return _COLUMNS[kind](outputs.double(), classes)


def _of_classes(outputs: Tensor, classes: Sequence[str]) -> Columns:
    shares = outputs.softmax(-1)
    found: Columns = {PREDICTED: [classes[i] for i in shares.argmax(-1).tolist()]}
    return found | _each("probability", shares, classes)


def _of_labels(outputs: Tensor, classes: Sequence[str]) -> Columns:
    return _each("probability", outputs.reshape(len(outputs), -1).sigmoid(), classes)


def _of_tokens(outputs: Tensor, classes: Sequence[str]) -> Columns:
    shares, tokens = outputs[:, -1].softmax(-1).max(-1)
    return {PREDICTED: [classes[i] for i in tokens.tolist()], "probability": shares.tolist()}


def _of_values(outputs: Tensor, classes: Sequence[str]) -> Columns:
    values = outputs.reshape(len(outputs), -1)
    return (
        {PREDICTED: values[:, 0].tolist()}
        if values.shape[1] == 1
        else _each(PREDICTED, values, classes)
    )


def _each(what: str, table: Tensor, names: Sequence[str]) -> Columns:
    return {f"{what} {name}": table[:, i].tolist() for i, name in enumerate(names)}


_COLUMNS: Final[dict[str, Callable[[Tensor, Sequence[str]], Columns]]] = {
    "classes": _of_classes,
    "labels": _of_labels,
    "tokens": _of_tokens,
    "values": _of_values,
}
