"""The codes that the setting ``compress`` names."""

from collections.abc import Set
from functools import partial

from engram.guards.compression.codes import Coder, encoded
from engram.guards.compression.delta_broadcast import Broadcast
from engram.guards.compression.low_rank import low_rank
from engram.guards.compression.quantize import quantized
from engram.guards.compression.top_k import top_k
from engram.guards.facts import Fact
from engram.guards.guard import Guard
from engram.settings.base import SharedSettings


def compressed(e: SharedSettings) -> Guard:
    """Returns the guard of updates in code."""
    ends = frozenset[Fact]() if _is_whole(e) else {Fact.CLOSE, Fact.SIZED}
    return encoded(e.compress, coder_of(e))._replace(ends=ends)


def broadcast(e: SharedSettings, running: Set[str] = frozenset()) -> Guard:
    """Returns the guard of the server's slots in code."""
    coder = quantized(8) if _is_whole(e) else coder_of(e)  # 4 bits are too few for a model
    cast = Broadcast(coder, _is_whole(e), e.seed)
    return Guard("broadcast", broadcast=cast, method=partial(cast.method, running=running))


def _is_whole(e: SharedSettings) -> bool:
    return e.compress in ("8-bit", "4-bit")


def coder_of(e: SharedSettings) -> Coder:
    """Returns the coder of updates."""
    kind, _, number = e.compress.partition(":")
    if kind == "top-k":
        return top_k(float(number or 0.01))
    if kind == "low-rank":
        return low_rank(round(float(number or 2)))
    return quantized(8 if kind == "8-bit" else 4)
