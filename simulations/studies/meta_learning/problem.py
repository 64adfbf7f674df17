"""What a sweep learns: few-shot tasks, their rows, and how good a meta-model is for them."""

from typing import Any

from torch import Tensor

from engram.derivatives import LossWithDerivatives
from engram.models import Model
from engram.stacks import Layout
from engram.types import Batch, Params
from federation.streams import Stream, torch_generator


class Problem:
    """Training tasks, and tests on unseen ones. Models of r runs are stacked: (r, d)."""

    tasks: int  # number of training tasks, n
    network: Model  # what learns them
    layout: Layout  # the network's
    loss: LossWithDerivatives  # the stacked loss, of flat parameters
    matching: LossWithDerivatives | None = None  # ProtoNet's loss, where there are classes

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
