"""What a sweep learns: few-shot tasks, their rows, and how good a meta-model is for them."""

from typing import Any

from torch import Tensor

from engram.derivatives import LossWithDerivatives
from engram.models import Model
from engram.stacks import Layout
from engram.types import Batch, Params
from federation.streams import Stream, torch_generator

__all__ = ["Problem"]


class Problem:
    """Training tasks, and tests on unseen ones. Models of r runs are stacked: (r, d).

    Attributes:
        tasks: Number of training tasks, n.
        network: What learns them.
        layout: The network's.
        loss: The stacked loss, of flat parameters.
        matching: ProtoNet's loss, where there are classes.
    """

    tasks: int
    network: Model
    layout: Layout
    loss: LossWithDerivatives
    matching: LossWithDerivatives | None = None

    def start(self, seed: int) -> Params:
        """Returns the network that a seed begins with."""
        return self.network.init(torch_generator(seed, Stream.MODEL))

    def batch(self, tasks: Tensor, uniforms: Tensor) -> Batch:
        """Returns rows of training tasks (r, b), one for each uniform number (r, b, k)."""
        raise NotImplementedError

    def error(self, w: Params, method: str) -> Tensor:
        """Returns each meta-model's error (r,) on the training tasks after adapting to them."""
        raise NotImplementedError

    def measure(self, w: Params, method: str) -> list[dict[str, Any]]:
        """Returns what tests say of each meta-model, as JSON has it."""
        raise NotImplementedError
