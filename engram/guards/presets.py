"""The guards that an experiment's settings name, and the plan of their account."""

import math
from collections.abc import Set
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final

from engram.core.checks import must
from engram.core.method import FromMean, Method
from engram.guards.accounting.composition import MOST, solved
from engram.guards.accounting.releases import Plan, Release
from engram.guards.adaptive_clip import AdaptiveClip, count_of
from engram.guards.central_noise import CentralNoise
from engram.guards.claims import ClaimedRanges, ComparedClaims
from engram.guards.clip import Clip, LocalNoise
from engram.guards.guard import Guard, chain
from engram.guards.robust_merge import Buckets, Nearest, RobustCenter
from engram.guards.row_noise import RowNoise, RowStatistics
from engram.guards.screening import FAR, NormBound
from engram.guards.update_codec import written
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.settings.run import RunSettings

_EVAL_EVERY: Final[int] = RunSettings.model_fields["eval_every"].default
Noise = LocalNoise | CentralNoise | RowNoise | RowStatistics


def guards_of(e: Experiment, method: Method, running: Set[str]) -> Guard:
    """Returns the chain of an experiment's guards, for its method without them."""
    found = [_universal(e, running)] if e.server_step != "replace" else []
    if method.claims and e.aggregation == "plain":  # a sum is rounded, and may have noise
        found.append(ClaimedRanges(method.claims, mend=e.privacy == "local").build())
    found += [*_bounds(e)]
    if e.privacy != "central":  # else what is made of an update must not depend on the others
        found += [*_comparisons(e, method, running)]
    if e.privacy == "central":
        found.append(noisy_guards(e))
    if e.compress != "none":
        found.append(Guard(e.compress, single=True, method=partial(written, e, running=running)))
    return chain(*found)


def client_guards(e: Experiment) -> Guard:
    """Returns the chain of those guards that act before updates leave clients."""
    if e.privacy == "example":
        return noisy_guards(e)
    return chain(*(() if e.clip_quantile else _bounds(e)))


def noisy_guards(e: Experiment) -> Guard:
    """Returns the chain of those guards that add noise, and are accounted for."""
    noise = _noise(e)
    return chain() if noise is None else replace(noise, multiplier=noise_multiplier(e)).build()


def _noise(e: Experiment) -> Noise | None:
    """Returns the noise by ``privacy`` and ``noise-multiplier``; ``epsilon`` may change it."""
    z = e.noise_multiplier
    if e.privacy == "local":
        return LocalNoise(e.clip, z)
    if e.privacy == "central":
        return CentralNoise(z, shared=e.aggregation == "secure")
    if e.privacy == "example":
        return RowStatistics(z) if e.own.tables else RowNoise(e.clip, z)
    return None


def noise_in_words(e: Experiment) -> str:
    """Describes the noise of a private run, and its bound."""
    solved_for, first = " (for epsilon)" * (e.epsilon > 0), " at first" * (e.clip_quantile > 0)
    noise = f"noise-multiplier {noise_multiplier(e):g}{solved_for}"
    return f"{e.privacy} privacy by {noise} and clip {e.clip:g}{first}"


def noise_multiplier(e: Experiment) -> float:
    """Returns the noise multiplier: the setting, or the least one that meets ``epsilon``.

    Raises:
        Refused: No multiplier up to 10^6 reaches the target.
    """
    noise = _noise(e)
    if not e.epsilon or noise is None:
        return e.noise_multiplier
    found = _solved(noise, plan_of(e), e.epsilon, e.delta)
    if found > MOST:
        expected = (
            f"larger: {e.rounds} rounds at delta {e.delta:g} would need a noise-multiplier above "
            f"{MOST:g}; raise epsilon or delta, or lower num-rounds"
        )
        raise Refused(must("epsilon", e.epsilon, expected))
    return found


@lru_cache
def _solved(noise: Noise, plan: Plan, epsilon: float, delta: float) -> float:
    def releases(z: float) -> tuple[Release, ...]:
        return replace(noise, multiplier=z).build().releases(plan)

    return solved(releases, plan, epsilon, delta)


def plan_of(e: Experiment, rows: int = 1) -> Plan:
    """Returns the plan of a run, for a client with so many training rows."""
    unread, there = e.own.unread, e.num_clients - e.unseen_clients
    scored = e.epsilon and e.eval_every != _EVAL_EVERY
    return Plan(
        rounds=1 if e.own.turns else e.rounds,
        reports=math.ceil(e.rounds / e.eval_every) if scored else 0,
        rate=min(1.0, e.clients_per_round / there) if e.secret_cohorts else 1.0,
        secret=e.secret_cohorts,
        neighbors="replaced" if e.sampling == "without-replacement" else "added",
        rows=rows,
        batch=math.inf if "batch_size" in unread else e.batch_size,
        steps=1 if "local_steps" in unread else e.local_steps,
        turns=e.own.turns,
    )


def is_scored(e: Experiment, server_round: int) -> bool:
    """Whether a round is evaluated although scores may cost part of a total epsilon.

    Untrained models are not, nor later ones unless ``eval-every`` is set to other than its default.
    """
    return not noisy_guards(e).reports or (server_round > 0 and e.eval_every != _EVAL_EVERY)


def _bounds(e: Experiment) -> list[Guard]:
    if not e.update_clip:
        return []
    if e.privacy == "local":
        return [noisy_guards(e)]
    if e.clip_quantile:
        count = count_of(noise_multiplier(e), e.clients_per_round)
        return [AdaptiveClip(e.clip, e.clip_quantile, count).build()]
    # Sites add the noise of central privacy to a secure sum, which is clipped no more.
    return [Clip(e.clip, again=e.aggregation == "plain" or e.privacy != "central").build()]


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
