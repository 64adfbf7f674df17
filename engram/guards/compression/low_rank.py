"""Matrices of lower rank."""

from functools import cache
from math import prod

import torch
from torch import Tensor

from engram.guards.compression.codes import Code, Coder, Draw, Shape, unfilled


@cache
def low_rank(rank: int) -> Coder:
    """Approximates matrices best by others of a rank >= 1: the singular value decomposition.

    Arrays of more axes are matrices of their first axis by all others. (Vogels et al. PowerSGD.
    NeurIPS 2019, approximate the same factors by a step of power iteration.) Where the factors
    would take as many bytes as the array, as for vectors, it is sent itself.
    """

    def sides(shape: Shape) -> tuple[int, int] | None:
        rows, columns = (shape[0], prod(shape[1:])) if shape else (1, 1)
        return (rows, columns) if rank * (rows + columns) < rows * columns else None

    def form(shape: Shape) -> Code:
        if (both := sides(shape)) is None:
            return (unfilled(shape),)
        return unfilled((both[0], rank)), unfilled((rank, both[1]))

    def encode(x: Tensor, _: Draw) -> Code:
        if (both := sides(tuple(x.shape))) is None:
            return (x,)
        left, values, right = torch.linalg.svd(x.reshape(both), full_matrices=False)
        return left[:, :rank] * values[:rank], right[:rank]

    def decode(code: Code, shape: Shape) -> Tensor:
        return code[0] if len(code) == 1 else (code[0] @ code[1]).reshape(shape)

    return Coder(form, encode, decode)
