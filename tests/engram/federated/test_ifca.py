"""IFCA: FedAvg with one model, the choice among several, and clusters that come to their minima."""

import math

import pytest
import torch
from torch import nn

from engram.aggregates import Update, mean, weighted_mean
from engram.federated.ifca import ifca, ifca_server
from engram.meta.fedavg import fedavg
from engram.models import begun, build_model, from_module, mean_loss, with_companions
from engram.optimizers import with_optimizer
from engram.tasks import REGRESSION
from engram.tree import part
from tests.engram.federated.quadratics import client, minimum, moments, quadratic, rounds, steps
from tests.support import DIM, assert_same, draw

FEDAVG = fedavg(quadratic, eta=0.1)
NONE = torch.zeros((), dtype=torch.float64)


def models(*each):
    """Arrays of several models, which nobody has chosen."""
    found = {(f"model{j}/" if j else "") + "w": leaf for j, leaf in enumerate(each)}
    return found | {f"choice/{j}": NONE for j in range(len(each))}


def choice(w):
    return [float(leaf) for leaf in part(w, "choice/").values()]


def test_with_one_model_it_is_fedavg():
    how = {"count": 4, "local_steps": 3}
    found, state, _ = rounds(ifca(quadratic, eta=0.1, clusters=1), ifca_server(), [0, 1, 2], **how)
    assert state == {}
    assert_same(part(found), rounds(FEDAVG, mean(), [0, 1, 2], **how)[0])


def test_a_client_trains_the_model_of_the_least_loss_and_returns_the_others():
    rule, best = ifca(quadratic, eta=0.1, clusters=3), minimum([4])
    w = models(best + 1, best + 0.1, best - 2)
    found = steps(rule, w, [client(4)] * 3)
    assert choice(found) == [0, 1, 0]
    trained = steps(FEDAVG, {"w": w["model1/w"]}, [client(4)] * 3)
    assert_same(part(found, "model1/"), trained)
    assert {name for name in w if not torch.equal(found[name], w[name])} == {
        "model1/w",
        "choice/1",
    }


@pytest.mark.parametrize(("far", "chosen"), [(1.0, [1, 0]), (math.inf, [0, 1]), (math.nan, [0, 1])])
def test_of_equal_losses_the_first_counts_and_none_that_is_not_finite(far, chosen):
    one = draw(1, DIM)
    w = ifca(quadratic, eta=0.1, clusters=2).init(models(far * one, one), client(0))
    assert choice(w) == chosen


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
def test_optimizers_bear_on_the_chosen_model_alone(name):
    how = {"name": name, "weight_decay": 0.3, "clip": 0.2}
    best = minimum([4])
    w = models(best - 1, best + 0.3)
    found = steps(with_optimizer(ifca(quadratic, eta=0.1, clusters=2), **how), w, [client(4)] * 3)
    assert torch.equal(found["w"], w["w"])
    alone = steps(with_optimizer(FEDAVG, **how), {"w": w["model1/w"]}, [client(4)] * 3)
    assert_same(part(found, "model1/"), alone, atol=1e-12)


def replies(model, choices):
    """What clients return, each of which moved the model that it chose."""
    found = []
    for i, chosen in enumerate(choices):
        mark = f"model{chosen}/" if chosen else ""
        moved = {f"{mark}w": model[f"{mark}w"] + draw(i + 40, DIM), f"choice/{chosen}": NONE + 1}
        found.append(Update(model | moved, 1.0))
    return found


def test_each_model_becomes_the_mean_of_those_who_chose_it():
    model = models(draw(1, DIM), draw(2, DIM), draw(3, DIM))
    updates = replies(model, [0, 2, 0, 0, 2])
    merged, _ = ifca_server().merge(model, {}, updates)
    for mark, who in (("", [0, 2, 3]), ("model2/", [1, 4])):
        middle = sum(updates[i].params[f"{mark}w"] for i in who) / len(who)
        assert_same(part(merged, mark), {"w": middle}, atol=1e-12)
    assert torch.equal(merged["model1/w"], model["model1/w"])
    assert choice(merged) == [0, 0, 0]
    assert merged.keys() == model.keys()


def test_nodes_may_send_means_of_their_clients():
    model = models(draw(1, DIM), draw(2, DIM))
    updates = replies(model, [0, 1, 0, 0])
    nodes = [Update(weighted_mean(some), len(some)) for some in (updates[:3], updates[3:])]
    one, other = (ifca_server().merge(model, {}, some)[0] for some in (updates, nodes))
    assert_same(one, other, atol=1e-12)


def test_clusters_come_to_their_minima_where_one_model_cannot():
    # Clients 0, 2, 4 have the rows of client 0, the others those of 1; two models start apart.
    rule, groups = ifca(quadratic, eta=0.2, clusters=2), (minimum([0]), minimum([1]))
    model = models(groups[1] + 0.4, groups[0] + 0.4)
    for _ in range(40):
        ends = [steps(rule, model, [client(i % 2)] * 5) for i in range(5)]
        model, _ = ifca_server().merge(model, {}, [Update(w, 1.0) for w in ends])
    assert_same(part(model), {"w": groups[1]}, atol=1e-6)
    assert_same(part(model, "model1/"), {"w": groups[0]}, atol=1e-6)
    for i, w in enumerate(ends):
        a, b = moments(client(i % 2))
        served = rule.candidates(model).models[choice(w).index(1)]["w"]
        assert (a @ served - b).norm() < 1e-6


def test_models_start_from_draws_of_their_own():
    network = build_model("mlp", input_shape=(4,), outputs=1, hidden=(3,))
    rule = ifca(mean_loss(network, REGRESSION), eta=0.1, clusters=3)
    whole = with_companions(network, rule)
    start, again = (whole.init(torch.Generator().manual_seed(5)) for _ in range(2))
    assert_same(start, again)
    assert_same(part(start), network.init(torch.Generator().manual_seed(5)))
    found = [model["dense0.weight"] for model in rule.candidates(start).models]
    assert len({float(leaf.sum()) for leaf in found}) == 3
    assert_same(rule.candidates(begun(part(start), rule.companions)).models[2], part(start))


def test_a_network_that_always_starts_alike_is_refused():
    network = from_module(nn.Linear(3, 1), draw(1, 2, 3).float())
    rule = ifca(mean_loss(network, REGRESSION), eta=0.1, clusters=2)
    with pytest.raises(ValueError, match="model must be one whose start is drawn, got 'one that"):
        with_companions(network, rule)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"eta": 0.0}, r"eta must be positive, got 0.0"),
        ({"clusters": 0}, "clusters must be at least 1, got 0"),
    ],
)
def test_impossible_values_are_refused(values, words):
    with pytest.raises(ValueError, match=words):
        ifca(quadratic, **{"eta": 0.1, "clusters": 2} | values)
