"""Twins of a user's optimizer: they move the other models of a method as it moves the first."""

from collections import OrderedDict, defaultdict

from torch import nn
from torch.optim import LBFGS, Optimizer

from engram.core.method import Method
from engram.core.types import Params
from engram.settings.errors import Refused


class Twin:
    """A copy of an optimizer, with moments of its own, for another model.

    Args:
        optimizer: The optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._shadow: Params = {}
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
        shadow, names = self._shadow, {id(mine[n]): n for n in direction}
        for n, d in direction.items():
            start = w[n].to(mine[n].dtype).clone()  # the step is in place
            if n not in shadow:
                shadow[n] = nn.Parameter(start)
            shadow[n].data, shadow[n].grad = start, d.to(start.dtype)
        self._twin.param_groups = [
            group | {"params": [shadow[names[id(p)]] for p in group["params"] if id(p) in names]}
            for group in optimizer.param_groups
        ]
        self._twin.step()
        return {n: shadow[n].detach().float() for n in direction}


def check_optimizer(optimizer: Optimizer, method: Method, name: str) -> None:
    """Refuses an optimizer that takes other steps than a method's of this name.

    Raises:
        Refused: It takes several gradients a step, or decays weights beside control variates.
    """
    if isinstance(optimizer, LBFGS):
        raise Refused(f"{name}: the optimizer must take one gradient a step, got LBFGS")
    decay = max(group.get("weight_decay", 0.0) for group in optimizer.param_groups)
    slots = (*method.client.start, *method.client.sends)
    if decay and any(method.kinds[slot] == "difference" for slot in slots):
        words = "weight_decay must be 0, for its control variates are of the loss alone"
        raise Refused(f"{name}: {words}; add it to the loss, got {decay}")
