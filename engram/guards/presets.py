"""The guards that an experiment's settings name, in their order."""

from collections.abc import Iterator, Set

from engram.core.method import Method
from engram.guards.adaptive_clip import adaptive_clip, count_of
from engram.guards.calibration import asks_for_scores, multiplier_of, noise_of
from engram.guards.chain import chain
from engram.guards.clip import clip
from engram.guards.compression.presets import broadcast, compressed
from engram.guards.facts import Fact
from engram.guards.guard import Guard
from engram.guards.robust.choices import buckets, krum_choice, robust_center
from engram.guards.robust.claims import claimed_ranges
from engram.guards.robust.compared_claims import compared_claims
from engram.guards.robust.lengths import FAR, norm_bound
from engram.guards.robust.row_weights import row_weights, weighs_rows
from engram.guards.secure.secure_sum import secure_sum
from engram.guards.server_step import universal
from engram.guards.users import guards_of_users
from engram.settings import base
from engram.settings.experiment import Experiment


def guards_of(e: Experiment, method: Method, running: Set[str]) -> Guard:
    """Returns the chain of an experiment's guards, for its method without them."""
    given = e, e.own, multiplier_of(e)
    clients, server = ([guard for _, guard in some(*given)] for some in (at_clients, at_server))
    found = list[Guard]()
    if e.server_step != "replace":
        found.append(universal(e.server_radius, running))
    if method.claims:
        noisy = any(Fact.EXACT in guard.ends for guard in clients)
        found.append(claimed_ranges(method.claims, mend=noisy))
    if weighs_rows(method, chain(*clients, *server)):
        found.append(row_weights(e.max_weight))
    found += clients
    if not any(Fact.SUM in guard.needs for guard in (*clients, *server)):
        found += _screening(e, method, running)
    found += server
    if e.compress != "none":
        found.append(broadcast(e, running))
    return chain(*found)


def client_guards(e: Experiment) -> Guard:
    """Returns the chain of those guards that act before updates leave clients."""
    guards = [guard for _, guard in at_clients(e, e.own, multiplier_of(e))]
    return chain(*guards, *([broadcast(e)] if e.compress != "none" else []))


def protections(e: Experiment) -> Guard:
    """Returns the chain of the guards that settings name, accounted for."""
    given = e, e.own, multiplier_of(e)
    return chain(*(guard for _, guard in (*at_clients(*given), *at_server(*given))))


def at_clients(
    e: base.SharedSettings, own: base.Method, multiplier: float
) -> Iterator[tuple[str, Guard]]:
    """Yields the guards that act at clients first, in this order, by the setting that names each.

    ``own`` are the method's settings, and ``multiplier`` is that of noise.
    """
    noise = noise_of(e, own, multiplier)
    if noise and e.privacy != "central":
        yield "privacy", noise
    elif e.clip and not e.clip_quantile:
        yield "clip", clip(e.clip)
    users = guards_of_users(e.guards, multiplier)
    yield from (("guards", guard) for guard in users if guard.acts("rows", "leave", "send"))
    if e.aggregation == "secure":
        yield "aggregation", noise if noise and e.privacy == "central" else secure_sum()
    if e.compress != "none":
        yield "compress", compressed(e)


def at_server(
    e: base.SharedSettings, own: base.Method, multiplier: float
) -> Iterator[tuple[str, Guard]]:
    """Yields the guards that act at the server alone, in this order, likewise."""
    if e.clip_quantile:
        count = count_of(multiplier, e.clients_per_round)
        yield "clip-quantile", adaptive_clip(e.clip, e.clip_quantile, count)
    users = guards_of_users(e.guards, multiplier)
    yield from (("guards", guard) for guard in users if not guard.acts("rows", "leave", "send"))
    if e.merge != "mean" and e.bucket_size > 1:
        yield "bucket-size", buckets(e.bucket_size)
    if e.merge == "multi-krum" and Fact.MEAN not in own.facts:
        yield "merge", krum_choice(e.num_malicious)
    elif e.merge != "mean":
        yield "merge", robust_center(e.merge, e.num_malicious)
    noise = noise_of(e, own, multiplier)
    if noise and e.privacy == "central" and e.aggregation == "plain":
        yield "privacy", noise


def is_scored(e: Experiment, server_round: int) -> bool:
    """Whether a round is evaluated although scores may cost part of a total epsilon.

    Untrained models are not, nor later ones unless ``eval-every`` is set to other than its default.
    """
    return not protections(e).acts("report") or (server_round > 0 and asks_for_scores(e))


def _screening(e: Experiment, method: Method, running: Set[str]) -> list[Guard]:
    plain = e.merge == "mean"
    clips = bool(e.clip) and e.privacy != "example"  # whose bound is that of a row's gradient
    slots = [x for x in method.server.start.values() if isinstance(x, dict)]
    averages = any(running & x.keys() for x in slots)  # which no clip bounds
    bounded = not plain or (clips and not averages)
    found = [] if bounded else [FAR]
    # A stream's next rows are so few that honest updates differ by more than any bound.
    if not bounded and e.order != "stream":
        found.append(norm_bound(e.max_norm))
    if method.claims and (plain or Fact.MEAN not in e.own.facts):
        found.append(compared_claims(method.claims, e.max_weight, e.max_norm))
    return found
