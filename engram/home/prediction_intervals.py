"""Prediction intervals of any regression, and predictions as columns of a table for people.

Intervals are by split conformal prediction (Lei et al., 2018). Let r_1, ..., r_n be the absolute
errors of a model on rows that it has not learned from. Of a new row of the same kind, the target
lies within

    r_(k),  k = ceil((n + 1) level),

of the prediction with a probability of at least ``level``, and of at most level + 1 / (n + 1) where
no errors are equal. That holds for every model and every distribution, since the rank of the new
row's error among all n + 1 is uniform; it is of rows and calibrations drawn together, and not of
rows with given inputs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from engram.core.arrays import Array
from engram.core.machine import check_room
from engram.networks.base import Inputs, Outputs
from engram.scoring.survival_losses import log_survival
from engram.settings.errors import Refused

LEVELS: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
_EXACT: Final = 1e-9  # products such as 110 * 0.9 are rounded upward
USUAL: Final = 0.9  # the probability of intervals, unless another is asked for

PREDICTED: Final = "predicted"  # the column of the likeliest class, or of the value
LOW: Final = "low"
HIGH: Final = "high"

_BLOCK: Final = 1024  # rows at once
_CELL: Final = 100  # bytes of an output as a number of a table, and as text
_DOUBLES: Final = 16  # bytes of an output, twice
_FEWER: Final = "predict fewer rows at once"

Columns = dict[str, list[Any]]


class Interval(NamedTuple):
    """Bounds of targets around predictions, with some probability."""

    level: float
    radii: tuple[float, ...]  # how far, of each value that is predicted

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Reads the JSON of ``_asdict``."""
        return cls(float(found["level"]), tuple(map(float, found["radii"])))


def intervals_of(outputs: Tensor, targets: Tensor) -> list[Interval]:
    """Returns conformal intervals from outputs (n, ...) on rows unseen in training.

    There is none for a probability for which there are too few rows.
    """
    errors = _errors(outputs, targets)
    if not errors.isfinite().all():
        return []
    return [Interval(level, tuple(r.tolist())) for level, r in radii(errors.numpy()).items()]


def radii(errors: Array, levels: Sequence[float] = LEVELS) -> dict[float, Array]:
    """Returns the radii (m,) of prediction intervals, by level.

    Args:
        errors: Absolute errors on rows that the model has not learned from, shape (n, m).
        levels: The probabilities, in (0, 1). One for which there are too few rows is left out: 0.9
            needs 9.
    """
    ranked, count = np.sort(errors, axis=0), len(errors)
    ranks = {level: math.ceil((count + 1) * level - _EXACT) for level in levels}
    return {level: ranked[rank - 1] for level, rank in ranks.items() if rank <= count}


def coverage(outputs: Tensor, targets: Tensor, interval: Interval) -> Tensor:
    """Returns a mask of targets, (n, m), within an interval of their outputs."""
    return _errors(outputs, targets) <= torch.tensor(interval.radii, dtype=torch.float64)


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    shape = (len(targets), -1 if len(targets) else 0)
    return (outputs.double().reshape(shape) - targets.double().reshape(shape)).abs()


def ends_of(
    outputs: Tensor, interval: Interval, classes: Sequence[str], least: float = -inf
) -> Columns:
    """Returns the ends of intervals, cut at the ``least`` value that there is, as columns by name.

    For the other arguments see ``columns_of``.
    """
    values = outputs.double().reshape(len(outputs), -1)
    radius = torch.tensor(interval.radii, dtype=values.dtype)
    ends = {LOW: (values - radius).clamp(min=least), HIGH: values + radius}
    if len(radius) == 1:
        return {name: end[:, 0].tolist() for name, end in ends.items()}
    return {name: c for what, end in ends.items() for name, c in _each(what, end, classes).items()}


