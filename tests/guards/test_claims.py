"""Claims: what a client says of its rows is possible, or bounded by what others say."""

import numpy as np
import torch
from torch.testing import assert_close

from engram.core.method import Update
from engram.core.slots import flat, unflat
from engram.guards.robust.claims import impossible, projected
from engram.guards.robust.compared_claims import compared_claims
from tests.samples import entry

CLAIMS = {"p/sums": "sums", "p/shares": "shares", "trace": "amount"}
SHARES = torch.tensor([0.5, 0.25, 0.0])
SUMS = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])


def sent(*, sums=SUMS, shares=SHARES, trace=1.0):
    return {"p/sums": sums, "p/shares": shares, "trace": torch.tensor(trace)}


def update(**of):
    return Update(unflat(sent(**of)), 1.0, client=0)


def test_impossible_claims_are_named():
    for of, words in [
        ({}, ""),
        ({"shares": torch.tensor([0.9, 0.10001, 0.0])}, ""),
        ({"shares": torch.tensor([0.5, -0.25, 0.25])}, "p/shares must be at least 0, got -0.25"),
        ({"shares": torch.tensor([0.9, 0.9, 0.0])}, "p/shares must add up to at most 1, got 1.8"),
        ({"trace": -1.0}, "trace must be at least 0, got -1"),
        ({"sums": SUMS + 1}, "p/sums must be 0 for a class whose share is 0"),
    ]:
        with entry(of):
            assert impossible(CLAIMS, sent(**of)) == words
            several = {
                path: torch.stack([leaf, x])
                for (path, leaf), x in zip(sent().items(), sent(**of).values(), strict=True)
            }
            assert impossible(CLAIMS, several) == words


def test_what_noise_has_moved_out_of_range_is_moved_back():
    noisy = update(sums=SUMS + 0.5, shares=torch.tensor([1.5, 0.5, -0.1]), trace=-0.2).slots
    found = projected(CLAIMS, noisy)
    assert_close(found["p"]["shares"], torch.tensor([0.75, 0.25, 0.0]))
    assert_close(found["p"]["sums"], torch.tensor([[1.5, 0.5], [0.5, 2.5], [0.0, 0.0]]))
    assert float(found["trace"]) == 0
    assert impossible(CLAIMS, flat(found)) == ""


def test_amounts_are_bounded_by_the_median_amount():
    updates = [update(trace=trace) for trace in (1.0, 2.0, 3.0, 1e30)]
    found = compared_claims(CLAIMS, amount=5.0, mean=5.0).gather(None, updates)
    # The lower of the middle two is 2.
    assert [float(u.slots["trace"]) for u in found] == [1.0, 2.0, 3.0, 10.0]


def test_a_class_s_mean_is_bounded_by_the_usual_longest_mean_whatever_the_share():
    tiny = torch.tensor([0.0, 0.25, 1e-20])
    spoilt = torch.tensor([[0.0, 0.0], [0.0, 2.0], [30.0, 40.0]])
    updates = [update(), update(), update(sums=spoilt, shares=tiny)]
    found = compared_claims(CLAIMS, amount=5.0, mean=5.0).gather(None, updates)
    # Means of the honest are (2, 0) and (0, 8): nobody's is longer than 5 * 8.
    for before, after in zip(updates[:2], found[:2], strict=True):
        assert torch.equal(before.slots["p"]["sums"], after.slots["p"]["sums"])
    assert_close(found[2].slots["p"]["sums"][1], spoilt[1])
    mean = found[2].slots["p"]["sums"][2].double().numpy() / float(tiny[2])
    np.testing.assert_allclose(mean, [0.6 * 40, 0.8 * 40], rtol=1e-5)
