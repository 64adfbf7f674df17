"""Whether a network's outputs, a task's targets and its loss go together."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from engram.checks import require
from engram.models.base import Inputs, Model
from engram.tasks import Task
from engram.types import Params

__all__ = ["check_fit"]


def check_fit(model: Model, params: Params, task: Task, example: Inputs, outputs: int) -> None:
    """Computes the loss of some rows.

    Args:
        model: The network.
        params: Its parameters, whatever they are.
        task: What it is to learn.
        example: Some rows of inputs.
        outputs: Number of classes, or of values or labels to predict.

    Raises:
        ValueError: If outputs and targets do not fit each other; the message has both shapes.
    """
    with torch.no_grad():
        found = model.apply(params, example)
        targets = _targets(task, found, outputs)
        shapes = f"{_shapes(found)}, and targets {tuple(targets.shape)}"
        if task.targets in ("classes", "tokens") and isinstance(found, Tensor):
            axes = 2 if task.targets == "classes" else 3
            fits = found.ndim == axes and found.shape[-1] >= outputs
            wanted = f"of {axes} axes, the last of {outputs} classes or more, for {task.name}"
            require(fits, "outputs", shapes, wanted)
        try:
            losses = task.loss(found, targets)
        except Exception as error:  # a loss may be anybody's
            raise ValueError(
                f"the loss must take outputs of shape {shapes}: {type(error).__name__}: {error}"
            ) from error
    require(losses.shape == (2,), "a loss", tuple(losses.shape), f"(2,), of outputs {shapes}")


def _targets(task: Task, found: Any, outputs: int) -> Tensor:
    """Returns targets of two rows."""
    if task.targets == "classes":
        return torch.zeros(2, dtype=torch.int64)
    if task.targets == "tokens":
        return torch.zeros(found.shape[:2], dtype=torch.int64)
    if task.targets == "values" and outputs == 1:
        return torch.zeros(2)
    return torch.zeros(2, outputs)


def _shapes(found: Any) -> Any:
    return tree_map(lambda leaf: tuple(leaf.shape), found)
