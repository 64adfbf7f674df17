"""Clipping, Gaussian noise, and what it is worth: closed forms, and Flower's own wrapper."""

import math

import numpy as np
import pytest
import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from engram.aggregates import Update, mean, mixed_mean, weighted_mean
from engram.privacy import add_normal, clip, clipped, epsilon, private_mean
from engram.tree import add_scaled, norm
from federation.flower import local_run
from federation.wire import to_params, to_record
from tests.support import assert_same

MODEL = {"a": torch.tensor([[1.0, -2.0]]), "b": torch.tensor([0.5])}
C = 0.5


def moved(a, b, c):
    return {"a": MODEL["a"] + torch.tensor([[a, b]]), "b": MODEL["b"] + c}


def reach(params, origin=MODEL):
    return float(norm(add_scaled(params, -1.0, origin)))


# --- Clipping --------------------------------------------------------------------------------


def test_a_long_update_keeps_its_direction_and_gets_the_bounds_length():
    # |(2, -1, 2)| = 3, so it is scaled by 0.5 / 3.
    held = clip(moved(2.0, -1.0, 2.0), MODEL, C)
    assert_same(held, moved(1 / 3, -1 / 6, 1 / 3), atol=1e-6)
    assert reach(held) == pytest.approx(C, abs=1e-6)


@pytest.mark.parametrize("bound", [0.3 + 1e-6, 1e9, math.inf])
def test_a_short_update_is_left_as_it_is(bound):
    short = moved(0.2, -0.1, 0.2)
    assert_same(clip(short, MODEL, bound), short)


def test_no_update_at_all_is_none():
    assert_same(clip(MODEL, MODEL, C), MODEL)


def test_nothing_overflows():
    held = clip(moved(3e38, -3e38, 1e30), MODEL, C)
    assert reach(held) == pytest.approx(C, abs=1e-6)
    assert held["a"][0, 0] > 1.35  # 1 + 0.5 / sqrt(2)


def test_clips_each_of_a_stack():
    each = [moved(2.0, -1.0, 2.0), moved(0.1, 0.0, 0.0), moved(0.0, 5.0, 0.0)]
    stack = {name: torch.stack([one[name] for one in each]) for name in MODEL}
    held = vmap(clip, in_dims=(0, None, None))(stack, MODEL, C)
    for i, one in enumerate(each):
        assert_same({name: leaf[i] for name, leaf in held.items()}, clip(one, MODEL, C))


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), st.floats(1e-3, 1e3))
def test_nobody_goes_beyond_the_bound(entries, bound):
    origin = {name: leaf.double() for name, leaf in MODEL.items()}
    long = {name: leaf.double() for name, leaf in moved(*entries).items()}
    assert reach(clip(long, origin, bound), origin) <= bound * (1 + 1e-9) + 1e-9


@given(st.lists(st.floats(-9, 9), min_size=6, max_size=6))
def test_a_mean_of_clipped_updates_is_within_the_bound(entries):
    # Why the server may clip a node's mean as one update, and changes nothing for honest nodes.
    both = [clip(moved(*entries[:3]), MODEL, C), clip(moved(*entries[3:]), MODEL, C)]
    assert reach(weighted_mean([Update(one, w) for one, w in zip(both, (1, 4), strict=True)])) <= (
        C + 1e-6
    )


def test_the_server_clips_what_a_client_did_not():
    aggregate = clipped(mean(), C)
    liar, honest = moved(0.0, 3e38, 0.0), moved(0.0, 0.0, 0.1)
    merged, _ = aggregate.merge(MODEL, {}, [Update(liar, 1.0), Update(honest, 3.0)])
    assert_same(merged, moved(0.0, 0.125, 0.075), atol=1e-6)  # a quarter of C; 3/4 of 0.1
    assert aggregate.bounded
    assert aggregate.additive


def test_a_huge_bound_is_no_bound():
    updates = [Update(moved(2.0, -1.0, 2.0), 1.0), Update(moved(0.1, 9.0, 0.0), 2.0)]
    expected, _ = mixed_mean(0.3).merge(MODEL, {}, updates)
    assert_same(clipped(mixed_mean(0.3), 1e9).merge(MODEL, {}, updates)[0], expected)


