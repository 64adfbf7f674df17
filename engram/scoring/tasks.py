"""Tasks that networks are trained for: a loss of a batch, and metrics to score models by.

A task is known by its name. The losses of the tasks' own are means over rows, so that rows can be
weighted, and padding left out. A loss of a user's is a function of a batch, and is called on whole
batches, as in a loop of plain torch.
"""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from engram.core.checks import require
from engram.core.process_modes import Registry
from engram.scoring.metrics import IGNORED, Metric, Targets, fitted, name_of, torch_functional
from engram.scoring.survival_losses import PAIRED, discrete_time

# Listing tasks, or mistyping one, loads no torch.
if TYPE_CHECKING:
    from torch import Tensor

RowLoss = Callable[["Tensor", "Tensor"], "Tensor"]
"""``(outputs (k, ...), targets (k, ...)) -> losses (k,)``."""


class Task(NamedTuple):
    """A learning problem: targets, loss and metrics.

    Attributes:
        name: What it is called.
        loss: What it lowers: ``(outputs (k, ...), targets (k, ...)) -> loss`` of a batch, ().
        rows: The loss of each row, whose mean ``loss`` is; None if that is not known.
        targets: What a row's targets are: ``classes`` (a class), ``values`` (numbers), ``labels``
            (each 0 or 1, any number of them 1), ``tokens`` (a class for each position, -1 for
            none), or ``times`` (a time, and 1 if it is that of an event).
        metrics: What models are scored by, unless somebody says otherwise; with commas.
        low: Lowest possible loss.
        most: As ``Metric.most``, of the loss.
        meaning: What the loss is, in a few words.
        own: The name of a user's loss that stands in place of the task's; empty if none does.
        vectorizes: Whether ``torch.func.vmap`` can run the loss, for the batches of many clients.
    """

    name: str
    loss: "Callable[..., Tensor]"
    rows: RowLoss | None
    targets: Targets
    metrics: str
    low: float = 0.0
    most: float = inf
    meaning: str = "mean loss"
    own: str = ""
    vectorizes: bool = True

    @property
    def metric(self) -> Metric:
        """The loss as a metric."""
        return Metric(
            "loss",
            self.rows or self.loss,
            low=self.low,
            better="lower",
            meaning=self.meaning,
            by_row=self.rows is not None,
            partial=self.rows is None,  # a client may have no row that a user's loss counts
            most=self.most,
        )


def _cross_entropy(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    found: Tensor = torch_functional().cross_entropy(outputs, targets)  # one operation for all rows
    return found


def _mean(rows: RowLoss) -> "Callable[..., Tensor]":
    return lambda outputs, targets: rows(outputs, targets).mean()


def _negative_log_likelihood(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    losses: Tensor = torch_functional().cross_entropy(outputs, targets, reduction="none")
    if losses.ndim == 1:
        return losses
    return losses.flatten(1).sum(1) / (targets != IGNORED).flatten(1).sum(1).clamp(min=1)


def _squared(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    return _by_row((_fitting(outputs, targets) - targets).square())


def _binary(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    outputs = _fitting(outputs, targets)
    loss = torch_functional().binary_cross_entropy_with_logits
    return _by_row(loss(outputs, targets.to(outputs), reduction="none"))


def _next_token(outputs: "Tensor", targets: "Tensor") -> "Tensor":
    # Flat, outputs stay in their order: with classes on the second axis, torch copies them.
    losses: Tensor = (
        torch_functional()
        .cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=-1)
        .view(targets.shape)
    )
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
    _cross_entropy,
    _negative_log_likelihood,
    "classes",
    "accuracy",
    most=104.0,  # nats: of a probability that float32 cannot tell from 0, below 2^-149
    meaning="mean negative log-likelihood, in nats",
)
REGRESSION = Task(
    "regression", _mean(_squared), _squared, "values", "rmse", meaning="mean squared error"
)

SURVIVAL = Task(
    "survival",
    _mean(discrete_time),
    discrete_time,
    "times",
    "c-index",
    meaning="mean negative log-likelihood of a time, in nats",
)

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        CLASSIFICATION,
        REGRESSION,
        SURVIVAL,
        Task(
            "multi-label",
            _mean(_binary),
            _binary,
            "labels",
            "label-accuracy",
            most=104.0,
            meaning="mean negative log-likelihood of a label, in nats",
        ),
        Task(
            "next-token",
            _mean(_next_token),
            _next_token,
            "tokens",
            "token-accuracy",
            most=104.0,
            meaning="mean negative log-likelihood of a token, in nats",
        ),
    )
}
"""Every task, by its name."""

LOSSES: "Registry[Loss]" = Registry()
"""Losses of whole batches, by name: users', and those of survival that compare rows."""


def task_of(name: str, loss: str = "") -> Task:
    """Returns a task, with a loss of a user's in place of its own if one is named."""
    task = TASKS[name]
    if not loss:
        return task
    own = LOSSES[loss]
    return task._replace(loss=own, rows=None, low=-inf, most=inf, meaning=f"mean {loss}", own=loss)


def loss(function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """Makes a function known as a loss, by its name; to be used as a decorator.

    It is given outputs (k, ...) and targets (k, ...) of a batch, as a loop of plain torch would
    call it, and returns the batch's loss; or one for each row, or for each number of a row, (k,
    ...), of which the mean is taken. A module, such as ``torch.nn.CrossEntropyLoss(weight=...)``,
    is a function, too.

    Args:
        function: The loss.
        name: What it is called in settings; by default as the function, with ``-`` for ``_``.
    """
    name = name or name_of(function)
    LOSSES[name] = Loss(function)
    return function


class Loss:
    """A loss of a user's, as a function of a batch that returns one number.

    Args:
        function: The loss, as ``engram.loss`` takes it.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @property
    def learns(self) -> bool:
        """Whether it is a module with parameters that want training."""
        parameters = getattr(self._function, "parameters", tuple)
        return any(leaf.requires_grad for leaf in parameters())

    def __call__(self, outputs: Any, targets: "Tensor") -> "Tensor":
        """Returns the loss of a batch, of shape ()."""
        found = self._function(fitted(outputs, targets), targets)
        shape = tuple(getattr(found, "shape", ())) if hasattr(found, "ndim") else None
        one_or_each = shape is not None and (found.numel() == 1 or shape[0] == len(targets))
        expected = f"one number, or one for each of {len(targets)} rows"
        require(one_or_each, "a loss", type(found).__name__ if shape is None else shape, expected)
        mean: Tensor = found if found.ndim == 0 else found.mean()
        return mean


for _name, _function in PAIRED.items():
    loss(_function, _name)
