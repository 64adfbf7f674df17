"""Chains of guards, and the chains that settings name."""

from math import inf

import pytest
import torch

from engram.core.method import Update
from engram.core.rounds import merged
from engram.guards.chain import chain, parted
from engram.guards.changes import change_of, length_of
from engram.guards.clip import clip, local_noise
from engram.guards.guard import Guard
from engram.guards.refusals import Refusal
from engram.guards.robust.choices import buckets, robust_center
from engram.guards.robust.lengths import FAR
from engram.methods.fedavg import FedAvg
from engram.methods.scaffold import Scaffold
from tests.guards.test_changes import at_of
from tests.methods.problem import W, built, draw

AT = at_of(built(FedAvg()), {"model": W})


def test_scores_have_the_noise_of_all_guards_and_none_that_one_of_them_does_not_cover():
    """Local noise of multiplier 2 on one bounded score has a deviation of 1, so hypot(1, 3)."""
    more = Guard("more", report=lambda ranges: {"accuracy": 3.0, "loss": 1.0})
    found = chain(local_noise(1.0, 2.0), more).report({"accuracy": 1.0, "loss": inf})
    assert found == {"accuracy": 10**0.5}


def refuse(reason):
    return Guard(reason, admit=lambda at, update: Refusal("range", reason, update))


def test_guards_act_one_after_the_other_and_the_first_refusal_stands():
    update = Update({"model": draw(1)}, 1.0)
    bounded = chain(clip(0.5), clip(0.2)).admit(AT, update)
    assert length_of(change_of(AT, bounded)) == pytest.approx(0.2, rel=1e-5)
    assert chain(refuse("one"), refuse("other")).admit(AT, update).reason == "one"
    assert chain().admit(AT, update) is update


def test_a_guard_is_told_the_bound_of_what_stands_before_it():
    seen = []
    look = Guard("look", gather=lambda at, updates: seen.append(at.bound) or updates)
    chain(look, clip(0.5), look, local_noise(0.5, 1.0), look).gather(AT, [None])
    assert seen == [float("inf"), 0.5, float("inf")]


def counting(name, factor):
    """A guard that multiplies what leaves, undoes it, and keeps how often it has."""

    def leave(at, update, kept):
        more = {n: factor * x + factor for n, x in update.slots["model"].items()}
        return update._replace(slots={"model": more}), kept | {name: kept.get(name, 0) + 1}

    def arrive(at, update):
        less = {n: (x - factor) / factor for n, x in update.slots["model"].items()}
        return update._replace(slots={"model": less})

    return Guard(name, keeps={name}, leave=leave, arrive=arrive)


def test_what_guards_encode_is_decoded_in_reverse_and_each_has_a_memory_of_its_own():
    guard, update = chain(counting("one", 2.0), counting("two", 5.0)), Update({"model": W}, 1.0)
    left, kept = guard.leave(AT, update, {"two": 3, "of nobody": 7})
    assert kept == {"one": 1, "two": 4}
    for name, x in guard.arrive(AT, left).slots["model"].items():
        torch.testing.assert_close(x, W[name])
    with pytest.raises(ValueError, match="slots that guards keep must be different, got"):
        chain(counting("one", 2.0), counting("one", 5.0))
    wrong = chain(counting("one", 2.0), refuse("other")._replace(arrive=refuse("other").admit))
    assert wrong.arrive(AT, left).reason == "other"
    assert [x.encodes for x in (guard, chain(), chain(clip(1.0)))] == [True, False, False]


def test_refused_updates_go_no_further_and_are_named():
    updates = [Update({"model": draw(c)}, 1.0, 1, c) for c in range(4)]
    updates[2] = updates[2]._replace(slots={"model": {n: 1e6 * x for n, x in W.items()}})
    counted = []
    count = Guard("count", gather=lambda at, some: counted.append(len(some)) or some)
    left, (refused,) = parted(chain(FAR, count).gather(AT, updates))
    assert counted == [3]
    assert [u.client for u in left] == [0, 1, 3]
    assert (refused.update, refused.kind) == (updates[2], "size")


def test_a_node_with_many_clients_is_one_of_those_that_are_compared():
    """Five short updates of one node do not make the four of others long."""
    updates = [
        Update({"model": {n: x + step for n, x in W.items()}}, 1.0, 1, c)
        for c, step in enumerate([1e-6] * 5 + [0.1, 0.12, 0.08, 0.1])
    ]
    at = AT._replace(reply=lambda update: max(update.client, 4))
    assert parted(FAR.gather(at, updates)) == (updates, [])
    left, refused = parted(FAR.gather(AT, updates))
    assert (len(left), len(refused)) == (5, 4)


def test_buckets_count_their_clients_and_statistics_of_differences_are_bounded():
    method = built(Scaffold())
    start = method.server.start
    ones = {"model": start["model"], "change": {n: torch.ones_like(x) for n, x in W.items()}}
    updates = [Update(ones, 10.0, 1, c) for c in range(4)]
    guard = chain(buckets(2), robust_center("median"))
    found = [
        merged(method, start, g.gather(at_of(method, start), updates))["control"]
        for g in (guard, robust_center("median"))
    ]
    torch.testing.assert_close(found[0], found[1])
    name = next(iter(W))
    at = at_of(method, start, running={name})
    moved = change_of(at, updates[0])
    assert f"model/{name}" not in moved
    assert f"change/{name}" in moved
