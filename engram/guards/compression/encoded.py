"""Updates in code, with error feedback: see ``layout``."""

from typing import Final

from engram.core.method import Slots, Update
from engram.core.slots import flat, unflat
from engram.core.streams import Stream
from engram.core.types import Params
from engram.guards.compression.codes import CODE, Coder
from engram.guards.compression.layout import Layout
from engram.guards.facts import Fact
from engram.guards.guard import At, Guard, Refusal

_RESIDUAL: Final = "residual"


def encoded(name: str, coder: Coder) -> Guard:
    """Builds a guard of updates in bytes; clients keep what these leave out, and send it later.

    A model is written as its change. An update in bytes has one array in place of its slots.
    """

    def layout(at: At, slots: Slots) -> Layout:
        return Layout.of(coder, at.method.kinds, slots, at.running)

    def leave(at: At, update: Update, kept: Slots) -> tuple[Update, Slots]:
        written, arrays = layout(at, update.slots), flat(update.slots)
        arrays |= {p: arrays[p] - x for p, x in _origin(at, update, written).items()}
        residual = flat(kept.get(_RESIDUAL, {}))
        code, _, left = written.encode(
            arrays, residual, lambda n: at.uniform(n, Stream.COMPRESSION)
        )
        return update._replace(slots={CODE: code}), {_RESIDUAL: unflat(left)}

    def arrive(at: At, update: Update) -> Update | Refusal:
        written = layout(at, at.like)
        try:
            found = written.decode(update.slots[CODE])
        except (KeyError, ValueError) as error:
            return Refusal("malformed", str(error), update)
        found |= {p: found[p] + x for p, x in _origin(at, update, written).items()}
        return update._replace(slots=unflat(found, at.like))

    needs = {Fact.EACH, Fact.EXACT}
    return Guard(name, needs=needs, keeps={_RESIDUAL}, leave=leave, arrive=arrive)


def _origin(at: At, update: Update, written: Layout) -> Params:
    """Returns the received arrays of models that are written as changes, by path."""
    received, kinds = flat(at.received(update)), at.method.kinds
    return {p: received[p] for p in written.shrunk if kinds[p.partition("/")[0]] == "model"}
