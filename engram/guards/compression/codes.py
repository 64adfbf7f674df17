"""Arrays in fewer bytes, with error feedback.

A coder Q writes arrays of known shapes as others, whose number depends on the shapes alone. What it
leaves out, the residual e, is added to what is sent next (Seide et al. Interspeech 2014;
Karimireddy et al. ICML 2019, Alg. 2) ::

    p_t = x_t + e_t,    sent_t = Q(p_t),    e_t+1 = p_t - sent_t

so that sums of what is sent and of what was to be sent differ by one residual, however long it goes
on: sum_t sent_t = sum_t x_t + e_1 - e_T+1.
"""

from collections.abc import Callable, Collection, Mapping, MutableMapping, Set
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from engram.core.method import Kind, Slots, Update
from engram.core.slots import flat, unflat
from engram.core.streams import Stream
from engram.core.types import Params
from engram.guards.facts import Fact
from engram.guards.guard import Guard
from engram.guards.places import At
from engram.guards.refusals import Refusal

CODE: Final = "code"  # name of the array of bytes, in place of slots, in updates and messages
_RESIDUAL: Final = "residual"

Shape = tuple[int, ...]
Code = tuple[Tensor, ...]
Draw = Callable[[int], Tensor]  # size -> (size,), uniform on [0, 1), in float32


class Coder(NamedTuple):
    """A way to write one array of float32."""

    form: Callable[[Shape], Code]  # ``shape -> code`` of an array, with shapes only
    encode: Callable[[Tensor, Draw], Code]  # ``(x, draw) -> code``
    # ``(code, shape) -> x``; raises ``ValueError`` if the code is not that of such an x.
    decode: Callable[[Code, Shape], Tensor]


@dataclass(frozen=True)
class Layout:
    """Arrays written one after the other."""

    coder: Coder
    shapes: Mapping[str, Shape]  # of all arrays, by path
    coded: Collection[str]  # paths of those in code; the others are written as they are

    @classmethod
    def of(cls, coder: Coder, kinds: Mapping[str, Kind], slots: Slots, running: Set[str]) -> Self:
        """Builds the layout of slots, with models and differences in code.

        Statistics and running statistics are few numbers, and denominators and variances among
        them; they travel as they are, and exactly.
        """
        shapes = {path: tuple(leaf.shape) for path, leaf in sorted(flat(slots).items())}
        parts = {path: path.partition("/") for path in shapes}
        exact = {p for p, (s, _, n) in parts.items() if kinds[s] == "statistic" or n in running}
        return cls(coder, shapes, {p: x for p, x in shapes.items() if p not in exact})

    @cached_property
    def forms(self) -> dict[str, Code]:
        """The codes of all arrays, with shapes only."""
        whole = {p: (unfilled(shape),) for p, shape in self.shapes.items()}
        return whole | {path: self.coder.form(self.shapes[path]) for path in self.coded}

    @cached_property
    def size(self) -> int:
        """Bytes of all arrays."""
        return sum(part.nbytes for form in self.forms.values() for part in form)

    @property
    def plain_size(self) -> int:
        """Bytes of all arrays as numbers of float32."""
        return sum(4 * prod(shape) for shape in self.shapes.values())

    def encode(self, arrays: Params, residual: Params, draw: Draw) -> tuple[Tensor, Params, Params]:
        """Returns the bytes of arrays, the arrays that they decode to, and the next residual."""
        parts, sent, left = list[Tensor](), Params(), Params()
        for path, shape in self.shapes.items():
            sent[path] = whole = arrays[path].float()
            code: Code = (whole,)
            if path in self.coded:
                whole = whole + residual[path] if path in residual else whole
                code = self.coder.encode(whole, draw)
                sent[path] = self.coder.decode(code, shape)
                left[path] = whole - sent[path]
            parts += [part.reshape(-1).contiguous().view(torch.uint8) for part in code]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.uint8), sent, left

    def decode(self, code: Tensor) -> Params:
        """Returns the arrays of ``encode``.

        Raises:
            ValueError: If the bytes are not those of such arrays.
        """
        if code.shape != (self.size,):
            raise ValueError(f"code must have {self.size} bytes, got {tuple(code.shape)}")
        found, sizes = Params(), [x.nbytes for form in self.forms.values() for x in form]
        pieces = iter(torch.split(code, sizes))
        for path, form in self.forms.items():
            # Numbers of a copy begin where they may.
            parts = tuple(next(pieces).clone().view(x.dtype).reshape(x.shape) for x in form)
            found[path] = parts[0]
            if path in self.coded:
                found[path] = self.coder.decode(parts, self.shapes[path])
        return found


def unfilled(shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns an array that has a shape and a type alone."""
    return torch.empty(shape, dtype=dtype, device="meta")


def encoded(name: str, coder: Coder) -> Guard:
    """Builds a guard of updates in one array of bytes, where a model is written as its change.

    Clients keep the residual, and send it later.
    """
    known = dict[int, tuple[Slots, Layout]]()
    # What codes decode to, for those who have not sent them.
    written: MutableMapping[Tensor, Params] = WeakIdKeyDictionary()

    def layout(at: At) -> Layout:
        if id(at.like) not in known:
            known[id(at.like)] = at.like, Layout.of(coder, at.method.kinds, at.like, at.running)
        return known[id(at.like)][1]

    def origin(at: At, update: Update) -> Params:
        received, kinds = flat(at.received(update)), at.method.kinds
        models = (path for path in layout(at).coded if kinds[path.partition("/")[0]] == "model")
        return {path: received[path] for path in models}

    def form(at: At, _: Slots) -> Slots:
        return {CODE: unfilled((layout(at).size,), torch.uint8)}

    def leave(at: At, update: Update, kept: Slots) -> tuple[Update, Slots]:
        arrays, left = flat(update.slots), flat(kept.get(_RESIDUAL, {}))
        arrays |= {path: arrays[path] - x for path, x in origin(at, update).items()}
        found = layout(at).encode(arrays, left, lambda n: at.uniform(n, Stream.COMPRESSION))
        code, written[code], left = found
        return update._replace(slots={CODE: code}), {_RESIDUAL: unflat(left)}

    def arrive(at: At, update: Update) -> Update | Refusal:
        try:
            code = update.slots[CODE]
            found = written.pop(code, None) or layout(at).decode(code)
        except (KeyError, ValueError) as error:
            return Refusal("malformed", str(error), update)
        found |= {path: found[path] + x for path, x in origin(at, update).items()}
        return update._replace(slots=unflat(found, at.like))

    needs = {Fact.EACH, Fact.EXACT}
    return Guard(name, needs, keeps={_RESIDUAL}, leave=leave, form=form, arrive=arrive)
