"""Networks that are timed as modules; PyTorch is all that is needed to make them."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

TOKENS: Final = 80
LENGTH: Final = 80
STEP_SIZE: Final = 0.05


class _Cnn(nn.Module):
    """Two 3x3 convolutions with group norm and pooling, then a dense layer."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, first, 3, padding=1), nn.GroupNorm(4, first), nn.ReLU()),
            nn.MaxPool2d(2),
            *(nn.Conv2d(first, second, 3, padding=1), nn.GroupNorm(4, second), nn.ReLU()),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(second * 49, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(x).flatten(1))
        return found


class _Residual(nn.Module):
    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(given, width, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(4, width), nn.GroupNorm(4, width)])
        wider = given != width
        self.skip = nn.Conv2d(given, width, 1, stride, bias=False) if wider else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norms[1](self.second(self.norms[0](self.first(x)).relu()))
        found: Tensor = (inner + self.skip(x)).relu()
        return found


class _ResNet8(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Sequential(
            nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(4, 16), nn.ReLU()
        )
        self.blocks = nn.Sequential(
            _Residual(16, 16, 1), _Residual(16, 32, 2), _Residual(32, 64, 2)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.blocks(self.start(x)).mean((2, 3)))
        return found


class _CharacterLstm(nn.Module):
    """The network of LEAF's Shakespeare, with 2 layers of 128."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 8)
        self.net = nn.LSTM(8, 128, 2, batch_first=True)
        self.head = nn.Linear(128, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.head(self.net(self.embed(tokens))[0])
        return found


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 64)
        self.places = nn.Parameter(torch.zeros(LENGTH, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True)
        self.net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        seen = self.net(self.embed(tokens) + self.places[:length], mask=mask, is_causal=True)
        found: Tensor = self.head(seen)
        return found


def layers(shape: Sequence[int], channels: Sequence[int], widths: Sequence[int]) -> nn.Sequential:
    """Returns 5x5 convolutions of so many channels, each with pooling, then dense layers."""
    made: list[nn.Module] = []
    given, *size = shape
    for width in channels:
        made += [nn.Conv2d(given, width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        given, size = width, [side // 2 for side in size]
    made.append(nn.Flatten())
    given *= math.prod(size)
    for width in widths[:-1]:
        made += [nn.Linear(given, width), nn.ReLU()]
        given = width
    return nn.Sequential(*made, nn.Linear(given, widths[-1]))


class Case(NamedTuple):
    """A network, its data, and its steps in a round."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of a row
    steps: int
    batch: int
    channels: tuple[int, ...] = ()  # of convolutions
    recurrent: bool = False
    widths: tuple[int, ...] = ()  # of dense layers, if these are ``layers``
    clients: int = 20
    outputs: int = 10


OWN: Final = {
    "cnn 8-16": Case(lambda: _Cnn(8, 16), (1, 28, 28), 10, 5, (8, 16)),
    "cnn 16-32": Case(lambda: _Cnn(16, 32), (1, 28, 28), 10, 10, (16, 32)),
    "resnet-8": Case(_ResNet8, (3, 32, 32), 5, 10),
    "lstm 2x128": Case(_CharacterLstm, (LENGTH,), 5, 10, recurrent=True, outputs=TOKENS),
    "transformer of 2": Case(_Transformer, (LENGTH,), 5, 10, outputs=TOKENS),
}
"""Cases of ``benchmarks.contenders`` whose networks are modules."""

WORKS: Final = {
    "mlp 40-40": Case(
        *(partial(layers, (784,), (), (40, 40, 10)), (784,), 10, 5), widths=(40, 40, 10)
    ),
    "cnn 32-64": Case(
        *(partial(layers, (1, 28, 28), (32, 64), (512, 10)), (1, 28, 28), 20, 10),
        channels=(32, 64),
        widths=(512, 10),
        clients=10,
    ),
}
"""Cases whose networks Engram has, too."""


def loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy, of classes (B, C) and (B,) or of tokens (B, T, C) and (B, T)."""
    return functional.cross_entropy(outputs.flatten(0, -2), y.flatten())
