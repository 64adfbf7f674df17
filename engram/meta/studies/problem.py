"""The protocol of a sweep's problem: few-shot tasks, their rows, and a meta-model's error."""

from typing import Any

from torch import Tensor

from engram.cohort.stacked_models import Layout
from engram.core.derivatives import LossWithDerivatives
from engram.core.streams import Stream, torch_generator
from engram.core.types import Batch, Params
from engram.networks.base import Model


class Problem:
    """Training tasks, and tests on unseen ones. Models of r runs are stacked: (r, d)."""

    tasks: int  # number of training tasks, n
    network: Model  # the network that learns them
    layout: Layout  # layout of its flat parameters
    loss: LossWithDerivatives  # the stacked loss of flat parameters
    matching: LossWithDerivatives | None = None  # ProtoNet's loss, if there are classes

    def start(self, seed: int) -> Params:
        """Returns a seed's initial network."""
        return self.network.init(torch_generator(seed, Stream.MODEL))

    def batch(self, tasks: Tensor, uniforms: Tensor) -> Batch:
        """Returns rows of training tasks (r, b), one for each uniform number (r, b, k)."""
        raise NotImplementedError

    def error(self, w: Params, method: str) -> Tensor:
        """Returns each meta-model's error (r,) on the training tasks after adapting to them."""
        raise NotImplementedError

    def measure(self, w: Params, method: str) -> list[dict[str, Any]]:
        """Returns each meta-model's test results, for JSON."""
        raise NotImplementedError
