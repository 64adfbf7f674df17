"""The largest changes alone. Stich, Cordonnier, Jaggi. NeurIPS 2018."""

from functools import cache
from math import ceil, prod

import torch
from torch import Tensor
from torch.nn.functional import pad

from engram.guards.compression.codes import Code, Coder, Draw, Shape, unfilled


@cache
def top_k(share: float) -> Coder:
    """Keeps the largest numbers and their places; the others are zero.

    Of an array of n numbers, ceil(share n) are kept, with share in (0, 1]; of equal ones the first.
    A place takes as many whole bytes as n - 1 does. All are sent where they take no more bytes.
    """

    def kept(count: int) -> int:
        some = ceil(share * count)
        return some if (4 + _width(count)) * some < 4 * count else count

    def form(shape: Shape) -> Code:
        count = prod(shape)
        if (some := kept(count)) == count:
            return (unfilled(shape),)
        return unfilled((some, _width(count)), torch.uint8), unfilled((some,))

    def encode(x: Tensor, _: Draw) -> Code:
        y, count = x.reshape(-1), x.numel()
        if kept(count) == count:
            return (x,)
        order = y.abs().sort(descending=True, stable=True).indices
        at = order[: kept(count)].sort().values
        places = at.to(torch.int32).view(torch.uint8).reshape(-1, 4)
        return places[:, : _width(count)], y[at]

    def decode(code: Code, shape: Shape) -> Tensor:
        if len(code) == 1:
            return code[0]
        (places, values), x = code, torch.zeros(prod(shape))
        at = pad(places, (0, 4 - places.shape[1])).view(torch.int32).reshape(-1).long()
        if not ((at >= 0) & (at < len(x))).all() or not (at.diff() > 0).all():
            raise ValueError(f"places must be ascending, from 0 to {len(x) - 1}")
        x[at] = values
        return x.reshape(shape)

    return Coder(form, encode, decode)


def _width(count: int) -> int:
    return max(1, -(-(count - 1).bit_length() // 8)) if count else 1
