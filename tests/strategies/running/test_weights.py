"""What clients claim of their rows: nobody owns the model by it, on however many nodes."""

import numpy as np
import torch

from engram.core.slots import unflat
from engram.core.tree import clip
from engram.guards.noise import simulated_noise
from engram.runs.run import Run
from engram.server.roster import query_roster
from engram.simulations.engine import simulate
from engram.strategies.running.network_strategy import Federated
from tests.samples import entry
from tests.support import assert_same, grid, initial_model, small, train_clients, trainer

CLAIM = 2**31 - 1  # the most that a roster takes
NODES = [1, 3, 20]


def experiment(**settings):
    every = {"method": "fedavg", "clients_per_round": 20, "validation_fraction": 0.0}
    return small(**(every | settings))


def lying(e, liars, claim=CLAIM):
    """A trainer some of whose clients have one row, and say that they have so many."""
    t = trainer(e, noise=simulated_noise(e.seed))
    for client in liars:
        t.data.train.rows[client] = np.broadcast_to(t.data.train.rows[client][:1], claim)
    return t


def federation(t, nodes):
    e, g = t.experiment, grid(t, nodes)
    return Federated.build(e, query_roster(g, e.num_clients), simulated_noise(e.seed)), g


def rounds(t, nodes, count=1):
    strategy, g = federation(t, nodes)
    arrays = strategy.init()
    for number in range(1, count + 1):
        messages = strategy.configure_train(number, arrays, {}, g)
        arrays, metrics = strategy.aggregate_train(number, g.ask(messages, timeout=60))
    return unflat(arrays)["model"], metrics


def models(t):
    """What the clients make of the initial model, stacked."""
    clients = range(t.experiment.num_clients)
    return train_clients(t, initial_model(t), clients, server_round=1, durable=0).slots["model"]


def mean_of(stack, weights):
    shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    return {k: torch.tensordot(shares, leaf.double(), dims=1).float() for k, leaf in stack.items()}


# Clients 0..9 have 40 rows, the others 20. The median of 20 clients is the tenth from below: it has
# 20 rows if all ten clients of 20 rows are honest, and else 40. A liar counts as five times that.
def test_liars_move_the_model_by_their_bounded_share_and_no_further():
    for nodes in NODES:
        for liars, share in [
            ([3], 100 / (100 + 9 * 40 + 10 * 20)),
            ([13], 200 / (200 + 10 * 40 + 9 * 20)),
            ([3, 13], 400 / (400 + 9 * 40 + 9 * 20)),
        ]:
            with entry(nodes, liars, share):
                t = lying(experiment(), liars)
                stack, count = models(t), len(liars)
                rows = [40.0] * 10 + [20.0] * 10
                honest = mean_of(stack, [0.0 if c in liars else rows[c] for c in range(20)])
                liar = mean_of(stack, [float(c in liars) for c in range(20)])
                merged, metrics = rounds(t, nodes)
                # k c / (k c + n // 2 + 1 - k), whatever the others' rows are.
                assert share <= count * 5 / (count * 5 + 10 + 1 - count)
                expected = {k: (1 - share) * honest[k] + share * liar[k] for k in honest}
                assert_same(merged, expected, atol=1e-6)
                for name in merged:
                    moved, far = (
                        (merged[name] - honest[name]).abs(),
                        (liar[name] - honest[name]).abs(),
                    )
                    assert (moved <= share * far + 1e-6).all()
                assert metrics["bounded"] == liars
                assert metrics["left-out"] == 0


def test_of_two_clients_the_smaller_sets_the_bound():
    for nodes in [1, 2]:
        with entry(nodes):
            t = lying(experiment(num_clients=2, clients_per_round=2), [0])
            merged, _ = rounds(t, nodes)
            # The honest one has 20 rows: five shares to one.
            assert_same(merged, mean_of(models(t), [5.0, 1.0]), atol=1e-6)


ALIKE = [
    {"method": "local-moml"},
    {"merge": "median"},
    {"merge": "krum"},
    {"merge": "trimmed-mean"},
    {"privacy": "central", "clip": 0.05},
]


def test_where_clients_count_alike_claims_are_nothing():
    for settings in ALIKE:
        with entry(settings):
            merged, metrics = rounds(lying(experiment(**settings), [3]), 3)
            honest, same = rounds(lying(experiment(**settings), [3], claim=40), 3)
            assert_same(merged, honest)
            assert dict(metrics) == dict(same)


def test_clipped_models_are_bounded_in_weight_too():
    t = lying(experiment(clip=0.05), [3])
    start = initial_model(t)["model"]
    each = [{k: leaf[c] for k, leaf in models(t).items()} for c in range(20)]
    held = [clip(model, start, 0.05) for model in each]
    stack = {k: torch.stack([model[k] for model in held]) for k in start}
    merged, _ = rounds(t, 20)
    rows = [40.0] * 3 + [100.0] + [40.0] * 6 + [20.0] * 10
    assert_same(merged, mean_of(stack, rows), atol=1e-6)


def test_who_is_bounded_is_named_once(warnings_of_engram):
    strategy, g = federation(lying(experiment(), [3]), 20)
    arrays = strategy.init()
    for number in (1, 2, 3):
        messages = strategy.configure_train(number, arrays, {}, g)
        _, metrics = strategy.aggregate_train(number, g.ask(messages, timeout=60))
        assert metrics["bounded"] == [3]
    said = "round 1: clients [3] report more than 100 rows, and count as if they had"
    assert warnings_of_engram.text.count("max-weight") == 1
    assert said in warnings_of_engram.text


def test_clients_whose_rows_are_not_known_do_not_lower_the_bound():
    strategy, _ = federation(trainer(experiment()), 20)
    roster = strategy.roster
    unknown = [0 if client % 2 else n for client, n in enumerate(roster.examples)]
    strategy.meet(roster._replace(examples=unknown))
    # 5 clients of 20 rows and 5 of 40: the fifth from below has 20.
    assert strategy.most == 100


def test_the_setting_reaches_the_round_and_its_record(tmp_path):
    e = experiment(partition="dirichlet", dirichlet_alpha=0.5, adapt_shots=1, num_rounds=1)
    rows = [len(own) for own in trainer(e).data.train.rows]
    for bound, expected in ((1.2, True), (5.0, False)):
        run = tmp_path / str(bound)
        simulate(e.model_copy(update={"max_weight": bound}), run)
        row = Run.open(run).rows()[1]
        limit = bound * sorted(rows)[9]
        above = [client for client, count in enumerate(rows) if count > limit]
        assert bool(above) == expected
        assert row.get("bounded", []) == above
