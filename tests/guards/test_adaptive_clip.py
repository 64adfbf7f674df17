"""Adaptive clipping against its equations, its split of the budget, and a known quantile."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from engram.core.method import Update
from engram.guards.adaptive_clip import BOUND, adaptive_clip, count_of
from engram.guards.changes import change_of, length_of
from engram.guards.noise import simulated_noise
from engram.runs.run import Run
from engram.simulations.engine import simulate
from engram.strategies.running.rounds import Rounds
from tests.guards.test_changes import at_of
from tests.samples import entry
from tests.support import assert_same, small, trainer

ADAPTIVE = {"method": "fedavg", "privacy": "central", "clip": 0.1}
ADAPTIVE |= {"clip_quantile": 0.5, "noise_multiplier": 1.0}


def rounds_of(noise, **settings):
    e = small(**ADAPTIVE | settings)
    return Rounds.of(e, trainer(e).data.kind, noise)


def moved(server, length):
    """Returns an update that lies at a distance from the model."""
    size = sum(leaf.numel() for leaf in server["model"].values())
    model = {n: leaf + length / math.sqrt(size) for n, leaf in server["model"].items()}
    return Update({"model": model}, 1)


def silent(size, stream, *keys):
    return torch.zeros(size)


def split(multiplier, clients):
    """The paper's two releases: multiplier of the sum of updates, and deviation of the count."""
    deviation = max(clients / 20, multiplier)
    return (multiplier**-2 - (2 * deviation) ** -2) ** -0.5, deviation


def test_one_release_of_both_is_the_papers_two_of_the_same_cost():
    """Gaussian releases compose by their inverse variances; the count's sensitivity is 1/2."""
    for multiplier, clients in [(1.0, 1000), (0.5, 100), (3.0, 10), (8.0, 4)]:
        with entry(multiplier, clients):
            k = count_of(multiplier, clients)
            updates, deviation = split(multiplier, clients)
            # Noise of z C sqrt(1 + k^2 / 4) on each number: on changes, and on k C (b - 1/2).
            assert multiplier * math.hypot(1, k / 2) == pytest.approx(updates)
            assert multiplier * math.hypot(1, k / 2) / k == pytest.approx(deviation)
            if clients / 20 >= multiplier:
                assert deviation == clients / 20  # the paper's
            assert updates <= 2 / math.sqrt(3) * multiplier * (1 + 1e-12)


def after_round(rounds, server, updates, server_round=1):
    if updates:
        return rounds.merge(server, updates, server_round)
    nobody = rounds.merge.nobodys(server, rounds.shapes.sent, server_round)
    at = rounds.merge.at(server, server_round)
    return rounds.merge.after(server, rounds.merge.guard.gather(at, [nobody]))


def test_the_bound_moves_by_the_share_of_updates_within_it():
    rounds = rounds_of(silent, clients_per_round=4)
    server = rounds.merge.method.server.start
    assert float(server[BOUND]) == pytest.approx(0.1)
    updates = [moved(server, length) for length in (0.05, 0.099, 0.2, 0.3)]
    for count, within in ((4, 2), (3, 2), (1, 1), (0, 0)):
        after = after_round(rounds, server, updates[:count])
        # Who is missing counts as one half: the share is 1/2 + (within - count / 2) / 4.
        share = 0.5 + (within - count / 2) / 4
        assert float(after[BOUND]) == pytest.approx(0.1 * math.exp(-0.2 * (share - 0.5)))


def test_updates_are_clipped_to_the_bound_of_the_round_not_to_the_first():
    rounds = rounds_of(silent, clients_per_round=1)
    server = rounds.merge.method.server.start | {BOUND: torch.tensor(0.25)}
    after = rounds.merge(server, [moved(server, 2.0)], 1)
    far = torch.cat([(after["model"][n] - x).flatten() for n, x in server["model"].items()])
    assert float(far.norm()) == pytest.approx(0.25, rel=1e-4)


def test_the_bound_comes_to_the_quantile():
    """Lengths are log-normal; their 0.7 quantile is exp(0.7's normal quantile)."""
    several = {"clients_per_round": 20, "noise_multiplier": 0.5}
    rounds = rounds_of(simulated_noise(1), clip_quantile=0.7, **several)
    server, rng = rounds.merge.method.server.start, np.random.default_rng(0)
    bounds = []
    for server_round in range(1, 201):
        updates = [moved(server, float(x)) for x in np.exp(rng.standard_normal(20))]
        start = rounds.merge.method.server.start["model"]
        server = rounds.merge(server, updates, server_round) | {"model": start}
        bounds.append(math.log(float(server[BOUND])))
    assert np.mean(bounds[60:]) == pytest.approx(norm.ppf(0.7), abs=0.15)


def test_the_noise_is_that_of_the_split():
    e = small(**ADAPTIVE | {"clients_per_round": 10, "noise_multiplier": 2.0})
    drawn = []

    def noise(size, stream, *keys):
        drawn.append((size, keys))
        return torch.ones(size)

    rounds = Rounds.of(e, trainer(e).data.kind, noise)
    server = rounds.merge.method.server.start
    after = after_round(rounds, server, [], 7)
    updates, deviation = split(2.0, 10)
    for name, leaf in server["model"].items():
        torch.testing.assert_close(after["model"][name], leaf + updates * 0.1 / 10)
    assert float(after[BOUND]) == pytest.approx(0.1 * math.exp(-0.2 * deviation / 10))
    assert drawn == [(1 + sum(x.numel() for x in server["model"].values()), (7,))]


def test_a_run_records_its_bounds_and_goes_on_with_them(tmp_path):
    e = small(**ADAPTIVE, num_rounds=6)
    simulate(e, tmp_path / "whole")
    simulate(e.model_copy(update={"num_rounds": 4}), tmp_path / "part")
    simulate(e.model_copy(update={"resume": str(tmp_path / "part")}), tmp_path / "part")
    one, two = (Run.open(tmp_path / name) for name in ("whole", "part"))
    bounds = [[row["clip"] for row in record.rows()[1:]] for record in (one, two)]
    assert bounds[0] == bounds[1]
    assert bounds[0][0] == pytest.approx(0.1)
    assert len(set(bounds[0])) == 6
    assert_same(one.load_checkpoint().model, two.load_checkpoint().model)


def test_clients_send_updates_that_are_not_clipped_and_one_each():
    e = small(**ADAPTIVE | {"clip": 1e-6})
    t = trainer(e)
    rounds = Rounds.of(e, t.data.kind, silent)
    assert not rounds.merge.combines
    server = rounds.merge.method.server.start
    (sent,) = t.train({"model": server["model"]}, [[3]], server_round=1, durable=0)
    update = {"model": {n: leaf[0] for n, leaf in sent.slots["model"].items()}}
    at = at_of(t.method, {"model": server["model"]})
    assert length_of(change_of(at, Update(update, 1))) > 1e-4


def test_a_method_whose_server_sees_every_update_is_refused():
    e = small(method="fedamp")
    with pytest.raises(ValueError, match="clip-quantile must be 0 for a method whose server sees"):
        adaptive_clip(1.0, 0.5, 0.2).method(trainer(e).method)
