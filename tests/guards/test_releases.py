"""Epsilon of each preset beside a computation of its own, of guards that nobody knows, and audited.

An audit lets a guard of the product noise the largest influence that a unit may have, and nothing,
of many numbers each: the lower bound of epsilon that an attacker finds from these (see
``tests.strategies.running.test_audit``) is near the claimed one, and above it with half the noise.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch.func import vmap

from engram.cohort.trainer.sending import leave_together
from engram.core.method import Update
from engram.core.types import Sampled
from engram.guards.accounting import accountant, guarantee
from engram.guards.accounting.accountant import PrivacyAccountant
from engram.guards.accounting.composition import costs, epsilon_by_answers, planned
from engram.guards.accounting.releases import Plan, Release
from engram.guards.calibration import noise_multiplier, plan_of
from engram.guards.central_noise import central_noise
from engram.guards.chain import chain
from engram.guards.changes import change_of
from engram.guards.clip import clip, local_noise
from engram.guards.guard import Guard
from engram.guards.places import Sum
from engram.guards.presets import protections
from engram.guards.row_noise import row_noise
from engram.guards.row_sums import summed
from engram.guards.secure.noise import deviation, discrete_gaussian
from engram.guards.secure.quantize import levels, room_of
from engram.guards.secure.secure_sum import secure_sum
from engram.methods.fedavg import FedAvg
from engram.settings.experiment import Experiment
from tests.epsilons import DELTA, gaussian
from tests.guards.test_amplification import by_distribution, by_theorem_27
from tests.guards.test_changes import at_of
from tests.methods.problem import built
from tests.samples import entry
from tests.strategies.running.test_audit import found_by

N = 20  # rounds


def concentrated(rho):
    """Bun and Steinke, Prop. 1.3."""
    return rho + 2 * math.sqrt(rho * math.log(1 / DELTA))


def preset(method="fedavg", **settings):
    return {"method": method, "clip": 0.5, "num_clients": 20, "num_rounds": N} | settings


CENTRAL = preset(privacy="central", noise_multiplier=5.0, clients_per_round=2)
ROWS = {"privacy": "example", "noise_multiplier": 2.0}
TABLE = [  # settings, rows of a client, epsilon after all rounds, relative difference
    (CENTRAL, 1, gaussian(math.sqrt(N) / 5), 1e-8),
    (CENTRAL | {"clip_quantile": 0.5}, 1, gaussian(math.sqrt(N) / 5), 1e-8),
    (CENTRAL | {"aggregation": "secure"}, 1, concentrated(N / (2 * 5.0**2)), 1e-12),
    (CENTRAL | {"sampling": "poisson"}, 1, by_distribution(5.0, 0.1, N, DELTA), 1e-2),
    (
        CENTRAL | {"sampling": "without-replacement", "num_rounds": 300},
        1,
        by_theorem_27(2.5, 0.1, 300, DELTA),
        1e-8,
    ),
    (preset(privacy="local", noise_multiplier=8.0), 1, gaussian(2 * math.sqrt(N) / 8), 1e-8),
    (preset(**ROWS, batch_size=10, local_steps=3), 100, by_distribution(2, 0.1, 3 * N, 1e-5), 1e-2),
    (preset(**ROWS, batch_size=10, local_steps=3), 10, gaussian(math.sqrt(3 * N) / 2), 1e-8),
    ({"method": "molar", "clip": 0.5, **ROWS}, 100, gaussian(1 / 2), 1e-8),
    (
        preset("molar-bandit", **ROWS, history="batch", num_rounds=8),
        100,
        gaussian(math.sqrt(2) / 2),
        1e-8,
    ),
]


def test_epsilon_is_that_of_the_mechanism():
    for settings, rows, expected, off in TABLE:
        with entry(settings):
            e = Experiment(**settings)
            plan = plan_of(e, rows)
            found = planned(protections(e).releases(plan), plan, e.delta)
            assert found == pytest.approx(expected, rel=off)


def test_a_target_beside_a_secure_sum_has_the_noise_of_concentrated_privacy():
    """rho + 2 sqrt(rho L) = epsilon, L = ln(1 / delta), so sqrt(rho) = sqrt(L + epsilon) - sqrt(L);
    and N releases have rho = N / (2 z^2).
    """
    for target in (0.5, 3.0, 8.0):
        settings = preset(privacy="central", aggregation="secure", epsilon=target)
        span = math.log(1 / DELTA)
        rho = (math.sqrt(span + target) - math.sqrt(span)) ** 2
        found = noise_multiplier(Experiment(**settings))
        least = math.sqrt(N / (2 * rho))
        assert least <= found <= least * 1.0015  # solved to 1e-4, and rounded up to four digits


# --- Guards that nobody knows --------------------------------------------------------------------


def stranger(first, second):
    """Two looks at a client in each round, of which one is about a Poisson sample."""

    def releases(plan):
        return Release(first), Release(second, rate=plan.rate, times=3)

    return Guard("stranger", releases=releases)


def test_a_guard_that_nobody_knows_is_accounted_for(monkeypatch):
    guard = chain(clip(1.0), stranger(4.0, 3.0))
    e = Experiment(**preset())
    for module in (accountant, guarantee):
        monkeypatch.setattr(module, "protections", lambda e: guard)
    account = PrivacyAccountant(e, 0, None)
    for cohort in ([1, 2], [2], [3]):
        account.note(cohort)
    twice = gaussian(math.sqrt(2 * (1 / 4**2 + 3 / 3**2)))
    assert account.claim["epsilon"] == pytest.approx(twice, rel=1e-8)
    assert account.claim["adjacency"] == "one client is added or removed"
    assert account.by_client()[3] == pytest.approx(gaussian(math.sqrt(1 / 16 + 1 / 3)), rel=1e-8)
    all_ = gaussian(math.sqrt(N * (1 / 16 + 1 / 3)))
    assert f"epsilon at most {all_:.4g} at delta 1e-05" in guarantee.guarantee(e)
    assert guarantee.is_weak(e) == (all_ > 10)


def test_releases_of_different_kinds_are_composed():
    plan = Plan(rounds=N, rate=0.1)
    found = stranger(4.0, 3.0).releases(plan)
    assert costs(found) == (1 / 16, {(3.0, 0.1): 3}, {})
    both = epsilon_by_answers(found, DELTA)(N)
    assert gaussian(math.sqrt(N) / 4) < both < gaussian(math.sqrt(N * (1 / 16 + 3 / 9)))
    assert both < gaussian(math.sqrt(N) / 4) + by_distribution(3.0, 0.1, 3 * N, DELTA)
    assert chain(stranger(4.0, 3.0), stranger(2.0, 1.0)).releases(plan)[2:] == (
        Release(2.0),
        Release(1.0, 0.1, 3),
    )
    assert epsilon_by_answers([], DELTA)(N) == 0


def test_releases_that_hide_different_things_have_no_epsilon_together():
    with pytest.raises(ValueError, match="releases must hide the same, got"):
        epsilon_by_answers([Release(1.0), Release(1.0, unit="row")], DELTA)


# --- Audits --------------------------------------------------------------------------------------

MANY, LARGE = 40_000, 0.01  # numbers, and a delta at which these bounds are tight


def central(guard, _):
    at = at_of(built(FedAvg()), {"model": {"w": torch.zeros(MANY)}})._replace(bound=0.5, asked=1)
    at = at._replace(normal=lambda size, stream: torch.randn(size))

    def noised(influence):
        (mean,) = guard.gather(at, [Update({"model": {"w": torch.full((MANY,), influence)}}, 1.0)])
        return change_of(at, mean)["model/w"]

    return noised(0.5), noised(0.0)


def local(guard, _):
    zero = {"model": {"w": torch.zeros(1)}}
    at = at_of(built(FedAvg()), zero)._replace(server=zero)

    def noised(influence):
        xi = torch.randn(MANY, 1)
        sent = {"model": {"w": torch.full((MANY, 1), 9 * influence)}}
        left = leave_together(guard, at._replace(normal=lambda *_: xi), {}, sent)
        return left["model"]["w"][:, 0].double()

    return noised(1.0), noised(-1.0)


def rows(guard, _):
    objective = guard.rows(None, summed(lambda w, batch: (batch[0] * w["w"]).sum()))

    def noised(taken):
        batch = torch.full((MANY, 1, 1), 9.0), torch.zeros(MANY, 1)
        some = Sampled(batch, torch.full((MANY, 1), taken), torch.randn(MANY, 1), torch.ones(MANY))
        return vmap(lambda step: objective.gradient({"w": torch.zeros(1)}, step))(some)["w"][:, 0]

    return noised(1.0), noised(0.0)


def shared(_, z):
    """Noise of the fewest sites that a sum has."""
    total, entropy = Sum(3, 3, 2), np.random.default_rng(0).bytes
    spread, room = (f(total, z) for f in (partial(deviation, size=MANY), room_of))

    def noised(influence):
        shares = [discrete_gaussian(MANY, spread, entropy) for _ in range(total.least)]
        return torch.from_numpy(np.sum(shares, axis=0) + influence * levels(room))

    return noised(1.0), noised(0.0)


AUDITS = {  # all with the influence of one deviation
    "central": (central_noise, 1.0, central),
    "local": (partial(local_noise, 0.5), 2.0, local),
    "rows": (partial(row_noise, 0.5), 1.0, rows),
    "shared": (secure_sum, 1.0, shared),
}


@pytest.mark.parametrize("name", AUDITS)
def test_an_audit_finds_what_is_claimed_and_half_of_the_noise(name):
    torch.manual_seed(0)
    guard, z, mechanism = AUDITS[name]
    claimed = epsilon_by_answers(guard(z).releases(Plan(rounds=1)), LARGE)(1)
    assert 0.75 * gaussian(1.0, LARGE) < found_by(*mechanism(guard(z), z), LARGE) <= claimed
    assert found_by(*mechanism(guard(z / 2), z / 2), LARGE) > claimed
