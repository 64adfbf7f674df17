"""Arrays in fewer bytes: stochastic quantization, top-k and low rank, with error feedback.

A codec Q writes arrays of known shapes as bytes, whose number depends on the shapes alone. What it
leaves out, the residual e, is added to what is sent next (Seide et al. Interspeech 2014;
Karimireddy et al. ICML 2019, Alg. 2) ::

    p_t = x_t + e_t,    sent_t = Q(p_t),    e_t+1 = p_t - sent_t

so that sums of what is sent and of what was to be sent differ by one residual, however long it goes
on: sum_t sent_t = sum_t x_t + e_1 - e_T+1.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from engram.core.types import Params

_BUCKET: Final = {8: 256, 4: 64}  # numbers with a scale of their own, by bits
_FLOAT: Final = 4  # bytes of a float32

Draw = Callable[[int], Tensor]
"""``size -> (size,)``: numbers from the uniform distribution on [0, 1), in float32."""


class Coder(Protocol):
    """A way to write one array of float32 as bytes."""

    def size(self, shape: tuple[int, ...]) -> int:
        """Returns the number of bytes."""

    def encode(self, x: Tensor, draw: Draw) -> Tensor:
        """Returns the bytes of an array, (size,) in uint8."""

    def decode(self, code: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Returns the array of a shape.

        Raises:
            ValueError: If the bytes are not those of such an array.
        """


class Plain(NamedTuple):
    """The numbers themselves."""

    def size(self, shape: tuple[int, ...]) -> int:
        """As ``Coder.size``."""
        return _FLOAT * math.prod(shape)

    def encode(self, x: Tensor, draw: Draw) -> Tensor:
        """As ``Coder.encode``."""
        del draw
        return _bytes(x.reshape(-1))

    def decode(self, code: Tensor, shape: tuple[int, ...]) -> Tensor:
        """As ``Coder.decode``."""
        return _floats(code).reshape(shape)


PLAIN: Final = Plain()


