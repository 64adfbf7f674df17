"""The guards that an experiment's settings name, and the plan of their account."""

import math
from collections.abc import Iterator, Set
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final

from engram.core.checks import must
from engram.core.method import FromMean, Method
from engram.core.method_shapes import Shapes
from engram.core.slots import flat
from engram.core.streams import Stream, uniform
from engram.guards.accounting.composition import MOST, solved
from engram.guards.accounting.releases import Plan, Release
from engram.guards.adaptive_clip import AdaptiveClip, count_of
from engram.guards.central_noise import CentralNoise
from engram.guards.chain import chain
from engram.guards.clip import Clip, LocalNoise
from engram.guards.compression.codes import Coder, Layout
from engram.guards.compression.delta_broadcast import Broadcast
from engram.guards.compression.encoded import encoded
from engram.guards.compression.low_rank import low_rank
from engram.guards.compression.quantize import quantized
from engram.guards.compression.top_k import top_k
from engram.guards.facts import Fact
from engram.guards.guard import Guard
from engram.guards.robust.choices import Buckets, Nearest, RobustCenter
from engram.guards.robust.claims import ClaimedRanges, ComparedClaims
from engram.guards.robust.lengths import FAR, NormBound
from engram.guards.row_noise import RowNoise, RowStatistics
from engram.guards.secure.secure_sum import SecureSum
from engram.guards.users import guards_of_users
from engram.settings.base import Method as MethodSettings
from engram.settings.base import SharedSettings
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.settings.fields import number_in
from engram.settings.run import RunSettings

_EVAL_EVERY: Final[int] = RunSettings.model_fields["eval_every"].default
Noise = LocalNoise | CentralNoise | SecureSum | RowNoise | RowStatistics


def guards_of(e: Experiment, method: Method, running: Set[str]) -> Guard:
    """Returns the chain of an experiment's guards, for its method without them."""
    given = e, e.own, noise_multiplier(e)
    clients, server = ([guard for _, guard in some(*given)] for some in (at_clients, at_server))
    found = list[Guard]()
    if e.server_step != "replace":
        found.append(Guard("universal", method=partial(_universal, e, running)))
    if method.claims:
        noisy = any(Fact.EXACT in guard.ends for guard in clients)
        found.append(ClaimedRanges(method.claims, mend=noisy).build())
    found += clients
    if not any(Fact.SUM in guard.needs for guard in (*clients, *server)):
        found += _screening(e, method, running)
    found += server
    if e.compress != "none":
        found.append(_broadcast(e, running))
    return chain(*found)


def client_guards(e: Experiment) -> Guard:
    """Returns the chain of those guards that act before updates leave clients."""
    guards = [guard for _, guard in at_clients(e, e.own, noise_multiplier(e))]
    return chain(*guards, *([_broadcast(e)] if e.compress != "none" else []))


def protections(e: Experiment) -> Guard:
    """Returns the chain of the guards that settings name, which are accounted for."""
    given = e, e.own, noise_multiplier(e)
    return chain(*(guard for _, guard in (*at_clients(*given), *at_server(*given))))


def at_clients(
    e: SharedSettings, own: MethodSettings, multiplier: float
) -> Iterator[tuple[str, Guard]]:
    """Yields the guards that act at clients first, in this order, by the setting that names each.

    ``own`` are the method's settings, and ``multiplier`` is that of noise.
    """
    noise = _noise(e, own, multiplier)
    if noise and e.privacy != "central":
        yield "privacy", noise.build()
    elif e.clip and not e.clip_quantile:
        yield "clip", Clip(e.clip).build()
    yield from (("guards", guard) for guard in guards_of_users(e.guards) if guard.at_client)
    if e.aggregation == "secure":
        yield "aggregation", SecureSum(multiplier if e.privacy == "central" else 0.0).build()
    if e.compress != "none":
        ends = frozenset[Fact]() if _is_whole(e) else {Fact.CLOSE, Fact.SIZED}
        yield "compress", encoded(e.compress, _coder(e))._replace(ends=ends)


def at_server(
    e: SharedSettings, own: MethodSettings, multiplier: float
) -> Iterator[tuple[str, Guard]]:
    """Yields the guards that act at the server alone, in this order, likewise."""
    if e.clip_quantile:
        count = count_of(multiplier, e.clients_per_round)
        yield "clip-quantile", AdaptiveClip(e.clip, e.clip_quantile, count).build()
    yield from (("guards", guard) for guard in guards_of_users(e.guards) if not guard.at_client)
    if e.merge != "mean" and e.bucket_size > 1:
        yield "bucket-size", Buckets(e.bucket_size).build()
    if e.merge == "multi-krum" and Fact.MEAN not in own.facts:
        yield "merge", Nearest(e.num_malicious).build()
    elif e.merge != "mean":
        yield "merge", RobustCenter(e.merge, e.num_malicious).build()
    noise = _noise(e, own, multiplier)
    if noise and e.privacy == "central" and e.aggregation == "plain":
        yield "privacy", noise.build()


