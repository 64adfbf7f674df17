"""Methods with protections: the same on all engines, and safe from a few who lie."""

import pytest
import torch

from engram.core.method import Update
from engram.core.slots import flat, over_slots, unflat
from engram.core.tree import add_scaled, clip, norm
from engram.guards.changes import changes
from engram.guards.noise import simulated_noise
from engram.guards.robust.centers import median, trimmed_mean
from engram.guards.robust.neighbors import krum
from engram.settings.families import METHODS
from engram.strategies.running.rounds import draw_cohort
from tests.samples import EIGHT
from tests.support import (
    PROTECTED,
    assert_same,
    grid,
    initial_model,
    small_of_any,
    strategy_of,
    train_clients,
    trainer,
)

# Under "local" clients send what they have received. A server that takes a step of its own takes it
# towards what protection makes of the models: that is checked where the settings reach the merge.
NETWORKS = [name for name in EIGHT if name != "fedbn"]  # which wants batch norm
BOUNDED = [name for name in NETWORKS if name in PROTECTED]
MOVED = ["fedavg", "scaffold", "fedem", "local-moml", "pfedme", "fedyogi"]
MERGED = [name for name in MOVED if not METHODS[name].steps]
PROTECTIONS = {
    "mean": {},
    "median": {"merge": "median"},
    "trimmed-mean": {"merge": "trimmed-mean"},
    "krum": {"merge": "krum"},
    "clip": {"clip": 0.05},
    "clip-median": {"clip": 0.05, "merge": "median"},
    "local": {"privacy": "local", "clip": 0.05, "noise_multiplier": 0.1},
    "local-krum": {"privacy": "local", "clip": 0.05, "noise_multiplier": 0.1, "merge": "krum"},
    "central": {"privacy": "central", "clip": 0.05},
}


def thirds(protections, methods, shift=0):
    """Pairs each method with every third protection: with a robust merge, and a bound, at least."""
    return [
        (protection, name)
        for i, protection in enumerate(protections)
        for j, name in enumerate(methods)
        if (i + j + shift) % 3 == 0
    ]


MEAN, *OTHERS = PROTECTIONS
EVERY = [(MEAN, name) for name in NETWORKS] + thirds(OTHERS, BOUNDED)
# The ensemble's step is one function of what was merged.
ENSEMBLES = [(MEAN, "fedavg"), ("krum", "pfedme"), ("central", "local-moml")]


def experiment(protection, **settings):
    return small_of_any(**({"clients_per_round": 9} | PROTECTIONS[protection] | settings))


def federation(e, nodes=20, engine="vectorized"):
    noise = simulated_noise(e.seed)
    g = grid(trainer(e, engine=engine, noise=noise), nodes)
    return *strategy_of(e, g, noise=noise), g


def rounds(e, *, count=1, nodes=20, engine="vectorized", spoil=lambda replies: replies):
    strategy, model, g = federation(e, nodes, engine)
    for server_round in range(1, count + 1):
        messages = strategy.configure_train(server_round, model, {}, g)
        replies = spoil(list(g.ask(messages, timeout=60)))
        arrays, metrics = strategy.aggregate_train(server_round, replies)
        model = arrays
    return model, metrics


def distance(one, other):
    return float(norm(add_scaled(one, -1.0, other)))


@pytest.mark.parametrize(("protection", "method"), EVERY)
def test_nodes_and_engines_do_not_matter(method, protection):
    e = experiment(protection, method=method, server_mix=0.7, clients_per_round=5)
    expected, metrics = rounds(e, count=2)
    assert (metrics["clients"], metrics["left-out"]) == (5, 0)
    assert all(leaf.isfinite().all() for leaf in expected.values())
    for nodes, engine in ((1, "vectorized"), (3, "sequential")):
        model, _ = rounds(e, count=2, nodes=nodes, engine=engine)
        assert_same(model, expected, atol=1e-5)


@pytest.mark.parametrize(("protection", "method"), ENSEMBLES)
def test_nor_with_the_ensembles_step(method, protection):
    e = experiment(protection, method=method, server_step="universal:1.5")
    expected, _ = rounds(e, count=2)
    strategy, start, _ = federation(e)
    merged, _ = rounds(experiment(protection, method=method))
    first, _ = rounds(e)
    # Towards the merged model, between a fifth and two fifths of the radius far.
    step, update = (torch.cat([(m[k] - start[k]).flatten() for k in m]) for m in (first, merged))
    assert torch.cosine_similarity(step, update, dim=0) > 1 - 1e-5
    assert 0.3 <= step.norm() <= 0.6
    assert strategy.rounds.merge.combines == ("merge" not in PROTECTIONS[protection])
    for nodes, engine in ((1, "vectorized"), (20, "sequential")):
        model, _ = rounds(e, count=2, nodes=nodes, engine=engine)
        assert_same(model, expected, atol=1e-4)


def honest(e):
    """Slots of clients that do nothing, and those that they send after a round."""
    t = trainer(e)
    common = initial_model(t)
    cohort = draw_cohort(e.seed, 1, e.num_clients, e.clients_per_round)
    stack = train_clients(t, common, cohort, server_round=1, durable=0).slots
    each = [over_slots(lambda leaf, i=i: leaf[i], stack) for i in range(len(cohort))]
    away = changes(t.method, common, each[0])
    return flat(over_slots(torch.sub, each[0], away)), [flat(sent) for sent in each]


