"""The guards that an experiment's settings name."""

from collections.abc import Set
from functools import partial

from engram.core.checks import must
from engram.core.method import FromMean, Method
from engram.core.method_shapes import Shapes
from engram.core.slots import flat
from engram.core.streams import Stream, uniform
from engram.guards.accounting.calibration import noise_multiplier
from engram.guards.adaptive_clip import AdaptiveClip, count_of
from engram.guards.central_noise import CentralNoise
from engram.guards.claims import ClaimedRanges, ComparedClaims
from engram.guards.clip import Clip, LocalNoise
from engram.guards.compression.codes import Coder, Layout
from engram.guards.compression.delta_broadcast import Broadcast
from engram.guards.compression.encoded import encoded
from engram.guards.compression.low_rank import low_rank
from engram.guards.compression.quantize import quantized
from engram.guards.compression.top_k import top_k
from engram.guards.guard import Guard, chain
from engram.guards.robust_merge import Buckets, Nearest, RobustCenter
from engram.guards.screening import FAR, NormBound
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.settings.fields import number_in


def guards_of(e: Experiment, method: Method, running: Set[str]) -> Guard:
    """Returns the chain of an experiment's guards, for its method without them."""
    found = [_universal(e, running)] if e.server_step != "replace" else []
    if method.claims and e.aggregation == "plain":  # a sum is rounded, and may have noise
        found.append(ClaimedRanges(method.claims, mend=e.privacy == "local").build())
    found += [*_bounds(e)]
    if e.privacy != "central":  # else what is made of an update must not depend on the others
        found += [*_comparisons(e, method, running)]
    if _noisy_sum(e):
        found.append(Guard("noisy sum", alike=True))
    elif e.privacy == "central":
        found.append(CentralNoise(noise_multiplier(e)).build())
    return chain(*found, *_codes(e, running))


def client_guards(e: Experiment) -> Guard:
    """Returns the chain of those guards that act before updates leave clients."""
    return chain(*(() if e.clip_quantile else _bounds(e)), *_codes(e))


def _bounds(e: Experiment) -> list[Guard]:
    if not e.update_clip:
        return []
    if e.privacy == "local":
        return [LocalNoise(e.clip, noise_multiplier(e)).build()]
    if e.clip_quantile:
        count = count_of(noise_multiplier(e), e.clients_per_round)
        return [AdaptiveClip(e.clip, e.clip_quantile, count).build()]
    return [Clip(e.clip, again=not _noisy_sum(e)).build()]


def _noisy_sum(e: Experiment) -> bool:
    """Returns whether sites add the noise of central privacy to a secure sum, in shares."""
    return e.privacy == "central" and e.aggregation == "secure"


def _comparisons(e: Experiment, method: Method, running: Set[str]) -> list[Guard]:
    plain, by_mean = e.merge == "mean", isinstance(method.server.merge, FromMean)
    slots = [x for x in method.server.start.values() if isinstance(x, dict)]
    averages = any(running & x.keys() for x in slots)  # which no clip bounds
    bounded = not plain or (bool(e.update_clip) and not averages)
    found = [] if bounded else [FAR]
    # A stream's next rows are so few that honest updates differ by more than any bound.
    if not bounded and e.order != "stream":
        found.append(NormBound(e.max_norm).build())
    if method.claims and (plain or not by_mean):
        found.append(ComparedClaims(method.claims, e.max_weight, e.max_norm).build())
    if not plain and not by_mean:
        found.append(Nearest(e.num_malicious).build())
    if not plain and by_mean:
        found += [Buckets(e.bucket_size).build()] * (e.bucket_size > 1)
        found.append(RobustCenter(e.merge, e.num_malicious).build())
    return found


def check_codes(e: Experiment, shapes: Shapes, running: Set[str]) -> None:
    """Refuses codes for a method without a common model to change.

    Raises:
        Refused: There is none.
    """
    if e.compress == "none":
        return
    if flat(shapes.own):
        why = "which sends each client a model of its own"
    elif not Layout.of(_coder(e), shapes.method.kinds, shapes.sent, running).coded:
        why = "whose clients send no model"
    else:
        return
    raise Refused(must("compress", e.compress, f"none for {e.method}, {why}"))


def _codes(e: Experiment, running: Set[str] = frozenset()) -> list[Guard]:
    if e.compress == "none":
        return []
    coder, whole = _coder(e), e.compress in ("8-bit", "4-bit")
    # Clients are numbered from 0, so that the server has a stream of its own.
    draw = partial(uniform, e.seed, Stream.COMPRESSION)
    cast = Broadcast(quantized(8) if whole else coder, whole, draw)  # 4 are too few for a model
    method = partial(cast.method, running=running)
    return [encoded(e.compress, coder), Guard("broadcast", broadcast=cast, method=method)]


def _coder(e: Experiment) -> Coder:
    kind = e.compress.partition(":")[0]
    if kind == "top-k":
        return top_k(number_in(e.compress, 0.01))
    if kind == "low-rank":
        return low_rank(round(number_in(e.compress, 2)))
    return quantized(8 if kind == "8-bit" else 4)


def _universal(e: Experiment, running: Set[str]) -> Guard:
    from engram.online.server_step import universal_step  # noqa: PLC0415 - numba is slow to import

    step = partial(universal_step, radius=e.server_radius, running=frozenset(running))
    return Guard("universal", method=step)
