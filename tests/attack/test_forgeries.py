"""Attacks, by their definitions in numpy."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from engram.attack.attacks import claimed_score, stamped
from engram.attack.forgeries import ON_UPDATES, alie_deviations, false_statistics
from engram.guards.robust.claims import impossible
from engram.scoring.metrics import METRICS
from engram.scoring.tasks import CLASSIFICATION
from tests.samples import entry
from tests.support import draw

OWN = {"w": draw(1, 2, 4), "b": draw(2, 2)}
HONEST = {"w": draw(3, 8, 4), "b": draw(4, 8)}


def expected(name):
    for key, leaf in OWN.items():
        own, others = leaf.numpy(), HONEST[key].numpy()
        mean, std = others.mean(0), others.std(0)
        # Ten clients of which two attack: four more make a majority, and half of the eight others
        # need not be among them.
        z = norm.ppf((10 - 2 - 4) / (10 - 2))
        forged = {
            "sign-flip": -own,
            "scaled": own,
            "alie": np.broadcast_to(mean - z * std, own.shape),
            "ipm": np.broadcast_to(-mean, own.shape),
        }
        yield key, forged[name]


def test_attacks_on_updates_are_their_definitions():
    for name in ON_UPDATES:
        with entry(name):
            found = ON_UPDATES[name](OWN, HONEST)
            for key, value in expected(name):
                np.testing.assert_allclose(found[key].numpy(), value, rtol=1e-5, atol=1e-7)


def test_alie_lies_as_far_out_as_it_may():
    # Baruch et al.: of 50 workers with 12 corrupted, s = 14 and z = Phi^-1(24 / 38).
    for case in [(50, 12, 24 / 38), (20, 4, 9 / 16), (20, 6, 9 / 14), (10, 1, 4 / 9)]:
        with entry(case):
            clients, attackers, share = case
            assert alie_deviations(clients, attackers) == pytest.approx(max(norm.ppf(share), 0))


def test_a_trigger_is_in_the_last_corner_of_images_and_the_last_columns_of_tables():
    images = torch.zeros(2, 1, 8, 8)
    marked = stamped(images, 1.0)
    assert images.sum() == 0
    assert marked[:, :, -2:, -2:].min() == 1
    assert marked.sum() == 2 * 4
    assert stamped(torch.zeros(3, 5), 7.0).tolist() == [[0, 0, 0, 0, 7]] * 3
    with pytest.raises(ValueError, match="rows must be tables or images"):
        stamped(torch.zeros(3), 1.0)


def test_false_statistics_are_possible_and_far_from_the_truth():
    claims = {"p/sums": "sums", "p/shares": "shares", "q/sums": "sums", "q/shares": "shares"}
    claims |= {"q/square": "amount", "trace": "amount", "choice": "shares"}
    own = {"p/sums": draw(5, 2, 3, 4), "q/sums": draw(7, 2, 3, 4), "model/w": draw(6, 2, 4)}
    own |= {"p/shares": torch.full((2, 3), 0.25), "q/shares": torch.full((2, 3), 0.25)}
    own |= {"q/square": torch.ones(2), "trace": torch.ones(2), "choice": torch.eye(2)}
    found = false_statistics(claims, own, 60.0)
    assert found["q/square"].tolist() == [0, 0]
    assert found["trace"].tolist() == [1e6, 1e6]
    assert found["choice"].tolist() == [[0, 1], [1, 0]]
    for path in ("p/shares", "q/shares", "q/sums"):  # so that it is believed to be precise
        assert torch.equal(found[path], own[path])
    for path in ("p/sums", "model/w"):
        assert torch.equal(found[path], -60.0 * own[path])
    assert impossible(claims, found) == ""


def test_false_scores_are_the_best_and_then_the_worst():
    accuracy, loss = METRICS["accuracy"], CLASSIFICATION.metric
    both = [[claimed_score(m, first=first) for first in (True, False)] for m in (accuracy, loss)]
    assert both[0] == [1.0, 0.0]
    assert both[1][0] == loss.low
    assert both[1][1] >= 1e30 or both[1][1] == loss.high
