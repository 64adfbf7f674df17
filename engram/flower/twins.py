"""Twins of a user's optimizer: they move the other models of a method as it moves the first."""

from collections import OrderedDict, defaultdict

import torch
from torch.optim import Optimizer

from engram.core.types import Params


class Twin:
    """A copy of an optimizer, with moments of its own, for another model.

    Args:
        optimizer: The optimizer.
        params: The parameters that it moves, by name.
    """

    def __init__(self, optimizer: Optimizer, params: Params) -> None:
        self._shadow = {n: p.detach().clone().requires_grad_() for n, p in params.items()}
        self._twin = object.__new__(type(optimizer))
        shared = {k: v for k, v in vars(optimizer).items() if k != "step"}  # schedules wrap it
        vars(self._twin).update(shared, state=defaultdict(dict), param_groups=[])
        self._twin._optimizer_step_pre_hooks = OrderedDict()
        self._twin._optimizer_step_post_hooks = OrderedDict()

    def step(self, optimizer: Optimizer, mine: Params, w: Params, direction: Params) -> Params:
        """Returns arrays after a step from ``w``, with the optimizer's step sizes of now.

        Args:
            optimizer: The optimizer.
            mine: The parameters that it holds, by name.
            w: Arrays before the step.
            direction: Their gradients.
        """
        shadow, names = self._shadow, {id(p): n for n, p in mine.items()}
        self._twin.param_groups = [
            group
            | {"params": [shadow[n] for p in group["params"] if (n := names.get(id(p))) in shadow]}
            for group in optimizer.param_groups
        ]
        with torch.no_grad():
            for n, leaf in shadow.items():
                leaf.copy_(w[n])
                leaf.grad = direction[n].to(leaf.dtype)
        self._twin.step()
        return {n: x.detach().float().clone() for n, x in shadow.items()}
