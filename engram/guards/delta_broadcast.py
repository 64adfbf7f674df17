"""Compressed broadcast: the server's model moves by its encoded change alone.

With a codec Q and the slots w that all clients receive, a round makes of a merge's w' ::

    whole slots:    w <- Q(w' + e)
    their changes:  w <- w + Q(w' - w + e)

where e is what the rounds before left out (``engram.guards.compression``). So all clients that have
read the same rounds have the same slots, to the bit, and so has the server, which scores, exports
and checkpoints them. A client that has read nothing, or missed too many changes, takes all of w.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from engram.core.method import Method, Slots, Update
from engram.core.slots import flat, unflat
from engram.core.tree import is_finite
from engram.core.types import Params
from engram.guards.compression import Draw, Layout, fed_back

CODE: Final = "broadcast-code"
"""Server's slot of the bytes of w, (size,); or of its last changes, (depth, size), newest last."""

VERSION: Final = "broadcast-version"
"""Server's slot that counts the rounds of w, a scalar."""

_RESIDUAL: Final = "broadcast-residual-"  # followed by a slot's name


def depth_of(layout: Layout) -> int:
    """Returns the most changes that take fewer bytes than all slots; at least 1."""
    return max(1, (layout.plain_size - 1) // max(1, layout.size))


def advanced(layout: Layout, before: Params, sent: Params) -> Params:
    """Applies a decoded change: w + Q, and plain arrays as they are."""
    moved = {path: before[path] + sent[path] for path in layout.shrunk}
    return sent | moved


def broadcast(
    method: Method, layout: Layout, *, whole: bool, draw: Callable[[int], Draw]
) -> Method:
    """Wraps a method: its server moves the broadcast slots by their encoded change.

    ``layout`` is that of whole slots, or of their changes; ``draw`` gives uniform numbers by
    the version that they make.
    """
    server, merge = method.server, method.server.merge
    names = server.send(server.start, [])[0].keys()
    ours = {CODE, VERSION, *(_RESIDUAL + name for name in names)}

    def written(slots: Slots, before: Params, residual: Slots, version: int) -> Slots:
        public = {name: slots[name] for name in names}
        arrays = flat(public)
        if not whole:
            arrays = arrays | {p: arrays[p] - before[p] for p in layout.shrunk}
        code, sent, left = fed_back(layout, arrays, _named(residual), draw(version))
        after = sent if whole else advanced(layout, before, sent)
        return {
            **unflat({p: after[p] for p in arrays}, public),
            **_slots_of(left, names),
            CODE: code,
            VERSION: torch.tensor(version),
        }

    def merged(given: Slots, updates: Update | Sequence[Update]) -> Slots:
        rest = {name: x for name, x in given.items() if name not in ours}
        own = {name: given[name] for name in ours}
        step: Callable[..., Slots] = merge.merge
        found = step(rest, updates)
        if flat(found) and not is_finite(flat(found)):  # which is the caller's to judge
            return found | own
        before = flat({name: rest[name] for name in names})
        new = written(found, before, own, int(given[VERSION]) + 1)
        if not whole:
            new[CODE] = torch.cat([given[CODE][1:], new[CODE][None]])
        return found | new

    start = dict(server.start)
    if whole:
        start |= written(start, {}, _slots_of({}, names), 0)
    else:
        like = flat({name: start[name] for name in names})
        start |= _slots_of({p: torch.zeros_like(like[p]) for p in layout.shrunk}, names)
        start[CODE] = torch.zeros((depth_of(layout), layout.size), dtype=torch.uint8)
        start[VERSION] = torch.tensor(0)
    changed: Any = merge._replace(merge=merged)
    return method._replace(
        server=server._replace(start=start, merge=changed),
        kinds={**method.kinds, **dict.fromkeys(ours, "statistic")},
    )


def _slots_of(residual: Params, names: Sequence[str] | Any) -> Slots:
    """Returns residuals, by path, as slots of one level."""
    found: dict[str, dict[str, Tensor]] = {_RESIDUAL + name: {} for name in names}
    for path, leaf in residual.items():
        slot, _, name = path.partition("/")
        found[_RESIDUAL + slot][name] = leaf
    return dict(found)


def _named(slots: Slots) -> Params:
    arrays = flat({name: x for name, x in slots.items() if name.startswith(_RESIDUAL)})
    return {path.removeprefix(_RESIDUAL): leaf for path, leaf in arrays.items()}
