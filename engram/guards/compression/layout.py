"""Arrays written one after the other, with error feedback.

What a coder Q leaves out, the residual e, is added to what is sent next (Seide et al. Interspeech
2014; Karimireddy et al. ICML 2019, Alg. 2) ::

    p_t = x_t + e_t,    sent_t = Q(p_t),    e_t+1 = p_t - sent_t

so that sums of what is sent and of what was to be sent differ by one residual, however long it goes
on: sum_t sent_t = sum_t x_t + e_1 - e_T+1.
"""

from collections.abc import Mapping, Set
from functools import lru_cache
from math import prod
from typing import NamedTuple, Self

import torch
from torch import Tensor

from engram.core.method import Kind, Slots
from engram.core.slots import flat
from engram.core.types import Params
from engram.guards.compression.codes import PLAIN, Code, Coder, Draw, Shape


@lru_cache(maxsize=4096)
def _form(coder: Coder, shape: Shape) -> Code:
    """Returns the code of an array of a shape, with shapes only."""
    return coder.encode(torch.empty(shape, device="meta"), lambda n: torch.empty(n, device="meta"))


class Layout(NamedTuple):
    """Arrays written one after the other."""

    coders: Mapping[str, Coder]  # how each is written, by path
    shapes: Mapping[str, Shape]  # their shapes, by the same paths

    @classmethod
    def of(cls, coder: Coder, kinds: Mapping[str, Kind], slots: Slots, running: Set[str]) -> Self:
        """Builds the layout of slots whose models and differences alone are in code.

        Statistics and running statistics are few numbers, and denominators and variances among
        them; they travel as they are, and exactly.
        """
        coders, shapes = dict[str, Coder](), dict[str, Shape]()
        for path, leaf in sorted(flat(slots).items()):
            slot, _, name = path.partition("/")
            shrunk = kinds[slot] != "statistic" and name not in running
            coders[path], shapes[path] = coder if shrunk else PLAIN, tuple(leaf.shape)
        return cls(coders, shapes)

    @property
    def size(self) -> int:
        """Bytes of all arrays."""
        forms = (_form(coder, self.shapes[path]) for path, coder in self.coders.items())
        return sum(part.nbytes for form in forms for part in form)

    @property
    def plain_size(self) -> int:
        """Bytes of all arrays as numbers of float32."""
        return sum(4 * prod(shape) for shape in self.shapes.values())

    @property
    def shrunk(self) -> list[str]:
        """Paths of the arrays that are not written as they are."""
        return [path for path, coder in self.coders.items() if coder != PLAIN]

    def encode(self, arrays: Params, residual: Params, draw: Draw) -> tuple[Tensor, Params, Params]:
        """Encodes arrays with error feedback.

        The residual e, by path, has the arrays that are not written as they are; it is empty at
        first.

        Returns:
            The bytes in uint8, the arrays that they decode to, and the next residual.
        """
        parts, sent, left = list[Tensor](), Params(), Params()
        for path, coder in self.coders.items():
            whole = arrays[path].float()
            if coder != PLAIN and path in residual:
                whole = whole + residual[path]
            code = coder.encode(whole, draw)
            parts += [part.reshape(-1).contiguous().view(torch.uint8) for part in code]
            sent[path] = coder.decode(code, self.shapes[path])
            if coder != PLAIN:
                left[path] = whole - sent[path]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.uint8), sent, left

    def decode(self, code: Tensor) -> Params:
        """Returns the arrays of ``encode``.

        Raises:
            ValueError: If the bytes are not those of such arrays.
        """
        if code.shape != (self.size,):
            raise ValueError(f"code must have {self.size} bytes, got {tuple(code.shape)}")
        found, at = Params(), 0
        for path, coder in self.coders.items():
            shape, parts = self.shapes[path], list[Tensor]()
            for part in _form(coder, shape):
                own = code[at : at + part.nbytes].clone()  # begins where its numbers may begin
                parts.append(own.view(part.dtype).reshape(part.shape))
                at += part.nbytes
            coder.check(tuple(parts), shape)
            found[path] = coder.decode(tuple(parts), shape)
        return found
