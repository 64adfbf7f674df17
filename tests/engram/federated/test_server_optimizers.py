"""Server optimizers: their first round in closed form, torch's Adagrad, and FedAvg as a limit."""

import pytest
import torch

from engram.aggregates import Update, averaging, weighted_mean
from engram.federated.server_optimizers import server_optimizer
from tests.support import DIM, assert_same, draw

VARIANTS = ["adagrad", "yogi", "adam"]
MODEL = {"w": draw(1, DIM)}
UPDATES = [Update({"w": draw(2, DIM)}, 1.0), Update({"w": draw(3, DIM)}, 3.0)]
CHANGE = (draw(2, DIM) + 3 * draw(3, DIM)) / 4 - draw(1, DIM)


def build(variant, **changed):
    return server_optimizer(
        variant, **{"eta": 0.1, "beta1": 0.9, "tau": 0.2, "beta2": 0.8} | changed
    )


@pytest.mark.parametrize(
    ("variant", "second"),
    [
        ("adagrad", 0.04 + CHANGE**2),
        ("yogi", 0.04 - 0.2 * CHANGE**2 * torch.sign(0.04 - CHANGE**2)),
        ("adam", 0.8 * 0.04 + 0.2 * CHANGE**2),
    ],
)
def test_the_first_round_in_closed_form(variant, second):
    # m = 0.1 D, and v starts at tau^2 = 0.04.
    aggregate = build(variant)
    merged, state = aggregate.merge(MODEL, aggregate.init(MODEL), UPDATES)
    expected = MODEL["w"] + 0.1 * (0.1 * CHANGE) / (second.sqrt() + 0.2)
    assert_same(merged, {"w": expected}, atol=1e-12)
    assert_same(state, {"first/w": 0.1 * CHANGE, "second/w": second}, atol=1e-12)


def test_adagrad_is_torchs():
    aggregate, w = build("adagrad", beta1=0.0), torch.nn.Parameter(MODEL["w"].clone())
    torchs = torch.optim.Adagrad([w], lr=0.1, initial_accumulator_value=0.04, eps=0.2)
    model, state = MODEL, aggregate.init(MODEL)
    for _ in range(5):
        w.grad = model["w"] - weighted_mean(UPDATES)["w"]
        torchs.step()
        model, state = aggregate.merge(model, state, UPDATES)
        assert_same(model, {"w": w.detach()}, atol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_with_a_large_tau_it_is_fedavg_at_the_step_size_eta_over_tau(variant):
    # v stays near T^2, of which adam forgets a fifth; and eta / (sqrt(v) + T) is 1.
    kept = 0.8 if variant == "adam" else 1.0
    aggregate = build(variant, eta=1e6 * (1 + kept**0.5), tau=1e6, beta1=0.0)
    merged, _ = aggregate.merge(MODEL, aggregate.init(MODEL), UPDATES)
    assert_same(merged, weighted_mean(UPDATES), atol=1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_model_that_nobody_changes_stays_and_parts_may_be_merged_first(variant):
    aggregate = build(variant)
    state = aggregate.init(MODEL)
    assert_same(aggregate.merge(MODEL, state, [Update(MODEL, 2.0)])[0], MODEL, atol=1e-12)
    one = aggregate.merge(MODEL, state, UPDATES)
    other = aggregate.merge(MODEL, state, [Update(weighted_mean(UPDATES), 4.0)])
    for a, b in zip(one, other, strict=True):
        assert_same(a, b, atol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_running_statistics_are_averaged(variant):
    def with_variance(params):
        return params | {"running": params["w"].square()}

    aggregate = averaging(build(variant), {"running", "another's"})
    model, updates = (
        with_variance(MODEL),
        [Update(with_variance(u.params), u.weight) for u in UPDATES],
    )
    merged, _ = aggregate.merge(model, aggregate.init(model), updates)
    alone, _ = build(variant).merge(MODEL, build(variant).init(MODEL), UPDATES)
    assert list(merged) == ["w", "running"]
    assert_same({"w": merged["w"]}, alone)
    assert_same({"w": merged["running"]}, {"w": weighted_mean(updates)["running"]})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"eta": 0.0}, "server-eta must be positive, got 0.0"),
        ({"beta1": 1.0}, "beta1 must be at least 0, below 1, got 1.0"),
        ({"beta2": -0.1}, "beta2 must be at least 0, below 1, got -0.1"),
        ({"tau": 0.0}, "tau must be positive, got 0.0"),
    ],
)
def test_impossible_values_are_refused(changed, words):
    with pytest.raises(ValueError, match=words):
        build("adam", **changed)
