"""The guards that an experiment's settings name."""

from collections.abc import Iterator, Set
from functools import partial

from engram.core.checks import must
from engram.core.method import FromMean, Method
from engram.guards.accounting.calibration import noise_multiplier
from engram.guards.adaptive_clip import AdaptiveClip, count_of
from engram.guards.central_noise import CentralNoise
from engram.guards.clip import Clip, LocalNoise
from engram.guards.facts import Fact
from engram.guards.guard import Guard, chain
from engram.guards.registry import GUARDS, named_guards
from engram.guards.robust.choices import Buckets, Nearest, RobustCenter
from engram.guards.robust.claims import ClaimedRanges, ComparedClaims
from engram.guards.robust.lengths import FAR, NormBound
from engram.guards.update_codec import written
from engram.settings.base import SharedSettings
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment

_ROWS = Guard(
    "row noise",
    needs={Fact.BOUNDED, Fact.GRADIENTS, Fact.SAMPLED, Fact.APART, Fact.CURRENT},
    ends={Fact.BOUNDED, Fact.OPEN},
    gives={Fact.ROWS},
)
_SECURE = Guard(
    "secure sum",
    needs={Fact.MEAN, Fact.BOUNDED, Fact.CURRENT, Fact.KNOWN},
    ends={Fact.EACH},
    asks=2,
)


def guards_of(e: Experiment, method: Method, running: Set[str]) -> Guard:
    """Returns the chain of an experiment's guards, for its method without them."""
    by_mean, multiplier = isinstance(method.server.merge, FromMean), noise_multiplier(e)
    found = list[Guard]()
    if e.server_step != "replace":
        found.append(Guard("universal", method=partial(_universal, e, running)))
    if method.claims and e.aggregation == "plain":  # a sum is rounded, and may have noise
        found.append(ClaimedRanges(method.claims, mend=e.privacy == "local").build())
    found += [guard for _, guard in at_clients(e, multiplier)]
    if e.privacy != "central":  # else what is made of an update must not depend on the others
        found += _screening(e, method, running, by_mean=by_mean)
    found += [guard for _, guard in at_server(e, multiplier, by_mean=by_mean)]
    if e.compress != "none":
        found.append(Guard("broadcast", method=partial(written, e, running=running)))
    return chain(*found)


def client_guards(e: Experiment) -> Guard:
    """Returns the chain of those guards that act before updates leave clients."""
    return chain(*(guard for _, guard in at_clients(e, noise_multiplier(e))))


def at_clients(e: SharedSettings, multiplier: float) -> Iterator[tuple[str, Guard]]:
    """Yields the guards that act at clients first, in this order, by the setting that names each.

    ``multiplier`` is that of noise.
    """
    if e.privacy == "local":
        yield "privacy", LocalNoise(e.clip, multiplier).build()
    elif e.update_clip and not e.clip_quantile:
        # Not what sites have added noise to.
        again = not (e.privacy == "central" and e.aggregation == "secure")
        yield "clip", Clip(e.clip, again=again).build()
    if e.privacy == "example":
        yield "privacy", _ROWS
    yield from (("guards", guard) for guard in _own(e) if guard.leaves)
    if e.aggregation == "secure":
        yield "aggregation", _SECURE
    if e.compress != "none":
        exact = e.compress in ("8-bit", "4-bit")
        ends = {Fact.TRAINED} if exact else {Fact.TRAINED, Fact.CLOSE, Fact.SIZED}
        yield "compress", Guard(e.compress, needs={Fact.EACH, Fact.EXACT}, ends=ends)


def at_server(
    e: SharedSettings, multiplier: float, *, by_mean: bool
) -> Iterator[tuple[str, Guard]]:
    """Yields the guards that act at the server alone, in this order, likewise.

    ``by_mean`` is whether the method's server takes the mean of updates.
    """
    if e.clip_quantile:
        count = count_of(multiplier, e.clients_per_round)
        yield "clip-quantile", AdaptiveClip(e.clip, e.clip_quantile, count).build()
    yield from (("guards", guard) for guard in _own(e) if not guard.leaves)
    if e.merge != "mean" and e.bucket_size > 1:
        yield "bucket-size", Buckets(e.bucket_size).build()
    if e.merge == "multi-krum" and not by_mean:
        yield "merge", Nearest(e.num_malicious).build()
    elif e.merge != "mean":
        yield "merge", RobustCenter(e.merge, e.num_malicious).build()
    if e.privacy == "central":
        central = CentralNoise(multiplier).build()
        # Sites add the noise of a secure sum, in shares.
        shared = central._replace(gather=Guard("").gather)
        yield "privacy", central if e.aggregation == "plain" else shared


def _own(e: SharedSettings) -> list[Guard]:
    """Returns the guards that are a user's own, by the names that they have in settings.

    Raises:
        Refused: A function raises, or builds no guard.
    """
    found = list[Guard]()
    for name, number in named_guards(e.guards):
        try:
            found.append(GUARDS[name](*number)._replace(name=name))
        except Exception as error:  # anybody's function
            got = f"{type(error).__name__}: {error}"
            expected = "a function that returns an engram.guards.guard.Guard"
            raise Refused(must(f"guard {name}", got, expected)) from error
    return found


def _screening(e: Experiment, method: Method, running: Set[str], *, by_mean: bool) -> list[Guard]:
    """Returns the guards that compare updates where nothing bounds them."""
    plain = e.merge == "mean"
    slots = [x for x in method.server.start.values() if isinstance(x, dict)]
    averages = any(running & x.keys() for x in slots)  # which no clip bounds
    bounded = not plain or (bool(e.update_clip) and not averages)
    found = [] if bounded else [FAR]
    # A stream's next rows are so few that honest updates differ by more than any bound.
    if not bounded and e.order != "stream":
        found.append(NormBound(e.max_norm).build())
    if method.claims and (plain or not by_mean):
        found.append(ComparedClaims(method.claims, e.max_weight, e.max_norm).build())
    return found


def _universal(e: Experiment, running: Set[str], method: Method) -> Method:
    from engram.online.server_step import universal_step  # noqa: PLC0415 - numba is slow to import

    return universal_step(method, radius=e.server_radius, running=frozenset(running))
