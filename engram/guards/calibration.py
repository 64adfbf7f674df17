"""The noise of privacy, its multiplier, and the plan of a run."""

import math
from functools import lru_cache

from engram.core.checks import must
from engram.guards.accounting.composition import MOST, solved
from engram.guards.accounting.releases import Plan, Release
from engram.guards.central_noise import central_noise
from engram.guards.chain import chain
from engram.guards.clip import local_noise
from engram.guards.guard import Guard
from engram.guards.registry import GUARDS, named_guards
from engram.guards.row_noise import row_noise, row_statistics
from engram.guards.secure.secure_sum import secure_sum
from engram.guards.users import guards_of_users
from engram.settings.base import Method, SharedSettings
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment


def noise_of(e: SharedSettings, own: Method, multiplier: float) -> Guard | None:
    """Returns the guard of the noise of ``privacy``, with its multiplier; None without one."""
    if e.privacy == "local":
        return local_noise(e.clip, multiplier)
    if e.privacy == "central":
        return (secure_sum if e.aggregation == "secure" else central_noise)(multiplier)
    if e.privacy == "example":
        return row_statistics(multiplier) if own.tables else row_noise(e.clip, multiplier)
    return None


def noise_multiplier(e: Experiment) -> float:
    """Returns the noise multiplier of a run.

    Where users' guards alone have noise, it is the least of theirs, by what they release.

    Raises:
        Refused: As ``multiplier_of``.
    """
    found = multiplier_of(e)
    if noise_of(e, e.own, found):
        return found
    releases = chain(*guards_of_users(e.guards, found)).releases(plan_of(e))
    return min((release.multiplier for release in releases), default=found)


def multiplier_of(e: Experiment) -> float:
    """Returns the multiplier of noise: the setting, or the least for ``epsilon``.

    Raises:
        Refused: No multiplier up to 10^6 reaches the target.
    """
    if not e.epsilon:
        return e.noise_multiplier
    found = _solved(e, tuple(GUARDS[name] for name, _ in named_guards(e.guards)))
    if found > MOST:
        expected = (
            f"larger: {e.rounds} rounds at delta {e.delta:g} would need a noise-multiplier above "
            f"{MOST:g}; raise epsilon or delta, or lower num-rounds"
        )
        raise Refused(must("epsilon", e.epsilon, expected))
    return found


@lru_cache
def _solved(e: Experiment, _: object) -> float:
    """``_`` has the functions of users' guards, which may be others under the same names."""
    plan = plan_of(e)

    def releases(z: float) -> tuple[Release, ...]:
        noise, users = noise_of(e, e.own, z), guards_of_users(e.guards, z)
        return chain(*users if noise is None else [noise, *users]).releases(plan)

    return solved(releases, plan, e.epsilon, e.delta)


def plan_of(e: Experiment, rows: int = 1) -> Plan:
    """Returns the plan of a run, for a client with so many training rows."""
    unread, there = e.own.unread, e.num_clients - e.unseen_clients
    scored = e.epsilon and asks_for_scores(e)
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


def asks_for_scores(e: Experiment) -> bool:
    """Whether ``eval-every`` is set to other than its default."""
    return bool(e.eval_every != type(e).model_fields["eval_every"].default)
