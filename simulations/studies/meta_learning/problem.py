"""What a sweep learns: few-shot tasks, their rows, and how good a meta-model is for them."""

from typing import Any, Protocol

from torch import Tensor

from engram.derivatives import Differentiated
from engram.stacks import Layout
from engram.types import Batch, Params

__all__ = ["Problem"]


class Problem(Protocol):
    """Training tasks, and tests on unseen ones. Models of r runs are stacked: (r, d)."""

    @property
    def tasks(self) -> int:
        """Number of training tasks, n."""

    @property
    def loss(self) -> Differentiated:
        """The stacked loss, of flat parameters."""

    @property
    def matching(self) -> Differentiated | None:
        """ProtoNet's loss, where there are classes."""

    @property
    def layout(self) -> Layout:
        """The network's."""

    def start(self, seed: int) -> Params:
        """Returns the network that a seed begins with."""

    def batch(self, tasks: Tensor, uniforms: Tensor) -> Batch:
        """Returns rows of training tasks (r, b), one for each uniform number (r, b, k)."""

    def error(self, w: Params, method: str) -> Tensor:
        """Returns each meta-model's error (r,) on the training tasks after adapting to them."""

    def measure(self, w: Params, method: str) -> list[dict[str, Any]]:
        """Returns what tests say of each meta-model, as JSON has it."""
