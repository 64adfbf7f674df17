"""Robust centers in place of a round's mean, and choices among its updates, as guards.

Each client's update is looked at by itself, and counts once, whatever weight is claimed for it.
"""

from collections.abc import Callable, Sequence
from typing import Final

from engram.core.method import Update
from engram.core.slots import flat, mean_of, unflat
from engram.core.streams import Stream
from engram.core.types import Params
from engram.guards.changes import change_of, is_running, models_of
from engram.guards.facts import Fact
from engram.guards.guard import Guard
from engram.guards.places import At
from engram.guards.robust.centers import centered_clipping, geometric_median, median, trimmed_mean
from engram.guards.robust.neighbors import krum, multi_krum, nearest, nearest_mixing

_CENTERS: Final[dict[str, Callable[[Sequence[Params]], Params]]] = {
    "median": median,
    "geometric-median": geometric_median,
    "centered-clipping": centered_clipping,
}
# Of which f models may be arbitrary. Krum chooses clients by their parameters, which tell nothing
# of their running statistics: of these, the median is taken.
_AGAINST: Final[dict[str, Callable[[Sequence[Params], int], Params]]] = {
    "trimmed-mean": trimmed_mean,
    "nearest-mixing": nearest_mixing,
    "krum": krum,
    "multi-krum": multi_krum,
}
_LEAST: Final = {"trimmed-mean": 1, "nearest-mixing": 1, "krum": 3, "multi-krum": 3}  # where f = 0
_COMPARED: Final = frozenset({Fact.EACH, Fact.CLOSE, Fact.CURRENT})


def robust_center(name: str, malicious: int = 0) -> Guard:
    """Builds a robust center of a round's updates, which makes one update of all.

    Of these, ``malicious`` >= 0 may be arbitrary. See ``centers`` and ``neighbors``.
    """
    against = _AGAINST.get(name)
    center = (lambda x: against(x, malicious)) if against else _CENTERS[name]
    statistics = median if "krum" in name else center

    def gather(at: At, updates: Sequence[Update]) -> list[Update]:
        each = [flat(update.slots) for update in updates]
        still = {path for path in each[0] if is_running(at.method, at.running, path)}
        found = Params()
        for some, middle in ((each[0].keys() - still, center), (still, statistics)):
            if some:  # a method may send nothing
                found |= middle([{p: x for p, x in own.items() if p in some} for own in each])
        slots = unflat(found, updates[0].slots)
        return [Update(slots, sum(u.rows for u in updates), sum(u.clients for u in updates))]

    asks = _LEAST[name] + 2 * malicious if against else 1
    needs, ends, gives = _COMPARED | {Fact.MEAN}, {Fact.SUM}, {Fact.CENTERED}
    return Guard(name, needs, ends, gives, asks=asks, alike=True, gather=gather)


def krum_choice(malicious: int) -> Guard:
    """Builds the choice of all updates but those with the largest scores of Krum.

    It is for a server that sees each; ``malicious`` >= 0 are left out. They are compared by the
    changes of models, each from what its client received: statistics are of a client's own rows.
    See ``nearest`` for clients that received different models.
    """

    def gather(at: At, updates: Sequence[Update]) -> list[Update]:
        moved = [models_of(at, change_of(at, update)) for update in updates]
        return [updates[i] for i in nearest(moved, malicious)]

    asks = _LEAST["multi-krum"] + 2 * malicious
    return Guard("multi-krum", _COMPARED, gives={Fact.CENTERED}, asks=asks, gather=gather)


def buckets(size: int) -> Guard:
    """Builds means of ``size`` >= 1 updates, drawn anew each round.

    Karimireddy, He, Jaggi. Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing. ICLR
    2022, Alg. 1. They differ less than clients do, so that a center takes fewer honest ones for
    attackers; but each attacker spoils a bucket. The last bucket may have fewer.
    """

    def gather(at: At, updates: Sequence[Update]) -> Sequence[Update]:
        order = at.drawn(Stream.BUCKETS).permutation(len(updates)).tolist()
        starts = range(0, len(order), size)
        parts = ([updates[i] for i in order[start : start + size]] for start in starts)
        return [mean_of(part, "clients") for part in parts]

    return Guard("buckets", _COMPARED | {Fact.MEAN}, per=size, alike=True, gather=gather)
