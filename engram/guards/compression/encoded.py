"""Updates in code; clients keep the residual, and send it later."""

from collections.abc import MutableMapping
from typing import Final

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from engram.core.method import Slots, Update
from engram.core.slots import flat, unflat
from engram.core.streams import Stream
from engram.core.types import Params
from engram.guards.compression.codes import CODE, Coder, Layout, unfilled
from engram.guards.facts import Fact
from engram.guards.guard import Guard
from engram.guards.places import At
from engram.guards.refusals import Refusal

_RESIDUAL: Final = "residual"


def encoded(name: str, coder: Coder) -> Guard:
    """Builds a guard of updates in one array of bytes, where a model is written as its change."""
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
