"""The decisions of a round, without messages."""

from collections import Counter

import pytest
import torch

from engram.core.method import Update
from engram.settings.errors import RunStopped
from engram.strategies.reply_border import Rejected
from engram.strategies.rounds import draw_cohort
from engram.strategies.screening import Accepted, TrainReplies
from tests.samples import entry
from tests.strategies.test_bounding import rounds


def replies(r, moves, diverged=()):
    """Replies of clients that move each parameter by so much, and of those that diverged."""
    start = r.merge.method.server.start["model"]
    accepted = []
    for client, move in enumerate(moves):
        slots = {"model": {name: leaf + move for name, leaf in start.items()}}
        update = Update(slots, rows=client + 1.0, client=client)
        accepted.append(([client], Accepted([client], [update], [], {}, "")))
    rejected = [([client], Rejected("diverged", "too far")) for client in diverged]
    return TrainReplies(accepted, rejected, [], Counter())


def test_a_cohort_is_a_function_of_seed_and_round():
    r = rounds(seed=3)
    assert r.cohort(5, 8, absent={1, 2}) == draw_cohort(3, 5, 8, 4, absent={1, 2})


def test_the_next_slots_are_the_mean_by_rows():
    r = rounds()
    start = r.merge.method.server.start
    updates = r.updates(replies(r, [0.1, 0.4, -0.2]), 1)
    moved = r.merged(start, updates, 1)["model"]
    mean = (1 * 0.1 + 2 * 0.4 - 3 * 0.2) / 6
    for name, leaf in start["model"].items():
        torch.testing.assert_close(moved[name], leaf + mean)


def test_an_update_that_lies_far_from_the_others_is_rejected_unless_updates_are_bounded():
    moves = [0.1, 0.1, 0.1, 1e3]
    for settings, left_out in (({}, {3: "size"}), ({"merge": "median"}, {})):
        r = rounds(**settings)
        found = r.screened(r.merge.method.server.start, replies(r, moves))
        assert (found.left_out, found.asked) == (left_out, 4)


def test_a_run_stops_where_a_round_cannot_be_merged():
    for moves, diverged, says in [
        ([0.1], (1, 2), r"round 2 diverged: the models of clients \[1, 2\] became non-finite"),
        ([0.1, 0.1], (), "round 2 has 2 of 3 usable replies"),
        ([0.1, 0.1, float("inf")], (), "round 2: the merged model became non-finite"),
    ]:
        with entry(moves, diverged, says):
            r = rounds(min_clients=3)
            with pytest.raises(RunStopped, match=says):
                r.merged(r.merge.method.server.start, r.updates(replies(r, moves, diverged), 2), 2)