def test_honest_noise_passes_the_servers_bound():
    # With noise of deviation 2 on each of 3 coordinates, the bound is 0.5 + 2 (sqrt(3) + 6).
    reached = C + 2 * (math.sqrt(3) + 6)
    noisy, far = moved(0.0, 12.0, 0.0), moved(0.0, 100.0, 0.0)
    aggregate = clipped(mean(), C, deviation=2.0)
    assert_same(aggregate.merge(MODEL, {}, [Update(noisy, 1.0)])[0], noisy)
    merged, _ = aggregate.merge(MODEL, {}, [Update(far, 1.0)])
    assert reach(merged) == pytest.approx(reached, abs=1e-4)


# --- Noise -----------------------------------------------------------------------------------


def test_noise_is_dealt_to_the_leaves_by_name():
    noisy = add_normal(MODEL, 0.1, torch.tensor([1.0, 2.0, 3.0]))
    assert_same(noisy, moved(0.1, 0.2, 0.3), atol=1e-6)
    other = add_normal(dict(reversed(MODEL.items())), 0.1, torch.tensor([1.0, 2.0, 3.0]))
    assert_same(other, noisy)
    assert list(other) == ["b", "a"]
    stack = {name: torch.stack([leaf, leaf]) for name, leaf in MODEL.items()}
    both = add_normal(stack, 0.1, torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    assert_same({name: leaf[1] for name, leaf in both.items()}, moved(0.4, 0.5, 0.6), atol=1e-6)


def silent(size, release):
    return torch.zeros(size)


def ones(size, release):
    return torch.full((size,), float(release))


def private(normal=silent, aggregate=None, clients=4, multiplier=0.8):
    return private_mean(
        aggregate or mean(), bound=C, multiplier=multiplier, clients=clients, normal=normal
    )


UPDATES = [moved(2.0, -1.0, 2.0), moved(0.1, 0.0, 0.2), moved(0.0, -5.0, 0.0), moved(0.0, 0.0, 0.3)]


def test_the_noise_on_the_mean_has_the_derived_deviation():
    updates = [Update(one, 1.0) for one in UPDATES]
    quiet, _ = private().merge(MODEL, private().init(MODEL), updates)
    each = weighted_mean([Update(clip(one, MODEL, C), 1.0) for one in UPDATES])
    assert_same(quiet, each, atol=1e-6)
    noisy, _ = private(ones).merge(MODEL, private().init(MODEL), updates)
    assert_same(noisy, {k: leaf + 0.1 for k, leaf in quiet.items()}, atol=1e-6)  # 0.8 * 0.5 / 4


def test_each_release_has_noise_of_its_own_and_is_counted():
    state = private().init(MODEL)
    updates, moves = [Update(MODEL, 4.0)], []
    for _ in range(3):
        merged, state = private(ones).merge(MODEL, state, updates)
        moves.append(float(merged["b"] - MODEL["b"]))
    assert moves == pytest.approx([0.1, 0.2, 0.3], abs=1e-6)
    assert int(state["releases"]) == 3


def test_a_client_more_or_less_moves_the_sum_by_the_bound_at_most():
    # What the promise rests on: nothing else depends on a client, not even what it is divided by.
    state = private().init(MODEL)
    whole, _ = private().merge(MODEL, state, [Update(one, 1.0) for one in UPDATES])
    for i, one in enumerate(UPDATES):
        rest = [Update(other, 1.0) for j, other in enumerate(UPDATES) if j != i]
        without, _ = private().merge(MODEL, state, rest)
        assert 4 * reach(whole, without) == pytest.approx(min(C, reach(one)), abs=1e-5)


def test_means_of_nodes_count_for_their_clients():
    near = [clip(one, MODEL, C) for one in UPDATES]
    node = weighted_mean([Update(one, 1.0) for one in near[:3]])
    state = private().init(MODEL)
    one, _ = private().merge(MODEL, state, [Update(n, 1.0) for n in near])
    other, _ = private().merge(MODEL, state, [Update(node, 3.0), Update(near[3], 1.0)])
    assert_same(one, other, atol=1e-6)


def test_a_servers_step_scales_the_noise_too():
    model, mixed = MODEL, private(ones, mixed_mean(0.5))
    merged, state = mixed.merge(model, mixed.init(model), [Update(MODEL, 4.0)])
    assert_same(merged, moved(0.05, 0.05, 0.05), atol=1e-6)
    assert mixed.weighting == "clients"
    assert state.keys() == {"releases"}


def test_refuses_what_would_not_be_private():
    every = mean()._replace(additive=False)
    with pytest.raises(ValueError, match=r"privacy must be none or local where .*, got 'central'"):
        private(aggregate=every)
    with pytest.raises(ValueError, match="noise-multiplier must be positive, got 0"):
        private(multiplier=0.0)
    with pytest.raises(ValueError, match="clip must be positive, got 0"):
        clipped(mean(), 0.0)


def test_it_is_flowers_wrapper_around_the_mean(monkeypatch):
    # Its noise is drawn from numpy's global generator; here it is as many ones as its deviation.
    monkeypatch.setattr(np.random, "normal", lambda mean, std, shape: np.full(shape, std))
    wrapper = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.8, C, 4)
    wrapper.current_arrays = to_record(MODEL)
    local_run()
    query = Message(RecordDict(), dst_node_id=1, message_type="train")
    metrics = MetricRecord({"num-examples": 7})
    replies = [
        Message(RecordDict({"arrays": to_record(one), "metrics": metrics}), reply_to=query)
        for one in UPDATES
    ]
    theirs = to_params(wrapper.aggregate_train(1, replies)[0])
    ours, _ = private(ones).merge(MODEL, private().init(MODEL), [Update(u, 1.0) for u in UPDATES])
    assert_same(ours, {name: leaf.float() for name, leaf in theirs.items()}, atol=1e-6)