def _noise(e: SharedSettings, own: MethodSettings, multiplier: float) -> Noise | None:
    if e.privacy == "local":
        return LocalNoise(e.clip, multiplier)
    if e.privacy == "central":
        return (SecureSum if e.aggregation == "secure" else CentralNoise)(multiplier)
    if e.privacy == "example":
        return RowStatistics(multiplier) if own.tables else RowNoise(e.clip, multiplier)
    return None


def noise_in_words(e: Experiment) -> str:
    """Describes the noise of a private run, and its bound."""
    if e.privacy == "none":
        return f"privacy by {e.guards}"
    solved_for, first = " (for epsilon)" * (e.epsilon > 0), " at first" * (e.clip_quantile > 0)
    noise = f"noise-multiplier {noise_multiplier(e):g}{solved_for}"
    return f"{e.privacy} privacy by {noise} and clip {e.clip:g}{first}"


def noise_multiplier(e: Experiment) -> float:
    """Returns the noise multiplier: the setting, or the least one that meets ``epsilon``.

    Where users' guards alone have noise, it is the least of theirs, by what they release.

    Raises:
        Refused: No multiplier up to 10^6 reaches the target.
    """
    noise, plan = _noise(e, e.own, e.noise_multiplier), plan_of(e)
    others = chain(*guards_of_users(e.guards)).releases(plan)
    if noise is None:
        return min((release.multiplier for release in others), default=e.noise_multiplier)
    if not e.epsilon:
        return e.noise_multiplier
    found = _solved(noise, others, plan, e.epsilon, e.delta)
    if found > MOST:
        expected = (
            f"larger: {e.rounds} rounds at delta {e.delta:g} would need a noise-multiplier above "
            f"{MOST:g}; raise epsilon or delta, or lower num-rounds"
        )
        raise Refused(must("epsilon", e.epsilon, expected))
    return found


@lru_cache
def _solved(
    noise: Noise, others: tuple[Release, ...], plan: Plan, epsilon: float, delta: float
) -> float:
    def releases(z: float) -> tuple[Release, ...]:
        return (*replace(noise, multiplier=z).build().releases(plan), *others)

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
    return not protections(e).reports or (server_round > 0 and e.eval_every != _EVAL_EVERY)


def _screening(e: Experiment, method: Method, running: Set[str]) -> list[Guard]:
    """Returns the guards that compare updates where nothing bounds them."""
    plain, by_mean = e.merge == "mean", isinstance(method.server.merge, FromMean)
    clips = bool(e.clip) and e.privacy != "example"  # whose bound is that of a row's gradient
    slots = [x for x in method.server.start.values() if isinstance(x, dict)]
    averages = any(running & x.keys() for x in slots)  # which no clip bounds
    bounded = not plain or (clips and not averages)
    found = [] if bounded else [FAR]
    # A stream's next rows are so few that honest updates differ by more than any bound.
    if not bounded and e.order != "stream":
        found.append(NormBound(e.max_norm).build())
    if method.claims and (plain or not by_mean):
        found.append(ComparedClaims(method.claims, e.max_weight, e.max_norm).build())
    return found


def check_codes(e: Experiment, shapes: Shapes, running: Set[str]) -> None:
    """Refuses codes for a method without a common model to change.

    Raises:
        Refused: There is none.
    """
    if e.compress == "none":
        return
    why = "which sends each client a model of its own" if flat(shapes.own) else ""
    if not why and not Layout.of(_coder(e), shapes.method.kinds, shapes.sent, running).coded:
        why = "whose clients send no model"
    if why:
        raise Refused(must("compress", e.compress, f"none for {e.method}, {why}"))


def _broadcast(e: Experiment, running: Set[str] = frozenset()) -> Guard:
    # Clients are numbered from 0, so that the server has a stream of its own.
    draw = partial(uniform, e.seed, Stream.COMPRESSION)
    coder = quantized(8) if _is_whole(e) else _coder(e)  # 4 bits are too few for a model
    cast = Broadcast(coder, _is_whole(e), draw)
    return Guard("broadcast", broadcast=cast, method=partial(cast.method, running=running))


def _is_whole(e: SharedSettings) -> bool:
    return e.compress in ("8-bit", "4-bit")


def _coder(e: SharedSettings) -> Coder:
    kind = e.compress.partition(":")[0]
    if kind == "top-k":
        return top_k(number_in(e.compress, 0.01))
    if kind == "low-rank":
        return low_rank(round(number_in(e.compress, 2)))
    return quantized(8 if kind == "8-bit" else 4)


def _universal(e: Experiment, running: Set[str], method: Method) -> Method:
    from engram.online.server_step import universal_step  # noqa: PLC0415 - numba is slow to import

    return universal_step(method, radius=e.server_radius, running=frozenset(running))
