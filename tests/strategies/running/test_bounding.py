"""The decisions of a round, without messages: updates that are compared with each other."""

from collections import Counter

import pytest
import torch
from torch.testing import assert_close

from engram.core.contract import Contract, SlotFault
from engram.core.method import Update
from engram.core.rounds import merged
from engram.core.slots import flat, over_slots, pick
from engram.data.load_federation import federated_data
from engram.guards.merge import Merge
from engram.guards.noise import secret_noise
from engram.settings.errors import RunStopped
from engram.settings.families import METHODS
from engram.strategies.running.reply_border import Rejected
from engram.strategies.running.rounds import Rounds, Wave
from engram.strategies.running.screening import Accepted, TrainReplies, judged
from engram.wire.training_result import Trained
from tests.samples import EIGHT, entry, sampled
from tests.support import (
    ANY_NETWORK,
    assert_same,
    initial_model,
    small,
    train_clients,
    trainer,
    updates_of,
)


def rounds(method="fedavg", **settings):
    e = small(method=method, num_clients=8, **settings)
    return Rounds.of(e, federated_data(e).kind, secret_noise)


def replies(updates):
    accepted = [Accepted([u.client], [u], [], {}, "") for u in updates]
    return TrainReplies(accepted, [], [], Counter())


def moved(r, moves):
    """Updates of clients that move each parameter by so much."""
    start = r.merge.method.server.start["model"]
    return [
        Update({"model": {n: x + move for n, x in start.items()}}, 1.0, client=client)
        for client, move in enumerate(moves)
    ]


def gathered(r, updates):
    """Returns a round's updates after the guards, and the shortened ones."""
    longer = []
    at = r.merge.at(r.merge.method.server.start, 1, longer)
    return r.merge.guard.gather(at, updates), longer


def test_a_change_longer_than_the_bound_is_scaled_down_to_it_and_named():
    r = rounds(max_norm=3.0)
    start = r.merge.method.server.start
    updates = moved(r, [0.1, -0.2, 0.3, -4.0])
    found, _ = gathered(r, updates)
    assert all(u is v for u, v in zip(updates[:3], found[:3], strict=True))
    _, learned = r.learned(start, replies(updates), 1)
    assert (learned.shortened, learned.rejected) == ([3], [])
    for name, leaf in found[3].slots["model"].items():
        # The median of 0.1, 0.2, 0.3 and 4 is 0.25.
        assert_close(leaf, start["model"][name] - 0.75, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "method", sampled([name for name in ANY_NETWORK if METHODS[name].each], EIGHT)
)
def test_a_server_that_sees_every_update_is_kept_from_those_that_multi_krum_leaves_out(method):
    clients, liars = list(range(9)), (2, 7)
    e = small(method=method, clients_per_round=9, merge="multi-krum", num_malicious=2)
    t = trainer(e)
    trained = train_clients(t, initial_model(t), clients, server_round=1, durable=0)
    honest = updates_of(trained)
    models = {slot for slot, kind in t.method.kinds.items() if kind != "statistic"}
    sent = [
        u._replace(
            slots=over_slots(lambda x: -60 * x, pick(u.slots, models & u.slots.keys()))
            | pick(u.slots, u.slots.keys() - models)
        )
        if u.client in liars
        else u
        for u in honest
    ]
    found = Merge(e, t.method, frozenset())(t.method.server.start, sent, 1)
    others = [u for u in honest if u.client not in liars]
    assert_same(flat(found), flat(merged(t.method, t.method.server.start, others)))


def test_nothing_is_scaled_down_where_something_else_bounds_it():
    for settings in [{"merge": "median"}, {"clip": 1.0}, {"max_norm": 1e9}]:
        with entry(settings):
            r = rounds(**settings)
            updates = moved(r, [0.1, -0.2, 0.3, -4.0])
            found, longer = gathered(r, updates)
            assert longer == []
            if "merge" not in settings:
                assert [u is v for u, v in zip(updates, found, strict=True)] == [True] * 4


def test_under_central_privacy_no_update_depends_on_others():
    r = rounds("fedproto", privacy="central", clip=1.0, noise_multiplier=1e-6)
    start = r.merge.method.server.start

    def moved(*spoilt):
        """Returns by how much a fourth client moves the sum."""
        updates = [Update(over_slots(torch.clone, sent_by(r)), 1.0, client=c) for c in range(4)]
        for client in spoilt:
            updates[client].slots["prototypes"]["sums"] *= 1e6
        three, four = (flat(r.merge(start, updates[:n], 1)) for n in (3, 4))
        return {path: four[path] - leaf for path, leaf in three.items()}

    assert_close(moved(), moved(0, 1), rtol=1e-3, atol=1e-4)


