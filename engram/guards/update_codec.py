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
from engram.core.method_shapes import Shapes
from engram.core.slots import flat, unflat
from engram.core.streams import Stream, torch_generator
from engram.core.types import Params
from engram.guards.compression import PLAIN, Coder, Draw, Layout, LowRank, Quantized, TopK, fed_back
from engram.guards.delta_broadcast import broadcast
from engram.settings.fields import number_in

if TYPE_CHECKING:
    from engram.settings.experiment import Experiment


class Codes(NamedTuple):
    """The bytes of a run's messages."""

    up: Layout  # of the slots that a client sends
    down: Layout  # of the slots that all clients receive, or of their changes
    whole: bool  # whether a server sends whole slots, which any client can read, or changes
    kinds: Mapping[str, str]  # of the slots
    like: Slots  # those that a client sends, with shapes only
    seed: int  # root of the stream of rounding

    @classmethod
    def of(cls, e: "Experiment", shapes: Shapes, running: Set[str]) -> Self:
        """Builds it for the slots of a client."""
        kinds = shapes.method.kinds
        up = _layout(kinds, shapes.sent, running, _coder(e))
        down = _layout_down(e, kinds, shapes.common, running)
        return cls(up, down, _is_whole(e), kinds, shapes.sent, e.seed)

    def encode(
        self, common: Slots, sent: Slots, residual: Params, *, client: int, server_round: int
    ) -> tuple[Tensor, Params]:
        """Encodes an update.

        The residual, by path, is what the client left out before; empty at first.

        Returns:
            The bytes, and the next residual.
        """
        arrays, draw = flat(sent), _draws(self.seed, server_round, client)
        arrays |= {p: arrays[p].cpu() - x for p, x in self._origin(common).items()}
        code, _, left = fed_back(self.up, arrays, residual, draw)
        return code, left

    def decode(self, common: Slots, codes: Tensor) -> Slots:
        """Decodes the updates of several clients, (c, size), into slots with a leading axis.

        Raises:
            ValueError: If the bytes are not those of such slots.
        """
        origin, each = self._origin(common), []
        for code in codes:
            found = self.up.decode(code)
            each.append(found | {p: found[p] + x for p, x in origin.items()})
        return unflat({p: torch.stack([x[p] for x in each]) for p in flat(self.like)}, self.like)

    def _origin(self, common: Slots) -> Params:
        received = flat(common)
        models = (p for p in self.up.shrunk if self.kinds[p.partition("/")[0]] == "model")
        return {p: received[p].cpu() for p in models}


def shrinks(method: Method, sent: Slots, running: Set[str]) -> bool:
    """Returns whether any array that a client sends is a model's or a difference's."""
    return bool(_layout(method.kinds, sent, running, Quantized(8)).shrunk)


def written(e: "Experiment", method: Method, running: Set[str]) -> Method:
    """Wraps a method whose server moves by its broadcast alone: see ``guards.delta_broadcast``."""
    common, _ = method.server.send(method.server.start, [])
    layout = _layout_down(e, method.kinds, common, running)
    # Clients are numbered from 0, so that the server has a stream of its own.
    return broadcast(method, layout, whole=_is_whole(e), draw=partial(_draws, e.seed))


def _layout_down(
    e: "Experiment", kinds: Mapping[str, str], common: Slots, running: Set[str]
) -> Layout:
    """Returns the broadcast's layout: 8 bits for whole slots, as 4 are too few for a model."""
    return _layout(kinds, common, running, Quantized(8) if _is_whole(e) else _coder(e))


def _is_whole(e: "Experiment") -> bool:
    return e.compress in ("8-bit", "4-bit")


def _draws(seed: int, *keys: int) -> Draw:
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
