"""Updates in code; clients keep what it leaves out, and send it later."""

from typing import Final

from engram.core.method import Slots, Update
from engram.core.slots import flat, unflat
from engram.core.streams import Stream
from engram.core.types import Params
from engram.guards.compression.codes import CODE, Coder, Layout
from engram.guards.guard import At, Guard, Refusal

_RESIDUAL: Final = "residual"


def encoded(name: str, coder: Coder) -> Guard:
    """Builds a guard of updates in one array of bytes, where a model is written as its change."""

    def parts(at: At, slots: Slots, update: Update) -> tuple[Layout, Params]:
        """Returns the layout, and received models, of which changes are written."""
        layout = Layout.of(coder, at.method.kinds, slots, at.running)
        received, kinds = flat(at.received(update)), at.method.kinds
        models = (path for path in layout.coded if kinds[path.partition("/")[0]] == "model")
        return layout, {path: received[path] for path in models}

    def leave(at: At, update: Update, kept: Slots) -> tuple[Update, Slots]:
        layout, origin = parts(at, update.slots, update)
        arrays, left = flat(update.slots), flat(kept.get(_RESIDUAL, {}))
        arrays |= {path: arrays[path] - x for path, x in origin.items()}
        code, _, left = layout.encode(arrays, left, lambda n: at.uniform(n, Stream.COMPRESSION))
        return update._replace(slots={CODE: code}), {_RESIDUAL: unflat(left)}

    def arrive(at: At, update: Update) -> Update | Refusal:
        layout, origin = parts(at, at.like, update)
        try:
            found = layout.decode(update.slots[CODE])
        except (KeyError, ValueError) as error:
            return Refusal("malformed", str(error), update)
        found |= {path: found[path] + x for path, x in origin.items()}
        return update._replace(slots=unflat(found, at.like))

    return Guard(name, keeps={_RESIDUAL}, leave=leave, arrive=arrive)
