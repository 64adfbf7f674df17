"""FedALA: FedAvg where weights rest, a step of theirs by hand, and where they come to rest."""

import pytest
import torch

from engram.aggregates import mean
from engram.federated.fedala import fedala
from engram.federated.parts import only, whose_turn
from engram.meta.fedavg import fedavg
from engram.optimizers import scaled, with_optimizer
from engram.tree import part
from tests.engram.federated.quadratics import client, moments, quadratic, rounds, steps
from tests.support import DIM, assert_same, batch, draw

W = {"w": draw(10, DIM), "own/w": draw(11, DIM), "own-weight/w": draw(12, DIM).abs().clamp(0, 1)}
BATCHES = [batch(20 + h) for h in range(5)]
FEDAVG = fedavg(quadratic, eta=0.1)


def rule(weight_eta=0.5, share=0.4):
    return fedala(quadratic, eta=0.1, weight_eta=weight_eta, share=share)


def a_round(given, w, batches):
    """Takes a client's steps of a round, each by the rule whose turn it is."""
    u, (turn, _) = given.init(w, None), given.then
    for number, one in enumerate(batches):
        w, u = whose_turn(given, later=number >= turn(len(batches))).step(w, u, (one,))
    return given.finish(w, u)


def test_without_steps_of_the_weights_it_is_fedavg():
    found = a_round(rule(share=0.0), W, BATCHES)
    assert_same({"w": found["w"]}, steps(FEDAVG, {"w": W["w"]}, BATCHES))
    assert torch.equal(found["own-weight/w"], W["own-weight/w"])


def test_with_weights_of_0_that_rest_it_is_fedavg_by_the_other_steps():
    found = a_round(rule(weight_eta=0.0), W | {"own-weight/w": 0 * W["w"]}, BATCHES)
    assert_same({"w": found["w"]}, steps(FEDAVG, {"w": W["w"]}, BATCHES[2:]))


def test_a_federation_whose_weights_rest_has_fedavgs_model():
    how = {"count": 3, "local_steps": 2}
    training = rule(share=0.0).then[1]
    model, _, kept = rounds(training, mean(), [0, 1, 2], **how)
    assert_same(model, rounds(FEDAVG, mean(), [0, 1, 2], **how)[0])
    assert_same(training.served(kept[2]), {"w": kept[2]["w"]})


def test_training_starts_from_a_mixture_with_the_new_weights():
    a, b = moments(BATCHES[0])
    common, own, weight = W.values()
    mixed = (1 - weight) * common + weight * own
    weight = (weight - 0.5 * (a @ mixed - b) * (own - common)).clamp(0, 1)
    found = a_round(rule(share=0.2), W, BATCHES)
    assert_same(part(found, "own-weight/"), {"w": weight}, atol=1e-12)
    start = {"w": (1 - weight) * common + weight * own}
    expected = steps(FEDAVG, start, BATCHES[1:])
    assert_same({"w": found["w"]}, expected, atol=1e-12)


def test_a_client_is_served_by_the_mixture_of_what_is_new_and_what_it_keeps():
    common, own, weight = W.values()
    assert_same(rule().served(W), {"w": (1 - weight) * common + weight * own})
    assert_same(rule().served(W | {"own-weight/w": 0 * weight}), {"w": common})
    assert_same(rule().served(W | {"own-weight/w": weight**0}), {"w": own})


def test_weights_come_to_what_is_best_for_the_client():
    # Each coordinate of |w - c|^2 / 2 is a problem of its own: its minimum lies at the weight
    # (c - w_t) / (v - w_t), or at the end of [0, 1] that is nearer.
    x = torch.eye(DIM, dtype=torch.float64) * DIM**0.5
    common, own, best = torch.tensor([[0, 0, 0], [1, 2, -1], [0.25, 5, 1]], dtype=torch.float64)
    w = {"w": common, "own/w": own, "own-weight/w": draw(1, DIM).abs().clamp(0, 1)}
    given, u = rule(), rule().init(w, None)
    for _ in range(80):
        w, u = given.step(w, u, ((x, x @ best),))
    expected = {"w": torch.tensor([0.25, 1.0, 0.0], dtype=torch.float64)}
    assert_same(part(w, "own-weight/"), expected, atol=1e-9)
    assert_same({"w": w["w"]}, {"w": expected["w"] * own}, atol=1e-9)


def test_layers_that_are_not_mixed_are_as_received():
    def loss(w, batch):
        return quadratic({"w": w["a"] + w["b"]}, batch)

    full = {
        f"{mark}{name}": draw(seed, DIM) for seed, mark in enumerate(("", "own/")) for name in "ab"
    }
    full |= {f"own-weight/{name}": 0 * draw(1, DIM) for name in "ab"}
    given = only(fedala(loss, eta=0.1, weight_eta=0.5, share=0.5), {"b", "own-weight/b"})
    found, _ = given.step(full, given.init(full, None), (client(1),))
    moved = {name for name, leaf in found.items() if not torch.equal(leaf, full[name])}
    assert moved == {"b", "own-weight/b"}


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_optimizers_and_schedules_bear_on_the_model_alone(name):
    how = {"name": name, "weight_decay": 0.1, "clip": 0.3}
    found = a_round(scaled(with_optimizer(rule(), **how), 0.5), W, BATCHES)
    plain = rule()
    w, u = W, plain.init(W, None)
    for one in BATCHES[:2]:
        w, u = plain.step(w, u, (one,))
    assert_same(part(found, "own-weight/"), part(w, "own-weight/"))
    slower = scaled(with_optimizer(FEDAVG, **how), 0.5)
    assert_same({"w": found["w"]}, steps(slower, {"w": w["w"]}, BATCHES[2:]), atol=1e-12)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"eta": 0.0}, "eta must be positive, got 0.0"),
        ({"weight_eta": -1.0}, "weight-eta must be at least 0, got -1.0"),
        ({"share": 1.0}, r"share of the first steps must be in \[0, 1\), got 1.0"),
    ],
)
def test_impossible_values_are_refused(values, words):
    with pytest.raises(ValueError, match=words):
        fedala(quadratic, **{"eta": 0.1, "weight_eta": 1.0, "share": 0.5} | values)
