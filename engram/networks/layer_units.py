"""Networks that compute in standardized units, and take and give rows in the user's own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from engram.core.standardization import Standard, Units
from engram.core.types import Params
from engram.networks.base import Inputs, Model, Outputs, called
from engram.scoring.tasks import Task


class InUnits(nn.Module):
    """A network between standardized units and the user's own.

    Args:
        network: The network.
        units: The units, of which ``input_mean``, ``input_deviation``, ``target_mean`` and
            ``target_deviation`` are buffers, as far as they are there.
    """

    input_mean: Tensor
    input_deviation: Tensor
    target_mean: Tensor
    target_deviation: Tensor

    def __init__(self, network: nn.Module, units: Units) -> None:
        super().__init__()
        self.network = network
        self._inputs, self._targets = units.inputs is not None, units.targets is not None
        if units.inputs is not None:
            self._hold("input", units.inputs, torch.float64)
        if units.targets is not None:
            self._hold("target", units.targets, torch.float32)

    def _hold(self, name: str, standard: Standard, dtype: torch.dtype) -> None:
        self.register_buffer(f"{name}_mean", torch.tensor(standard.mean, dtype=dtype))
        self.register_buffer(f"{name}_deviation", torch.tensor(standard.deviation, dtype=dtype))

    def forward(self, *args: Any, **named: Any) -> Outputs:
        """Returns outputs in the targets' units, of inputs in theirs."""
        if self._inputs:  # of one tensor
            (x,) = args
            # Rows may be in float64, of which the network is not.
            dtype = x.dtype
            if dtype == torch.float64:
                dtype = next(self.network.parameters(), x).dtype
            args = (((x.double() - self.input_mean) / self.input_deviation).to(dtype),)
        outputs = called(self.network, named or args)
        return self.target_mean + self.target_deviation * outputs if self._targets else outputs


def with_units(model: Model, units: Units) -> Model:
    """Returns the network with outputs in the targets' units: mean + deviation * raw.

    Its parameters stay those of the raw network. It takes inputs that are standardized before; only
    ``module`` gives a plain module that takes them in their own units.
    """
    targets, make = units.targets, model.module
    if units._replace(text=None) == Units():
        return model

    def module(params: Params) -> nn.Module:
        assert make is not None  # for mypy: it is asked for below
        return InUnits(make(params), units).eval()

    model = model._replace(module=make and module)
    if targets is None:
        return model

    def restored(function: Callable[..., Tensor] | None) -> Any:
        return function and (lambda *given: targets.restored(function(*given)))

    inner = model.represent

    def represent(params: Params, inputs: Inputs, *given: Any) -> tuple[Outputs, Tensor]:
        assert inner is not None  # for mypy: it is asked for below
        outputs, z = inner(params, inputs, *given)
        return targets.restored(outputs), z

    return model._replace(
        apply=restored(model.apply),
        train=restored(model.train),
        together=restored(model.together),
        represent=inner and represent,
    )


def converted(task: Task, convert: Callable[[Tensor], Tensor] | None) -> Task:
    """Returns the task with losses of converted outputs and targets; as it is for None.

    By ``Standard.scaled``, a loss of the network's outputs has the value of standardized ones; by
    ``Standard.restored``, one of standardized outputs is in the targets' units.
    """
    if convert is None:
        return task

    def after(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda outputs, targets: loss(convert(outputs), convert(targets))

    return task._replace(loss=after(task.loss), rows=task.rows and after(task.rows))
