"""Audits of central privacy with canaries: what an attacker finds is no more than what is claimed.

A canary is a client whose update is the longest that clipping lets through, along a coordinate of
its own that no other client moves. So one federation has many canaries at once, and its other
coordinates show what is seen without them; or, where clients' data are replaced, of as many that
move theirs the other way. The attacker adds up what was released of a coordinate, and says "took
part" above a threshold that half of the coordinates choose. On the other half,
one-sided Clopper-Pearson bounds at 99 % on the rates of true and false positives give, with that
probability, a lower bound of epsilon: ln((TPR - delta) / FPR).
"""

import math

import pytest
import torch
from scipy.stats import beta

from engram.core.method import Update
from engram.core.slots import flat, unflat
from engram.guards.accounting.guarantee import spent
from engram.guards.calibration import plan_of
from engram.guards.merge import Merge
from engram.guards.noise import simulated_noise
from engram.guards.secret_samples import poisson_cohort, subset_cohort
from engram.strategies.running.rounds import Rounds
from tests.support import small, trainer

CANARIES, ROUNDS, DELTA = 400, 5, 1e-5


def at_least(hits, trials, level=0.99):
    return float(beta.ppf(1 - level, hits, trials - hits + 1)) if hits else 0.0


def at_most(hits, trials, level=0.99):
    return float(beta.ppf(level, hits + 1, trials - hits)) if hits < trials else 1.0


def found_by(seen, unseen, delta=DELTA):
    """Returns the lower bound of epsilon of the best threshold of half of the coordinates."""

    def bound(ins, outs, threshold):
        low = at_least(int((ins > threshold).sum()), len(ins))
        return math.log(max(low - delta, 1e-9) / at_most(int((outs > threshold).sum()), len(outs)))

    grid = torch.cat([seen[::2], unseen[::2]]).sort().values[::20].tolist()
    chosen = max(grid, key=lambda threshold: bound(seen[::2], unseen[::2], threshold))
    return bound(seen[1::2], unseen[1::2], chosen)


def audited(e, multiplier):
    """Returns the bound that an attacker finds if the noise has this multiplier."""
    method = Rounds.of(e, trainer(e).data.kind, simulated_noise(0)).merge.method
    noisy = e.model_copy(update={"noise_multiplier": multiplier, "clients_per_round": 1})
    replaced = e.sampling == "without-replacement"
    clients = 2 * CANARIES if replaced else CANARIES
    seen, unseen = [], []
    for seed in range(4):
        noise = simulated_noise(seed)
        merge, server = Merge(noisy, method, frozenset(), noise), method.server.start
        before = vector(server)
        for server_round in range(1, ROUNDS + 1):
            drawn = range(clients)
            if replaced:
                drawn = subset_cohort(
                    round(clients * plan_of(e).rate), server_round, clients, noise
                )
            elif e.sampling == "poisson":
                drawn = poisson_cohort(plan_of(e).rate, server_round, clients, noise)
            way = [10 * e.clip if j < CANARIES else -10 * e.clip for j in range(clients)]
            updates = [Update(canary(server, j, way[j]), 1) for j in drawn]
            server = merge(server, updates, server_round)
        after = vector(server) - before
        seen.append(after[:CANARIES])
        unseen.append(after[CANARIES:clients] if replaced else after[CANARIES:])
    return found_by(torch.cat(seen), torch.cat(unseen))


def vector(slots):
    return torch.cat([leaf.flatten() for leaf in flat(slots).values()])


def canary(server, j, length):
    """Returns the slots with their j-th number moved."""
    moved, at = {}, 0
    for path, leaf in flat(server).items():
        moved[path] = leaf.clone()
        if at <= j < at + leaf.numel():
            moved[path].view(-1)[j - at] += length
        at += leaf.numel()
    return unflat(moved)


def run_of(sampling, multiplier):
    private = {"privacy": "central", "clip": 0.1, "noise_multiplier": multiplier}
    return small(method="fedavg", hidden="40", sampling=sampling, clients_per_round=10, **private)


@pytest.mark.parametrize("sampling", ["fixed", "poisson", "without-replacement"])
def test_an_audit_finds_something_and_no_more_than_is_claimed(sampling):
    claimed = spent(e := run_of(sampling, 1.0), ROUNDS)
    assert 0.1 * claimed < audited(e, 1.0) <= claimed


@pytest.mark.parametrize(
    ("sampling", "multiplier"), [("fixed", 3.0), ("poisson", 3.0), ("without-replacement", 6.0)]
)
def test_an_audit_finds_out_a_twelfth_of_the_noise(sampling, multiplier):
    e = run_of(sampling, multiplier)
    assert audited(e, multiplier / 12) > spent(e, ROUNDS)


def test_the_bounds_are_those_of_clopper_and_pearson():
    """Without a hit in n trials the rate is at most 1 - 0.01^(1/n), and so with hits alone."""
    assert at_most(0, 100) == pytest.approx(1 - 0.01 ** (1 / 100))
    assert at_least(100, 100) == pytest.approx(0.01 ** (1 / 100))
    assert at_least(0, 9) == 0
    assert at_most(9, 9) == 1
