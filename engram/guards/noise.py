"""Sources of the noise of differential privacy.

Noise hides an update only from those who cannot compute it. Every node knows the experiment's seed
and the round's number, so anybody could subtract noise from the platform's random streams. On
real nodes, clients and server therefore draw ``secret_noise``. Simulations and tests, which have
nobody to protect and should be reproducible, ask for ``simulated_noise``.
"""

import os
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engram.core.streams import Stream, generator


class Noise(Protocol):
    """A source of standard normal numbers."""

    def __call__(self, size: int, stream: Stream, *keys: int) -> Tensor:
        """Returns standard normal numbers, shape (size,) in float32, for a purpose and its keys."""


def secret_noise(size: int, stream: Stream, *keys: int) -> Tensor:
    """Draws from the operating system's entropy, never the same twice.

    No pseudo-random generator is used: where an update is zero its noise is seen as it is, and
    from that an ordinary generator's state, and so the remaining noise, could be computed.
    """
    del stream, keys
    normal: Tensor = torch.special.ndtri(torch.from_numpy(uniform(os.urandom(8 * size))))
    return normal.float()


def uniform(data: bytes) -> npt.NDArray[np.float64]:
    """Returns a uniform number in (0, 1) for each 8 bytes: one of 2^52 midpoints, never 0 or 1."""
    whole = np.frombuffer(data, dtype="<u8") >> np.uint64(12)
    return (whole.astype(np.float64) + 0.5) * 2.0**-52


def simulated_noise(seed: int) -> Noise:
    """Returns noise that is a function of ``(seed, stream, keys)``. It protects nobody."""

    def noise(size: int, stream: Stream, *keys: int) -> Tensor:
        drawn = generator(seed, stream, *keys).standard_normal(size, dtype=np.float32)
        return torch.from_numpy(drawn)

    return noise
