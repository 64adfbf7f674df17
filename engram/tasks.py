"""What networks are trained for: a loss of each row, and what models are scored by.

A task is known by its name. Losses are per row, so that rows can be weighted, and padding left out.
"""

import inspect
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from engram.checks import require
from engram.metrics import Metric, Targets

# Listing tasks, or mistyping one, loads no torch.
if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "CLASSIFICATION",
    "LOSSES",
    "REGRESSION",
    "TASKS",
    "RowLoss",
    "Task",
    "loss",
    "task_of",
]

RowLoss = Callable[["Tensor", "Tensor"], "Tensor"]
"""``(outputs (k, ...), targets (k, ...)) -> losses (k,)``."""


class Task(NamedTuple):
    """What a network learns.

    Attributes:
        name: What it is called.
        loss: What it lowers.
        targets: What a row's targets are: ``classes`` (a class), ``values`` (numbers), ``labels``
            (each 0 or 1, any number of them 1), or ``tokens`` (a class for each position, -1 for
            none).
        metrics: What models are scored by, unless somebody says otherwise; with commas.
        low: Lowest possible loss.
        most: As ``Metric.most``, of the loss.
        meaning: What the loss is, in a few words.
    """

    name: str
    loss: RowLoss
    targets: Targets
    metrics: str
    low: float = 0.0
    most: float = inf
    meaning: str = "mean loss"

    @property
    def metric(self) -> Metric:
        """The loss as a metric."""
        return Metric(
            "loss",
            self.loss,
            low=self.low,
            better="lower",
            meaning=self.meaning,
            by_row=True,
            partial=False,
            most=self.most,
        )


def _negative_log_likelihood(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    from torch.nn import functional  # noqa: PLC0415 - tasks are listed without torch

    return functional.cross_entropy(outputs, targets, reduction="none")


def _squared(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    return _by_row((_fitting(outputs, targets) - targets).square())


def _binary(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    from torch.nn import functional  # noqa: PLC0415 - tasks are listed without torch

    outputs = _fitting(outputs, targets)
    losses = functional.binary_cross_entropy_with_logits(
        outputs, targets.to(outputs), reduction="none"
    )
    return _by_row(losses)


def _next_token(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    from torch.nn import functional  # noqa: PLC0415 - tasks are listed without torch

    # Flat, outputs stay in their order: with classes on the second axis, torch copies them.
    losses = functional.cross_entropy(
        outputs.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=-1
    ).view(targets.shape)
    return losses.sum(1) / (targets != -1).sum(1).clamp(min=1)


def _by_row(losses: "Tensor") -> "Tensor":
    return losses if losses.ndim == 1 else losses.flatten(1).mean(1)


def _fitting(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    """Returns outputs in the shape of targets; a single one a row may have an axis of its own."""
    if outputs.shape == targets.shape:
        return outputs
    # Broadcasting would compare each row with each other one.
    one = len(outputs) == len(targets) and outputs[0].numel() == targets[0].numel() == 1
    require(one, "outputs", tuple(outputs.shape), f"of the targets' shape {tuple(targets.shape)}")
    return outputs.reshape(targets.shape)


CLASSIFICATION = Task(
    "classification",
    _negative_log_likelihood,
    "classes",
    "accuracy",
    most=104.0,  # nats: of a probability that float32 cannot tell from 0, below 2^-149
    meaning="mean negative log-likelihood, in nats",
)
REGRESSION = Task("regression", _squared, "values", "rmse", meaning="mean squared error")

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        CLASSIFICATION,
        REGRESSION,
        Task(
            "multi-label",
            _binary,
            "labels",
            "label-accuracy",
            most=104.0,
            meaning="mean negative log-likelihood of a label, in nats",
        ),
        Task(
            "next-token",
            _next_token,
            "tokens",
            "token-accuracy",
            most=104.0,
            meaning="mean negative log-likelihood of a token, in nats",
        ),
    )
}
"""Every task, by its name."""

LOSSES: dict[str, RowLoss] = {}
"""Losses of users, by name."""


def task_of(name: str, loss: str = "") -> Task:
    """Returns a task, with a loss of a user's in place of its own if one is named."""
    task = TASKS[name]
    if not loss:
        return task
    return task._replace(loss=LOSSES[loss], low=-inf, most=inf, meaning=f"mean {loss}")


def loss(function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """Makes a function known as a loss, by its name; to be used as a decorator.

    It is given outputs (k, ...) and targets (k, ...) of a batch, and returns a loss for each row,
    (k,); or for each number of a row, (k, ...), of which the mean is taken; or, as torch's losses
    do by default, one for all rows. Of a function with an argument ``reduction``, as torch's have,
    every row's losses are asked for.

    Args:
        function: The loss.
        name: What it is called in settings; by default as the function, with ``-`` for ``_``.
    """
    name = name or getattr(function, "__name__", type(function).__name__).replace("_", "-")
    LOSSES.pop(name, None)
    LOSSES[name] = _by_rows(function)
    return function


def _by_rows(function: Callable[..., Any]) -> RowLoss:
    reduces = "reduction" in inspect.signature(function).parameters
    given = {"reduction": "none"} if reduces else {}

    def rows(outputs: "Tensor", targets: "Tensor") -> "Tensor":
        single = getattr(outputs, "shape", ()) == (*targets.shape, 1)
        # Without this, torch compares each row with each other one.
        outputs = outputs.squeeze(-1) if single else outputs
        found: Tensor = function(outputs, targets, **given)
        if found.ndim == 0:  # one row after the other, as batches of one
            from torch.func import vmap  # noqa: PLC0415 - tasks are listed without torch

            found = vmap(lambda out, target: function(out[None], target[None]))(outputs, targets)
        fits = found.ndim > 0 and len(found) == len(targets)
        shapes = f"{tuple(outputs.shape)} and {tuple(targets.shape)}"
        require(fits, "a loss", tuple(found.shape), f"one for each row, of outputs {shapes}")
        return _by_row(found)

    return rows