class Quantized(NamedTuple):
    """Stochastic rounding to whole multiples of a scale (Alistarh et al. QSGD. NeurIPS 2017).

    Numbers come in buckets of 256, or 64 for 4 bits. With the largest magnitude m of a bucket, and
    L = 127 levels of 8 bits, or 7 of 4, each number x becomes ::

        (m / L) floor(L x / m + u),    u ~ U[0, 1)

    whose expectation is x, whose error is below m / L, and whose variance is at most (m / 2L)^2.
    (QSGD divides by the bucket's norm in place of m.) Zeros stay zeros, and signs stay. With error
    feedback no residual exceeds 1 / (L - 1) of the largest number, so that it never grows.
    """

    bits: int  # 8 or 4

    @property
    def levels(self) -> int:
        """The number L of levels on either side of zero."""
        return int(2 ** (self.bits - 1)) - 1

    def size(self, shape: tuple[int, ...]) -> int:
        """As ``Coder.size``."""
        count = math.prod(shape)
        return _FLOAT * self._buckets(count) + -(-count * self.bits // 8)

    def encode(self, x: Tensor, draw: Draw) -> Tensor:
        """As ``Coder.encode``."""
        count = x.numel()
        y = self._rows(x.reshape(-1), count)
        scale = y.abs().amax(1) / self.levels
        units = y / scale.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        units = units.reshape(-1)[:count]
        q = (units + draw(count)).floor_().clamp_(-self.levels, self.levels).to(torch.int8)
        if self.bits == 4:
            q = torch.nn.functional.pad(q, (0, count % 2)).view(torch.uint8) & 0xF
            q = q[::2] | (q[1::2] << 4)
        return torch.cat([_bytes(scale), q.view(torch.uint8)])

    def decode(self, code: Tensor, shape: tuple[int, ...]) -> Tensor:
        """As ``Coder.decode``."""
        count = math.prod(shape)
        head = _FLOAT * self._buckets(count)
        scale, q = _floats(code[:head]), code[head:]
        if self.bits == 4:
            q = torch.stack([q & 0xF, q >> 4], 1).reshape(-1)[:count].view(torch.int8)
            q = torch.where(q > self.levels, q - 2 * (self.levels + 1), q)
        y = self._rows(q.view(torch.int8).float(), count) * scale[:, None]
        return y.reshape(-1)[:count].reshape(shape)

    def _buckets(self, count: int) -> int:
        return -(-count // _BUCKET[self.bits])

    def _rows(self, x: Tensor, count: int) -> Tensor:
        """Returns numbers in buckets, (buckets, numbers), the last one filled up with zeros."""
        size, buckets = _BUCKET[self.bits], self._buckets(count)
        return torch.nn.functional.pad(x, (0, buckets * size - count)).reshape(buckets, size)


class TopK(NamedTuple):
    """The largest numbers and their places (Stich et al. NeurIPS 2018); the others are zero.

    Of an array of n numbers, ceil(share n) are kept; of equal ones the first. A place takes as many
    whole bytes as n - 1 does. Where all numbers would take no more bytes, all are sent.
    """

    share: float  # the share that is kept; in (0, 1]

    def kept(self, shape: tuple[int, ...]) -> int:
        """Returns the number of entries of an array that are sent."""
        count = math.prod(shape)
        kept = math.ceil(self.share * count)
        return kept if (_FLOAT + _width(count)) * kept < _FLOAT * count else count

    def size(self, shape: tuple[int, ...]) -> int:
        """As ``Coder.size``."""
        kept, count = self.kept(shape), math.prod(shape)
        return kept * (_FLOAT if kept == count else _FLOAT + _width(count))

    def encode(self, x: Tensor, draw: Draw) -> Tensor:
        """As ``Coder.encode``."""
        kept, y = self.kept(tuple(x.shape)), x.reshape(-1)
        if kept == x.numel():
            return PLAIN.encode(x, draw)
        at = y.abs().sort(descending=True, stable=True).indices[:kept].sort().values
        places = _bytes(at.to(torch.int32)).reshape(kept, 4)[:, : _width(x.numel())]
        return torch.cat([places.reshape(-1), _bytes(y[at])])

    def decode(self, code: Tensor, shape: tuple[int, ...]) -> Tensor:
        """As ``Coder.decode``."""
        kept, count = self.kept(shape), math.prod(shape)
        if kept == count:
            return PLAIN.decode(code, shape)
        width = _width(count)
        places = code[: width * kept].reshape(kept, width)
        at = torch.nn.functional.pad(places, (0, 4 - width)).view(torch.int32).reshape(-1).long()
        if not ((at >= 0) & (at < count)).all() or not (at.diff() > 0).all():
            raise ValueError(f"places must be ascending, from 0 to {count - 1}")
        x = torch.zeros(count)
        x[at] = _floats(code[width * kept :])
        return x.reshape(shape)


class LowRank(NamedTuple):
    """The best approximation of a matrix of lower rank, by its singular value decomposition.

    Arrays of more axes are matrices of their first axis by all others. (Vogels et al. PowerSGD.
    NeurIPS 2019, approximate the same factors by a step of power iteration.) Where the factors
    would take as many bytes as the array, as for vectors, it is sent itself.
    """

    rank: int  # the rank; >= 1

    def _factors(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        rows, columns = (shape[0], math.prod(shape[1:])) if shape else (1, 1)
        return (rows, columns) if self.rank * (rows + columns) < rows * columns else None

    def size(self, shape: tuple[int, ...]) -> int:
        """As ``Coder.size``."""
        sides = self._factors(shape)
        return _FLOAT * (math.prod(shape) if sides is None else self.rank * sum(sides))

    def encode(self, x: Tensor, draw: Draw) -> Tensor:
        """As ``Coder.encode``."""
        sides = self._factors(tuple(x.shape))
        if sides is None:
            return PLAIN.encode(x, draw)
        left, values, right = torch.linalg.svd(x.reshape(sides), full_matrices=False)
        left = left[:, : self.rank] * values[: self.rank]
        return torch.cat([_bytes(left.reshape(-1)), _bytes(right[: self.rank].reshape(-1))])

    def decode(self, code: Tensor, shape: tuple[int, ...]) -> Tensor:
        """As ``Coder.decode``."""
        sides = self._factors(shape)
        if sides is None:
            return PLAIN.decode(code, shape)
        rows, columns = sides
        values, end = _floats(code), rows * self.rank
        left, right = values[:end].reshape(rows, -1), values[end:].reshape(-1, columns)
        return (left @ right).reshape(shape)


class Layout(NamedTuple):
    """Arrays written one after the other."""

    coders: Mapping[str, Coder]  # how each is written, by path
    shapes: Mapping[str, tuple[int, ...]]  # their shapes, by the same paths

    @property
    def size(self) -> int:
        """Bytes of all arrays."""
        return sum(coder.size(self.shapes[path]) for path, coder in self.coders.items())

    @property
    def plain_size(self) -> int:
        """Bytes of all arrays as numbers of float32."""
        return sum(PLAIN.size(shape) for shape in self.shapes.values())

    @property
    def shrunk(self) -> list[str]:
        """Paths of the arrays that are not written as they are."""
        return [path for path, coder in self.coders.items() if coder != PLAIN]

    def encode(self, arrays: Params, draw: Draw) -> Tensor:
        """Returns the bytes of arrays, in uint8."""
        parts = [
            coder.encode(arrays[path].detach().cpu().float(), draw)
            for path, coder in self.coders.items()
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.uint8)

    def decode(self, code: Tensor) -> Params:
        """Returns the arrays of ``encode``, on the CPU.

        Raises:
            ValueError: If the bytes are not those of such arrays.
        """
        if code.shape != (self.size,):
            raise ValueError(f"code must have {self.size} bytes, got {tuple(code.shape)}")
        found, at = Params(), 0
        for path, coder in self.coders.items():
            size = coder.size(shape := self.shapes[path])
            found[path] = coder.decode(code[at : at + size], shape)
            at += size
        return found


def fed_back(
    layout: Layout, arrays: Params, residual: Params, draw: Draw
) -> tuple[Tensor, Params, Params]:
    """Encodes arrays with error feedback.

    The residual e, by path, has the arrays that are not written as they are; it is empty at
    first.

    Returns:
        The bytes, the arrays that they decode to, and the next residual.
    """
    whole = {p: x.detach().cpu() for p, x in arrays.items()}
    whole |= {p: whole[p] + residual[p] for p in layout.shrunk if p in residual}
    code = layout.encode(whole, draw)
    sent = layout.decode(code)
    return code, sent, {p: whole[p] - sent[p] for p in layout.shrunk}


def _width(count: int) -> int:
    return max(1, -(-(count - 1).bit_length() // 8)) if count else 1


def _bytes(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


def _floats(code: Tensor) -> Tensor:
    return code.clone().view(torch.float32)  # a copy begins where float32 may begin