def sent_by(r):
    classes, width = r.shapes.sent["prototypes"]["sums"].shape
    shares = torch.full((classes,), 1 / classes)
    model = r.merge.method.server.start["model"]
    prototypes = {"sums": torch.ones(classes, width) / classes, "shares": shares}
    return {"model": {n: model[n] for n in r.shapes.sent["model"]}, "prototypes": prototypes}


def test_one_of_twenty_cannot_move_a_prototype_beyond_the_bound():
    r = rounds("fedproto")
    updates = [Update(over_slots(torch.clone, sent_by(r)), 1.0, client=c) for c in range(20)]
    lie = updates[7].slots["prototypes"]
    lie["sums"][0], lie["shares"][0] = 1e4, 1e-12
    start = r.merge.method.server.start
    server, _ = r.learned(start, replies(updates), 1)
    prototype = server["prototypes"]["sums"][0] / server["prototypes"]["shares"][0]
    # Nineteen have means of ones. The liar's is at most five times as long, and hardly counts.
    assert_close(prototype, torch.ones_like(prototype), atol=0.01, rtol=0)


def test_a_reply_whose_claims_are_impossible_is_refused():
    r = rounds("fedproto")
    slots = over_slots(torch.clone, sent_by(r))
    slots["prototypes"]["shares"][0] = -0.5
    start = r.merge.method.server.start
    verdict = judged(Trained([3], slots, [10], [], {}, ""), r.merge, most=10, loss=None)
    replies = TrainReplies([verdict], [], [], Counter())
    ((_, verdict),) = r.admitted(start, Wave(1, start, [3]), replies, 1).rejected
    assert verdict.kind == "range"
    assert verdict.reason == "prototypes/shares must be at least 0, got -0.5"


def test_claims_are_of_arrays_that_leave():
    for claims, words in [
        ({"prototype/shares": "shares"}, "got prototype/shares"),
        ({"model/sums": "sums"}, "got model/shares, model/sums"),
    ]:
        with entry(claims, words):
            method = rounds().merge.method._replace(claims=claims)
            contract = Contract("mine", method, method.server.start["model"])
            with pytest.raises(SlotFault, match=words):
                contract.round(0, method.server.start, {}, None, {})


def answers(r, moves, diverged=()):
    """Replies of clients that move each parameter by so much, and of those that diverged."""
    start = r.merge.method.server.start["model"]
    accepted = []
    for client, move in enumerate(moves):
        slots = {"model": {name: leaf + move for name, leaf in start.items()}}
        update = Update(slots, rows=client + 1.0, client=client)
        accepted.append(Accepted([client], [update], [], {}, ""))
    rejected = [([client], Rejected("diverged", "too far")) for client in diverged]
    return TrainReplies(accepted, rejected, [], Counter())


def test_the_next_slots_are_the_mean_by_rows():
    r = rounds()
    start = r.merge.method.server.start
    moved = r.learned(start, answers(r, [0.1, 0.4, -0.2]), 1)[0]["model"]
    mean = (1 * 0.1 + 2 * 0.4 - 3 * 0.2) / 6
    for name, leaf in start["model"].items():
        torch.testing.assert_close(moved[name], leaf + mean)


def test_an_update_that_lies_far_from_the_others_is_rejected_unless_updates_are_bounded():
    moves = [0.1, 0.1, 0.1, 1e3]
    for settings, left_out in (({}, {3: "size"}), ({"merge": "median"}, {})):
        r = rounds(**settings)
        _, found = r.learned(r.merge.method.server.start, answers(r, moves), 1)
        assert (found.left_out, found.asked) == (left_out, 4)


def test_a_run_stops_where_a_round_cannot_be_merged():
    for moves, diverged, says in [
        ([0.1], (1, 2), r"round 2 diverged: the models of clients \[1, 2\] became non-finite"),
        ([0.1, 0.1], (), "round 2 has 2 of 3 usable replies"),
        ([float("inf")] * 3, (), "round 2: the merged model became non-finite"),
    ]:
        with entry(moves, diverged, says):
            r = rounds(min_clients=3, merge="median")
            with pytest.raises(RunStopped, match=says):
                r.learned(r.merge.method.server.start, answers(r, moves, diverged), 2)
