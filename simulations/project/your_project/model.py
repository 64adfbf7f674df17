"""The network."""

import engram
from torch import Tensor, nn


@engram.model
class Net(nn.Module):
    """A network for rows of eight numbers, of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Returns a row's outputs, one for each class."""
        outputs: Tensor = self.head(self.body(x))
        return outputs
