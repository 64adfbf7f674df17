"""The guard of secure sums, on methods that it does not know, against formulas written out."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from engram.core.method import Update
from engram.core.slots import flat, over_slots
from engram.guards.chain import chain
from engram.guards.changes import change_of, length_of, vector_of
from engram.guards.clip import clip
from engram.guards.guard import Guard
from engram.guards.places import Sum
from engram.guards.refusals import Refusal
from engram.guards.secure.secure_sum import MASKED, secure_sum
from engram.methods.fedavg import FedAvg
from engram.methods.fedprox import FedProx
from engram.methods.scaffold import Scaffold
from tests.guards.secure.parties import entropy, vectors
from tests.guards.test_changes import at_of, update_of
from tests.methods.problem import built

C, ROWS = 0.5, [3.0, 9.0, 5.0, 5.0]


def summed(guard, at, updates):
    """Sends each site's part with masks that add up to 0; returns the parts, and their mean."""
    size = vector_of(change_of(at, updates[0])).numel()
    masks = vectors(range(len(updates)), size)
    masks[0] = -sum((mask for p, mask in masks.items() if p), np.zeros(size, dtype=np.uint32))
    parts = []
    for p, update in enumerate(updates):
        total = at.sum._replace(mask=lambda _, p=p: masks[p], entropy=entropy(p))
        parts.append(guard.send(at._replace(sum=total), update).slots[MASKED])
    update = Update({MASKED: sum(parts)}, sum(u.rows for u in updates), len(updates))
    return parts, guard.arrive(at, update)


def near(at, update):
    """A clipped change, by plain torch."""
    change = vector_of(change_of(at, update))
    return change * min(1.0, C / float(change.norm()))


@pytest.mark.parametrize("settings", [FedAvg(), Scaffold(), FedProx()])
def test_a_sum_is_the_mean_of_bounded_changes_by_rows(settings):
    method, received, sent = update_of(settings)
    at = at_of(method, received)._replace(sum=Sum(4, 4, 3, most=9), like=over_slots(_nowhere, sent))
    updates = [
        Update(over_slots(lambda leaf, i=i: leaf + 0.01 * i * torch.sin(leaf + i), sent), rows, 1)
        for i, rows in enumerate(ROWS)
    ]
    guard = chain(clip(C), secure_sum())
    clipped = [chain(clip(C)).admit(at, update) for update in updates]
    parts, mean = summed(guard, at, clipped)
    expected = sum(w / sum(ROWS) * near(at, u) for w, u in zip(ROWS, updates, strict=True))
    assert_close(vector_of(change_of(at, mean)), expected, atol=1e-6, rtol=0)
    assert {p: x.dtype for p, x in flat(mean.slots).items()} == {
        p: x.dtype for p, x in flat(sent).items()
    }
    assert (mean.rows, mean.clients) == (sum(ROWS), 4)
    assert all(part.double().abs().median() > 1e8 for part in parts)


def _nowhere(leaf):
    return leaf.to("meta")


@pytest.mark.parametrize("gone", [0, 1])
def test_noise_in_shares_is_that_of_as_many_sites_as_stay_over_those_asked(gone):
    """The sum has deviation z C sqrt(n / t), of n sites that stay and t that must."""
    z, size, start = 2.0, 5000, {"model": {"w": torch.zeros(5000)}}
    at = at_of(built(FedAvg()), start)._replace(sum=Sum(4, 4, 3), like=start)
    guard = chain(clip(C), secure_sum(z))
    still = [Update(start, 1.0, 1)] * (4 - gone)
    _, mean = summed(guard, at, still)
    expected = z * C * ((4 - gone) / 3) ** 0.5 / 4
    found = mean.slots["model"]["w"]
    assert float(found.std()) == pytest.approx(expected, rel=4 / (2 * size) ** 0.5)
    assert (mean.rows, mean.clients) == (4, 4)
    assert length_of(change_of(at, mean)) > C  # which bounds no noise
    assert guard.alike


def test_what_a_site_adds_beyond_its_bound_is_cut_and_nobody_else_looks_at_a_sum():
    start = {"model": {"w": torch.zeros(100)}}
    at = at_of(built(FedAvg()), start)._replace(sum=Sum(1), like=start)
    refuse = Guard("refuse", admit=lambda at, update: Refusal("range", "single", update))
    guard = chain(clip(C), secure_sum(), refuse)
    long = Update({"model": {"w": torch.full((100,), C)}}, 1.0, 1)  # ten times C
    _, mean = summed(guard, at, [long])
    assert length_of(change_of(at, mean)) == pytest.approx(C, rel=1e-6)
    assert guard.admit(at, mean) is mean
    with pytest.raises(LookupError):  # no update leaves without a mask
        guard.send(at, long)
    assert guard.masks
    assert not chain(clip(C), refuse).masks
