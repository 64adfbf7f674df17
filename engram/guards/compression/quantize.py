"""Stochastic rounding to few levels. Alistarh et al. QSGD. NeurIPS 2017."""

from functools import cache
from math import prod
from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from engram.guards.compression.codes import Code, Coder, Draw, Shape, unfilled

_BUCKET: Final = {8: 256, 4: 64}  # numbers with a scale of their own, by bits


@cache
def quantized(bits: Literal[8, 4]) -> Coder:
    """Rounds numbers to whole multiples of a scale, at random.

    Numbers come in buckets of 256, or 64 for 4 bits. With the largest magnitude m of a bucket, and
    L = 127 levels of 8 bits, or 7 of 4, each number x becomes ::

        (m / L) floor(L x / m + u),    u ~ U[0, 1)

    whose expectation is x, whose error is below m / L, and whose variance is at most (m / 2L)^2.
    (QSGD divides by the bucket's norm in place of m.) Zeros stay zeros, and signs stay. With error
    feedback no residual exceeds 1 / (L - 1) of the largest number, so that it never grows.
    """
    levels, bucket = 2 ** (bits - 1) - 1, _BUCKET[bits]

    def rows(x: Tensor) -> Tensor:
        """Returns numbers in buckets, (buckets, numbers), the last one filled up with zeros."""
        return pad(x, (0, -len(x) % bucket)).reshape(-1, bucket)

    def form(shape: Shape) -> Code:
        count = prod(shape)
        return unfilled((-(-count // bucket),)), unfilled((-(-count * bits // 8),), torch.uint8)

    def encode(x: Tensor, draw: Draw) -> Code:
        count = x.numel()
        y = rows(x.reshape(-1))
        scale = y.abs().amax(1) / levels
        units = y / scale.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        units = units.reshape(-1)[:count]
        q = (units + draw(count)).floor().clamp(-levels, levels).to(torch.int8)
        if bits == 4:
            q = pad(q, (0, count % 2)).view(torch.uint8) & 0xF
            q = q[::2] | (q[1::2] << 4)
        return scale, q.view(torch.uint8)

    def decode(code: Code, shape: Shape) -> Tensor:
        (scale, q), count = code, prod(shape)
        if bits == 4:
            q = torch.stack([q & 0xF, q >> 4], 1).reshape(-1)[:count].view(torch.int8)
            q = torch.where(q > levels, q - 2 * (levels + 1), q)
        x = rows(q.view(torch.int8).float()) * scale[:, None]
        return x.reshape(-1)[:count].reshape(shape)

    return Coder(form, encode, decode)
