"""Messages in fewer bytes: the updates of clients, and the slots that all of them receive.

Models and differences are compressed: a model by its change from the received one. Statistics and
running statistics are few numbers, and denominators and variances among them; they travel as they
are, and exactly.
"""

from collections.abc import Mapping, Set
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from engram.core.method import Method, Slots
from engram.core.slots import flat, unflat
from engram.core.streams import Stream, torch_generator
from engram.core.types import Params
from engram.guards.compression import PLAIN, Coder, Draw, Layout, LowRank, Quantized, TopK, fed_back
from engram.guards.delta_broadcast import broadcast
from engram.settings.fields import number_in

if TYPE_CHECKING:
    from engram.settings.experiment import Experiment


class Uplink(NamedTuple):
    """The bytes of what a client sends.

    Attributes:
        layout: How the slots are written.
        kinds: Kinds of the slots.
        like: The slots that a client sends, which have shapes only.
        seed: Root of the stream of rounding.
    """

    layout: Layout
    kinds: Mapping[str, str]
    like: Slots
    seed: int

    @classmethod
    def of(cls, e: "Experiment", method: Method, sent: Slots, running: Set[str]) -> Self:
        """Builds it for the slots that a client of a method sends."""
        layout = _layout(method.kinds, sent, running, _coder(e))
        return cls(layout, method.kinds, sent, e.seed)

    def encode(
        self, common: Slots, sent: Slots, residual: Params, *, client: int, server_round: int
    ) -> tuple[Tensor, Params]:
        """Writes what a client sends.

        Args:
            common: The slots that it received.
            sent: The slots that it sends.
            residual: What it left out before, by path; empty at first.
            client: The client.
            server_round: The round.

        Returns:
            The bytes, and the next residual.
        """
        arrays, draw = flat(sent), draws(self.seed, server_round, client)
        arrays |= {p: arrays[p].cpu() - x for p, x in self._origin(common).items()}
        code, _, left = fed_back(self.layout, arrays, residual, draw)
        return code, left

    def decode(self, common: Slots, code: Tensor) -> Slots:
        """Returns the slots that a client has sent.

        Raises:
            ValueError: If the bytes are not those of such slots.
        """
        found = self.layout.decode(code)
        found |= {p: found[p] + x for p, x in self._origin(common).items()}
        return unflat({p: found[p] for p in flat(self.like)}, self.like)

    def decode_each(self, common: Slots, codes: Tensor) -> Slots:
        """Returns the slots of several clients, with a leading axis, of their codes (c, size)."""
        each = [flat(self.decode(common, code)) for code in codes]
        return unflat({p: torch.stack([one[p] for one in each]) for p in each[0]}, self.like)

    def _origin(self, common: Slots) -> Params:
        """Returns what changes are from, of the arrays that are written as changes."""
        received = flat(common)
        models = (p for p in self.layout.shrunk if self.kinds[p.partition("/")[0]] == "model")
        return {p: received[p].cpu() for p in models}


def shrinks(method: Method, sent: Slots, running: Set[str]) -> bool:
    """Returns whether any array that a client sends is a model's or a difference's."""
    return bool(_layout(method.kinds, sent, running, Quantized(8)).shrunk)


def written(e: "Experiment", method: Method, running: Set[str]) -> Method:
    """Returns a method whose server moves by what it sends: see ``guards.delta_broadcast``."""
    common, _ = method.server.send(method.server.start, [])
    layout = layout_down(e, method, common, running)
    # Clients are numbered from 0, so that the server has a stream of its own.
    return broadcast(method, layout, whole=is_whole(e), draw=partial(draws, e.seed))


def layout_down(e: "Experiment", method: Method, common: Slots, running: Set[str]) -> Layout:
    """Returns how the slots that all clients receive are written.

    Whole slots have 8 bits where updates have 4, which are too few for a model.
    """
    return _layout(method.kinds, common, running, Quantized(8) if is_whole(e) else _coder(e))


def is_whole(e: "Experiment") -> bool:
    """Returns whether a server sends whole slots, which any client can read, or their changes."""
    return e.compress in ("8-bit", "4-bit")


def draws(seed: int, *keys: int) -> Draw:
    """Returns a source of uniform numbers for rounding, by (round, client), or the server's round.

    Each is a function of its keys alone, so that a repeated round rounds alike.
    """
    stream: Any = torch_generator(seed, Stream.COMPRESSION, *keys)
    return lambda size: torch.rand(size, generator=stream)


def _coder(e: "Experiment") -> Coder:
    kind = e.compress.partition(":")[0]
    if kind == "top-k":
        return TopK(number_in(e.compress, 0.01))
    if kind == "low-rank":
        return LowRank(round(number_in(e.compress, 2)))
    return Quantized(8 if e.compress == "8-bit" else 4)


def _layout(kinds: Mapping[str, str], slots: Slots, running: Set[str], coder: Coder) -> Layout:
    coders, shapes = dict[str, Coder](), dict[str, tuple[int, ...]]()
    for path, leaf in sorted(flat(slots).items()):
        slot, _, name = path.partition("/")
        shrunk = kinds[slot] != "statistic" and name not in running
        coders[path], shapes[path] = coder if shrunk else PLAIN, tuple(leaf.shape)
    return Layout(coders, shapes)
