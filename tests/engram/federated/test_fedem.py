"""FedEM: FedAvg with one component, a round by hand, and a likelihood that rises."""

from itertools import pairwise

import pytest
import torch

from engram.aggregates import mean
from engram.federated.fedem import fedem
from engram.meta.fedavg import fedavg
from engram.mixtures import loss_of
from engram.models import begun
from tests.engram.federated.quadratics import client, minimum, moments, quadratic, rounds, steps
from tests.support import DIM, assert_same, draw


def start(*components, weights=None):
    """Arrays of several components, with weights of a client; by default, all alike."""
    count = len(components)
    found = {(f"model{m}/" if m else "") + "w": leaf for m, leaf in enumerate(components)}
    pi = torch.full((count,), 1 / count, dtype=torch.float64) if weights is None else weights
    return found | {f"own-weight/{m}": pi[m] - 1 / count for m in range(count)}


def rows_of(w, batch):
    x, y = batch
    return 0.5 * (x @ w - y) ** 2


def test_with_one_component_it_is_fedavg():
    how = {"count": 4, "local_steps": 3}
    found, _, kept = rounds(fedem(quadratic, eta=0.1, components=1), mean(), [0, 1, 2], **how)
    expected, _, _ = rounds(fedavg(quadratic, eta=0.1), mean(), [0, 1, 2], **how)
    assert_same(found, expected, atol=1e-12)
    assert float(kept[1]["own-weight/0"]) == 0


def test_a_round_by_hand():
    # Of two steps, on batches of 12 and 5 rows.
    pi, batches = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64), [client(3), client(4)]
    batches[1] = tuple(leaf[:5] for leaf in batches[1])
    first = [draw(20 + m, DIM) for m in range(3)]
    found = steps(fedem(quadratic, eta=0.1, components=3), start(*first, weights=pi), batches)
    components, shares = list(first), []
    for x, y in batches:
        likely = torch.stack([pi[m] * (-rows_of(first[m], (x, y))).exp() for m in range(3)])
        q = likely / likely.sum(0)  # of the components that were received
        shares.append(q)
        for m in range(3):
            slope = x.T @ (q[m] * (x @ components[m] - y)) / len(x)
            components[m] = components[m] - 0.1 * slope
    weights = torch.cat(shares, 1).mean(1)  # over all 17 rows
    assert_same(found, start(*components, weights=weights), atol=1e-12)


def test_equal_components_share_fedavgs_step_by_weights_that_stay():
    pi, one = torch.tensor([0.7, 0.3], dtype=torch.float64), draw(1, DIM)
    w = start(one, one, weights=pi)
    found = steps(fedem(quadratic, eta=0.1, components=2), w, [client(2)])
    step = steps(fedavg(quadratic, eta=0.1), {"w": one}, [client(2)])["w"] - one
    assert_same(found, start(one + 0.7 * step, one + 0.3 * step, weights=pi), atol=1e-12)


def test_rounds_lower_the_negative_log_likelihood_of_the_mixture():
    rule = fedem(quadratic, eta=0.3, components=2)
    w, losses = start(draw(1, DIM), draw(2, DIM)), []
    for _ in range(15):
        losses.append(float(loss_of(rule.candidates(w), quadratic, client(1))))
        w = steps(rule, w, [client(1)] * 4)
    assert all(after < before for before, after in pairwise(losses))
    assert float(rule.candidates(w).weights.sum()) == pytest.approx(1)


def test_clients_come_to_the_component_that_fits_them():
    # Rows of two planes, which lie far apart; two clients have those of each.
    planes, x = (draw(1, DIM) + 3, draw(2, DIM) - 3), [draw(30 + i, 40, DIM) for i in range(4)]
    rule, kept = fedem(quadratic, eta=0.3, components=2), {}
    model = exchanged(start(planes[0] - 1, planes[1] + 1))
    for _ in range(30):
        for i in range(4):
            own = kept.get(i, start(*planes)) | model
            kept[i] = steps(rule, own, [(x[i], x[i] @ planes[i % 2])] * 3)
        model = {n: sum(kept[i][n] for i in range(4)) / 4 for n in model}
    for i in range(4):
        assert rule.candidates(kept[i] | model).weights[i % 2] > 0.95
    assert_same(model, {"w": planes[0], "model1/w": planes[1]}, atol=0.1)


def exchanged(w):
    return {name: leaf for name, leaf in w.items() if not name.startswith("own-weight/")}


def test_weights_start_alike():
    rule = fedem(quadratic, eta=0.1, components=4)
    w = begun({"w": draw(1, DIM)}, rule.companions)
    assert rule.candidates(w).weights.tolist() == [0.25] * 4


def test_a_component_without_weight_loses_nothing_to_rounding():
    w = start(minimum([1]), draw(2, DIM) + 50, weights=torch.tensor([1.0, 0.0]).double())
    found = steps(fedem(quadratic, eta=0.1, components=2), w, [client(1)] * 2)
    assert all(leaf.isfinite().all() for leaf in found.values())
    a, b = moments(client(1))
    assert_same({"w": found["w"]}, {"w": torch.linalg.solve(a, b)}, atol=1e-9)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"eta": 0.0}, r"eta must be positive, got 0.0"),
        ({"components": 0}, "components must be at least 1, got 0"),
    ],
)
def test_impossible_values_are_refused(values, words):
    with pytest.raises(ValueError, match=words):
        fedem(quadratic, **{"eta": 0.1, "components": 2} | values)
