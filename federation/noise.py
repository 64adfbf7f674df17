"""Where the noise of differential privacy comes from.

Noise hides an update from those only who cannot compute it. The seed of an experiment is among
its settings, which every node knows, and so is a round's number: noise from the platform's random
streams could be subtracted by anybody. So what runs on nodes draws ``secret_noise``, on the
clients and on the server. In a simulation nobody is to be protected, and a run should give the
same numbers again: there, and in tests, it is ``simulated_noise``, which has to be asked for.
"""

import os
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from federation.streams import Stream, generator


class Noise(Protocol):
    """A source of standard normal numbers."""

    def __call__(self, size: int, stream: Stream, *keys: int) -> Tensor:
        """Returns so many of them, (size,) in float32, for a purpose and its keys."""


def secret_noise(size: int, stream: Stream, *keys: int) -> Tensor:
    """Draws from the operating system's secret entropy, never the same twice.

    Straight from its bytes: what a clipped update leaves unchanged shows some of its noise as it
    is, from which the state of an ordinary generator, and so the rest, could be computed.
    """
    del stream, keys
    whole = np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(12)
    # The middles of 2^52 equal parts of (0, 1), each exact in float64 and none of them 0 or 1.
    parts = torch.from_numpy((whole.astype(np.float64) + 0.5) * 2.0**-52)
    normal: Tensor = torch.special.ndtri(parts)
    return normal.float()


def simulated_noise(seed: int) -> Noise:
    """Returns noise that is a function of ``(seed, stream, keys)``. It protects nobody."""

    def noise(size: int, stream: Stream, *keys: int) -> Tensor:
        drawn = generator(seed, stream, *keys).standard_normal(size, dtype=np.float32)
        return torch.from_numpy(drawn)

    return noise