@pytest.mark.parametrize("method", MOVED)
def test_the_settings_reach_the_merge(method):
    model, models = honest(experiment("mean", method=method))
    for settings, center in (
        ({"merge": "median"}, median(models)),
        ({"merge": "trimmed-mean", "num_malicious": 3}, trimmed_mean(models, 3)),
        ({"merge": "krum", "num_malicious": 2}, krum(models, 2)),
        ({"merge": "median", "clip": 0.05}, median([clip(m, model, 0.05) for m in models])),
    ):
        e = experiment("mean", method=method, server_mix=0.7, **settings)
        merged, _ = rounds(e)
        server = trainer(e).method.server
        mean = Update(unflat(center, server.start), 9.0, 9)
        expected = flat(server.merge.merge(server.start, mean))
        assert_same(merged, {name: expected[name] for name in merged}, atol=1e-5)


def lie(direction):
    """Two of nine send a model moved far, but not so far that it could not be honest."""

    def spoil(replies):
        for reply in replies[:2]:
            told = reply.content["arrays"]
            # Their own axis where replies are stacks of models.
            reply.content["arrays"] = {k: v + direction for k, v in told.items()}
        return replies

    return spoil


SAFE = ["median", "clip", "trimmed-mean", "central", "krum", "clip-median"]


@pytest.mark.parametrize(("protection", "method"), thirds(SAFE, MERGED))
def test_a_minority_that_lies_moves_little(method, protection):
    e = experiment(protection, method=method, num_malicious=2)
    model, models = honest(experiment("mean", method=method))
    truth, _ = rounds(e)
    farthest = max(distance(m, model) for m in models)
    for direction in (1.0, 1e30):
        merged, metrics = rounds(e, spoil=lie(direction))
        assert metrics["left-out"] == 0
        # What it moves by: at most twice as far as an honest client goes, whatever is sent.
        assert distance(merged, truth) <= 2 * farthest


@pytest.mark.parametrize("method", MERGED)
def test_and_a_mean_by_its_share_of_the_bound(method):
    e = experiment("mean", method=method, max_norm=2.0)
    model, models = honest(e)
    farthest = max(distance(m, model) for m in models)
    truth, _ = rounds(e)
    size = sum(leaf.numel() for leaf in model.values())
    merged, metrics = rounds(e, spoil=lie(40 * farthest / size**0.5))
    assert metrics["left-out"] == 0
    # Two of nine go twice as far as the median client, which goes no farther than the farthest, in
    # place of as far as the farthest; each of the slots by itself.
    slots = len({path.split("/")[0] for path in model})
    assert distance(merged, truth) <= 2 / 9 * (2 * slots**0.5 + 1) * farthest


def test_the_server_clips_a_node_that_does_not():
    e = experiment("clip")
    model, _ = honest(e)
    merged, _ = rounds(e, nodes=1, spoil=lie(1.0))
    assert distance(merged, model) == pytest.approx(0.05, rel=1e-4)


def test_a_minority_cannot_outvote_by_local_noise():
    # Honest noise has the norm 0.1 * 0.05 * sqrt(d); nobody gets farther than that and a little.
    e = experiment("local", method="local-moml")
    size = sum(leaf.numel() for leaf in flat(initial_model(trainer(e))).values())
    bound = 0.05 + 0.1 * 0.05 * (size**0.5 + 6)
    truth, _ = rounds(e)
    merged, metrics = rounds(e, spoil=lie(1e30))
    assert metrics["left-out"] == 0
    assert distance(merged, truth) <= 2 / 9 * 2 * bound


@pytest.mark.parametrize("protection", ["median", "trimmed-mean", "krum"])
def test_rounds_with_clients_missing_are_merged_as_well_as_they_can_be(protection):
    e = experiment(protection, num_malicious=2)
    _, models = honest(experiment("mean"))
    for left in (7, 3, 2, 1):
        merged, metrics = rounds(e, spoil=lambda replies, left=left: replies[:left])
        center = {
            "median": median(models[:left]),
            "trimmed-mean": trimmed_mean(models[:left], 2),
            "krum": krum(models[:left], 2),
        }[protection]
        assert_same(merged, center, atol=1e-5)
        assert metrics["left-out"] == 9 - left


def test_a_client_missing_from_a_private_round_counts_as_one_that_changed_nothing():
    e = experiment("central", noise_multiplier=1e-6)
    model, models = honest(experiment("mean"))
    merged, _ = rounds(e, spoil=lambda replies: replies[:6])
    held = [clip(m, model, 0.05) for m in models[:6]] + [model] * 3
    expected = {k: torch.stack([m[k] for m in held]).mean(dim=0) for k in model}
    assert_same(merged, expected, atol=1e-6)


@pytest.mark.parametrize("method", MERGED)
def test_the_noise_of_a_private_round_has_the_derived_deviation(method):
    mix = 0.7 if method == "pfedme" else 1.0
    settings = {"method": method, "server_mix": 0.7, "hidden": "64"}
    noisy, quiet = (
        rounds(experiment("central", noise_multiplier=z, **settings))[0] for z in (2.0, 1e-6)
    )
    added = torch.cat([(noisy[k] - quiet[k]).flatten() for k in noisy])
    deviation = mix * 2.0 * 0.05 / 9
    assert float(added.std()) == pytest.approx(deviation, rel=0.05)  # 4810 numbers: 1 %
    assert abs(float(added.mean())) < 5 * deviation / added.numel() ** 0.5


def test_no_reply_is_left_out_for_its_distance_where_that_would_tell_on_others():
    # Whether an unbounded reply is left out depends on what the others sent.
    _, metrics = rounds(experiment("mean"), spoil=lie(1e30))
    assert metrics["rejected-size"] == 2
    _, metrics = rounds(experiment("central"), spoil=lie(1e30))
    assert metrics["left-out"] == 0
