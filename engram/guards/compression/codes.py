"""Ways to write an array in fewer bytes."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from engram.core.streams import Stream, torch_generator

CODE: Final = "code"
"""Name of the array of bytes, in place of slots, in updates and in messages."""

Shape = tuple[int, ...]
Code = tuple[Tensor, ...]

Draw = Callable[[int], Tensor]
"""``size -> (size,)``: numbers from the uniform distribution on [0, 1), in float32."""


class Coder(NamedTuple):
    """A way to write one array of float32.

    Attributes:
        encode: ``(x, draw) -> code``. Called under ``vmap``, and with arrays of shapes only.
        decode: ``(code, shape) -> x``, under ``vmap``, too.
        check: Raises ``ValueError`` if a code, whose arrays have the right shapes, is none.
    """

    encode: Callable[[Tensor, Draw], Code]
    decode: Callable[[Code, Shape], Tensor]
    check: Callable[[Code, Shape], None] = lambda code, shape: None


PLAIN: Final = Coder(lambda x, draw: (x,), lambda code, shape: code[0])


def uniform(seed: int, stream: Stream, *keys: int) -> Draw:
    """Returns a source of numbers, a function of its keys: a repeated round rounds alike."""
    source: Any = torch_generator(seed, stream, *keys)
    return lambda size: torch.rand(size, generator=source)