# --- What it is worth ------------------------------------------------------------------------


def phi(x):
    return (1 + math.erf(x / math.sqrt(2))) / 2


@pytest.mark.parametrize(("mu", "value"), [(1.0, 1.0), (0.5, 0.7), (2.0, 5.0)])
def test_epsilon_is_where_the_exact_delta_is(mu, value):
    # Balle and Wang, Thm. 8.
    delta = phi(mu / 2 - value / mu) - math.exp(value) * phi(-mu / 2 - value / mu)
    assert epsilon(1 / mu, 1, delta) == pytest.approx(value, rel=1e-6)


def test_releases_add_up_as_one_with_less_noise():
    assert epsilon(2.0, 9, 1e-5) == pytest.approx(epsilon(2.0 / 3, 1, 1e-5), rel=1e-9)
    assert epsilon(1.0, 0, 1e-5) == 0


def test_a_large_delta_needs_no_epsilon():
    total = 2 * phi(0.5) - 1  # the total variation between N(0, 1) and N(1, 1)
    assert epsilon(1.0, 1, total + 1e-9) == 0
    assert epsilon(1.0, 1, total - 1e-3) > 0


@given(st.floats(0.2, 20), st.integers(1, 500), st.floats(1e-9, 0.1))
def test_epsilon_is_below_what_renyi_accounting_finds(multiplier, releases, delta):
    # Of order a, k releases cost k a / 2 z^2, and epsilon = that + ln(1 / delta) / (a - 1)
    # (Mironov. Renyi Differential Privacy. 2017, Prop. 3 and 7); what Flower's accountant refines.
    rate = releases / (2 * multiplier**2)
    best = 1 + math.sqrt(math.log(1 / delta) / rate)
    renyi = rate * best + math.log(1 / delta) / (best - 1)
    assert 0 <= epsilon(multiplier, releases, delta) <= renyi * (1 + 1e-9)


@pytest.mark.parametrize(
    ("wanted", "least", "most"), [(0.5, 0.3, 0.5), (1.0, 0.7, 1.0), (16.0, 18.0, 19.0)]
)
def test_the_classical_formula_is_safe_for_small_epsilons_only(wanted, least, most):
    # Dwork and Roth, Thm. A.1, is for epsilon < 1.
    classical = math.sqrt(2 * math.log(1.25 / 1e-5)) / wanted
    assert least < epsilon(classical, 1, 1e-5) < most


def test_epsilon_refuses_what_is_no_mechanism():
    with pytest.raises(ValueError, match="noise-multiplier must be positive, got 0"):
        epsilon(0.0, 1, 1e-5)
    with pytest.raises(ValueError, match=r"delta must be in \(0, 1\), got 1.0"):
        epsilon(1.0, 1, 1.0)
