"""The guards that an experiment's settings name."""

from collections.abc import Set
from functools import partial

from engram.core.method import FromMean, Method
from engram.guards.accounting.calibration import noise_multiplier
from engram.guards.adaptive_clip import AdaptiveClip, count_of
from engram.guards.central_noise import CentralNoise
from engram.guards.claims import ClaimedRanges, ComparedClaims
from engram.guards.clip import Clip, LocalNoise
from engram.guards.guard import Guard, chain
from engram.guards.robust_merge import Buckets, Nearest, RobustCenter
from engram.guards.screening import FAR, NormBound
from engram.guards.secure.secure_sum import SecureSum
from engram.guards.update_codec import written
from engram.settings.experiment import Experiment


def guards_of(e: Experiment, method: Method, running: Set[str]) -> Guard:
    """Returns the chain of an experiment's guards, for its method without them."""
    found = [_universal(e, running)] if e.server_step != "replace" else []
    if method.claims:
        found.append(ClaimedRanges(method.claims, mend=e.privacy == "local").build())
    found += [*_bounds(e)]
    if e.privacy != "central":  # else what is made of an update must not depend on the others
        found += [*_comparisons(e, method, running)]
    if e.privacy == "central" and e.aggregation == "plain":
        found.append(CentralNoise(noise_multiplier(e)).build())
    if e.compress != "none":
        found.append(Guard(e.compress, single=True, method=partial(written, e, running=running)))
    return chain(*found)


def client_guards(e: Experiment) -> Guard:
    """Returns the chain of those guards that act before updates leave clients."""
    return chain(*(() if e.clip_quantile else _bounds(e)))


def _bounds(e: Experiment) -> list[Guard]:
    if not e.update_clip:
        return []
    if e.privacy == "local":
        return [LocalNoise(e.clip, noise_multiplier(e)).build()]
    if e.clip_quantile:
        count = count_of(noise_multiplier(e), e.clients_per_round)
        return [AdaptiveClip(e.clip, e.clip_quantile, count).build()]
    if e.aggregation == "secure":
        return [Clip(e.clip).build(), secure_sum(e).build()]
    return [Clip(e.clip).build()]


def secure_sum(e: Experiment) -> SecureSum:
    """Returns an experiment's secure sum, with sites' shares of the noise of central privacy."""
    return SecureSum(noise_multiplier(e) if e.privacy == "central" else 0.0)


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


def _universal(e: Experiment, running: Set[str]) -> Guard:
    from engram.online.server_step import universal_step  # noqa: PLC0415 - numba is slow to import

    step = partial(universal_step, radius=e.server_radius, running=frozenset(running))
    return Guard("universal", method=step)
