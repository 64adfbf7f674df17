"""Whether a network's outputs, a task's targets and its loss go together."""

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils._pytree import tree_leaves, tree_map

from engram.core.checks import require
from engram.core.tree import stacked
from engram.core.types import Params
from engram.networks.base import Inputs, Model, Outputs
from engram.networks.base import called as outputs_of
from engram.scoring.tasks import Loss, Task

_WANTED: Final = {
    "classes": "of 2 axes or more, the second of {} classes (if there are more, set num-classes)",
    "tokens": "of 3 axes or more, the last of {} classes or more",
    "times": "of 2 axes, the second of {} numbers (cells of time; 1 for Cox's model)",
}


def check_fit(model: Model, params: Params, task: Task, example: Inputs, outputs: int) -> None:
    """Computes the task's own loss of some rows; a user's is ``tried`` where there are targets.

    Raises:
        ValueError: If outputs and targets do not fit each other; the message has both shapes, and
            names the layer that gives the outputs.
    """
    if task.own:
        return
    with torch.no_grad():
        found = model.apply(params, example)
        targets = _targets(task, found, outputs)
        shapes = _in_words(found, targets)
        if isinstance(found, Tensor) and not _fits(task, found, outputs):
            wanted = _WANTED[task.targets].format(outputs)
            layer = _last_layer(model, params, example)
            raise ValueError(f"outputs must be {wanted}, for {task.name}, got {shapes}{layer}")
        try:
            task.loss(found, targets)
        except Exception as error:  # outputs may be anything that a module returns
            layer = _last_layer(model, params, example)
            raise ValueError(_refused("the loss", shapes, error) + layer) from error
        key = torch.zeros((), dtype=torch.int64)
        trained = found if model.train is None else model.train(params, example, key)
        kind = f"a {type(trained).__name__}"
        expected = "one tensor, as in evaluation, or the loss a function of yours that takes both"
        require(isinstance(trained, Tensor), "outputs in training", kind, expected)


def tried(task: Task, outputs: Outputs, targets: Tensor) -> Task:
    """Calls a task's loss on a batch, as training will.

    Args:
        task: The task, whose loss may be anybody's.
        outputs: A network's, in training, (k, ...).
        targets: Those of the same rows, (k, ...).

    Returns:
        The task, with whether ``vmap`` can run its loss.

    Raises:
        ValueError: If the loss does not take them, cannot be differentiated, or does not depend on
            them alone.
    """
    called, shapes = f"loss {task.own}" if task.own else "the loss", _in_words(outputs, targets)
    if isinstance(task.loss, Loss) and task.loss.learns:
        raise ValueError(f"{called} must have no parameters of its own: nothing would train them")
    leaves = tree_map(lambda x: x.detach().requires_grad_(x.is_floating_point()), outputs)
    try:
        value, again = task.loss(leaves, targets), task.loss(leaves, targets)
    except Exception as error:  # a loss may be anybody's
        raise ValueError(_refused(called, shapes, error)) from error
    if not torch.equal(value.nan_to_num(), again.nan_to_num()):
        raise ValueError(f"{called} must be the same for the same outputs and targets")
    if not value.requires_grad and any(leaf.requires_grad for leaf in tree_leaves(leaves)):
        raise ValueError(f"{called} must have a gradient by the outputs: torch finds none")
    return task._replace(vectorizes=_vectorizes(task, outputs, targets)) if task.own else task


def _vectorizes(task: Task, outputs: Outputs, targets: Tensor) -> bool:
    pair = [tree_map(torch.Tensor.detach, outputs), tree_map(lambda x: x.detach().flip(0), outputs)]
    own = [targets, targets.flip(0)]

    def both(z: Outputs, y: Tensor) -> tuple[Outputs, Tensor]:
        return grad(task.loss)(z, y), task.loss(z, y)

    try:
        alone = [both(z, y) for z, y in zip(pair, own, strict=True)]
        together = vmap(both)(stacked(pair), torch.stack(own))
    except Exception:  # it looks at values, or has no rule: it may be anything that a loss does
        return False
    pairs = zip(tree_leaves(together), tree_leaves(stacked(alone)), strict=True)
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True) for a, b in pairs)


def _targets(task: Task, found: Any, outputs: int) -> Tensor:
    """Returns targets of two rows, with as many axes as the outputs need."""
    several = isinstance(found, Tensor) and found.ndim > 2
    if task.targets == "times":
        return torch.zeros(2, 2)
    if task.targets == "classes":
        return torch.zeros(2, *(found.shape[2:] if several else ()), dtype=torch.int64)
    if task.targets == "tokens":
        return torch.zeros(found.shape[:2], dtype=torch.int64)
    if several and found[0].numel() == outputs:
        return torch.zeros(found.shape)
    return torch.zeros(2) if task.targets == "values" and outputs == 1 else torch.zeros(2, outputs)


def _in_words(outputs: Any, targets: Tensor) -> str:
    return f"{tree_map(lambda x: tuple(x.shape), outputs)}, and targets {tuple(targets.shape)}"


def _refused(called: str, shapes: str, error: Exception) -> str:
    return f"{called} must take outputs of shape {shapes}: {type(error).__name__}: {error}"


def _fits(task: Task, found: Tensor, outputs: int) -> bool:
    if task.targets == "classes":
        return found.ndim >= 2 and found.shape[1] == outputs
    if task.targets == "times":
        return found.shape[1:] == (outputs,)
    return task.targets != "tokens" or (found.ndim >= 3 and found.shape[-1] >= outputs)


def _last_layer(model: Model, params: Params, example: Inputs) -> str:
    """Names the last layer that a module calls; "" without a module."""
    if model.module is None:
        return ""
    module, last = model.module(params), ""

    def note(name: str, layer: nn.Module, inputs: Any, outputs: Any) -> None:
        nonlocal last
        del inputs, outputs
        last = f"; the last layer is {type(layer).__name__}{name and f' {name!r}'}"

    for name, layer in module.named_modules():
        if not any(layer.children()):
            layer.register_forward_hook(partial(note, name))
    outputs_of(module, example)
    return last