def outputs_of(runs: Callable[[Inputs], Outputs], x: Inputs, count: int) -> Outputs:
    """Returns a model's outputs (count, ...) of rows, block by block.

    Raises:
        Refused: If they need more memory than is free.
    """
    parts, starts = list[Outputs](), range(0, max(1, count), _BLOCK)
    with torch.no_grad():
        for at in starts:
            parts.append(runs(tree_map(lambda leaf, at=at: leaf[at : at + _BLOCK], x)))
            if not at:  # twice: in blocks, and together
                size = sum(leaf.nbytes for leaf in tree_leaves(parts[0]))
                check_room(f"outputs of {count} rows", 2 * size * len(starts), _FEWER)
    outputs: Outputs = tree_map(lambda *leaves: torch.cat(leaves), *parts)
    return outputs


def columns_of(kind: str, outputs: Outputs, classes: Sequence[str]) -> Columns:
    """Returns predictions as columns, by name.

    Args:
        kind: What is predicted: ``classes``, ``labels``, ``tokens``, ``values`` or ``times``.
        outputs: Of the model: logits of classes, labels, tokens or hazards.
        classes: What classes, labels or values are called, or where cells of time end.

    Raises:
        Refused: If outputs are something else than one tensor, or need more memory than is free.
    """
    several = isinstance(outputs, Tensor) and kind == "classes" and outputs.ndim > 2
    if not isinstance(outputs, Tensor) or several:
        one = "one class a row" if several else "one tensor"
        raise Refused(f"the model's outputs must be {one} to be written as a table")
    each = _DOUBLES if kind == "tokens" else _CELL
    check_room(f"a table of {len(outputs)} predictions", each * outputs.numel(), _FEWER)
    return _COLUMNS[kind](outputs.double(), classes)


def targets_as_columns(kind: str, targets: Tensor, classes: Sequence[str]) -> Columns:
    """Returns targets (n, ...) as columns, called as ``columns_of`` calls predictions."""
    if kind == "classes" and targets.ndim == 1:
        return {"target": [classes[i] for i in targets.tolist()]}
    if kind == "times":
        width = float(classes[-1]) / len(classes) if len(classes) > 1 else 1.0
        return {"time": (width * targets[:, 0]).tolist(), "event": targets[:, 1].tolist()}
    return _of_values(targets, classes, "target")


def _of_classes(outputs: Tensor, classes: Sequence[str]) -> Columns:
    shares = outputs.softmax(-1)
    found: Columns = {PREDICTED: [classes[i] for i in shares.argmax(-1).tolist()]}
    return found | _each("probability", shares, classes)


def _of_labels(outputs: Tensor, classes: Sequence[str]) -> Columns:
    return _each("probability", outputs.reshape(len(outputs), -1).sigmoid(), classes)


def _of_tokens(outputs: Tensor, classes: Sequence[str]) -> Columns:
    shares, tokens = outputs[:, -1].softmax(-1).max(-1)
    return {PREDICTED: [classes[i] for i in tokens.tolist()], "probability": shares.tolist()}


def _of_values(outputs: Tensor, classes: Sequence[str], what: str = PREDICTED) -> Columns:
    values = outputs.reshape(len(outputs), -1)
    width = values.shape[1]
    if width == 1:
        return {what: values[:, 0].tolist()}
    # A loss of a user's may take more outputs than there are targets, such as a variance.
    return _each(what, values, classes if len(classes) == width else [*map(str, range(width))])


def _of_times(outputs: Tensor, classes: Sequence[str]) -> Columns:
    if outputs.shape[-1] == 1:
        return {"log hazard": outputs.flatten().tolist()}
    return _each("survival", log_survival(outputs).exp(), classes)


def _each(what: str, table: Tensor, names: Sequence[str]) -> Columns:
    return {f"{what} {name}": table[:, i].tolist() for i, name in enumerate(names)}


_COLUMNS: Final[dict[str, Callable[[Tensor, Sequence[str]], Columns]]] = {
    "classes": _of_classes,
    "labels": _of_labels,
    "tokens": _of_tokens,
    "values": _of_values,
    "times": _of_times,
}
