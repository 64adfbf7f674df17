"""Compressed broadcast: the server's model moves by its encoded change alone.

With a coder Q and the slots w that all clients receive, a round makes of a merge's w' ::

    whole slots:    w <- Q(w' + e)
    their changes:  w <- w + Q(w' - w + e)

where e is what the rounds before left out (see ``codes``). So all clients that have read the same
rounds have the same slots, to the bit, and so has the server, which scores, exports and checkpoints
them. A client that has read nothing, or missed too many changes, takes all of w.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from engram.core.method import Method, Slots, Update
from engram.core.slots import flat, unflat
from engram.core.streams import Stream, torch_generator
from engram.core.tree import is_finite
from engram.core.types import Params
from engram.guards.compression.codes import Coder, Layout

WRITTEN: Final = "broadcast-code"
"""Server's slot of the bytes of w, (size,); or of its last changes, (depth, size), newest last."""

VERSION: Final = "broadcast-version"
"""Server's slot that counts the rounds of w, a scalar."""

_RESIDUAL: Final = "broadcast-residual-"  # followed by a slot's name


@dataclass(frozen=True)
class Broadcast:
    """The form in which a server's slots travel: whole, or as their changes."""

    coder: Coder
    whole: bool
    seed: int  # of the uniform numbers by which versions are rounded

    def layout(self, method: Method, common: Slots, running: Set[str]) -> Layout:
        """Returns the layout of the slots that all clients receive, or of their changes."""
        return Layout.of(self.coder, method.kinds, common, running)

    def method(self, method: Method, running: Set[str]) -> Method:
        """Wraps a method: its server moves the slots that it sends by their encoded change."""
        server, merge = method.server, method.server.merge
        common, _ = server.send(server.start, [])
        layout = self.layout(method, common, running)
        residuals = {_RESIDUAL + path for path in layout.coded}
        ours = {WRITTEN, VERSION, *(path.partition("/")[0] for path in residuals)}

        def written(slots: Slots, before: Params, residual: Params, version: int) -> Slots:
            arrays = flat({name: slots[name] for name in common})
            if not self.whole:
                arrays |= {p: arrays[p] - before[p] for p in layout.coded}
            # Client 0 rounds by the same numbers, since numpy fills keys up with zeros.
            source = torch_generator(self.seed, Stream.COMPRESSION, version)
            draw = partial(torch.rand, generator=source)
            code, sent, left = layout.encode(arrays, residual, draw)
            after = sent if self.whole else advanced(layout, before, sent)
            later = unflat({_RESIDUAL + path: x for path, x in left.items()})
            new = {WRITTEN: code, VERSION: torch.tensor(version)}
            return {**unflat(after, common), **later, **new}

        def merged(given: Slots, updates: Update | Sequence[Update]) -> Slots:
            rest = {name: x for name, x in given.items() if name not in ours}
            step: Callable[..., Slots] = merge.merge
            found = step(rest, updates)
            if flat(found) and not is_finite(flat(found)):  # which is the caller's to judge
                return found | {name: given[name] for name in ours}
            before = flat({name: rest[name] for name in common})
            left = {p.removeprefix(_RESIDUAL): x for p, x in flat(given).items() if p in residuals}
            new = written(found, before, left, int(given[VERSION]) + 1)
            if not self.whole:
                new[WRITTEN] = torch.cat([given[WRITTEN][1:], new[WRITTEN][None]])
            return found | new

        start = dict(server.start)
        if self.whole:
            start |= written(start, {}, {}, 0)
        else:
            like = flat(common)
            start |= unflat({_RESIDUAL + p: torch.zeros_like(like[p]) for p in layout.coded})
            start[WRITTEN] = torch.zeros((depth_of(layout), layout.size), dtype=torch.uint8)
            start[VERSION] = torch.tensor(0)
        changed: Any = merge._replace(merge=merged)
        return method._replace(
            server=server._replace(start=start, merge=changed),
            kinds={**method.kinds, **dict.fromkeys(ours, "statistic")},
        )


def depth_of(layout: Layout) -> int:
    """Returns the most changes that take fewer bytes than all slots; at least 1."""
    return max(1, (layout.plain_size - 1) // max(1, layout.size))


def advanced(layout: Layout, before: Params, sent: Params) -> Params:
    """Applies a decoded change: w + Q, and plain arrays as they are."""
    return sent | {path: before[path] + sent[path] for path in layout.coded}
