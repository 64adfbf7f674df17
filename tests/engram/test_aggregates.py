"""Aggregates: what a mean must satisfy, and pFedMe's mix."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram.aggregates import Update, mean, mixed_mean, weighted_mean
from federation.aggregation import aggregate_of
from federation.methods import METHODS, family
from tests.support import assert_same, draw, small_of_any

BY_ROWS = {
    "fedavg",
    "fedprox",
    "fedadagrad",
    "fedyogi",
    "fedadam",
    "fedper",
    "lg-fedavg",
    "fedbabu",
    "fedproto",
    "fedpac",
    "feddbe",
    "knn-per",
    "fedala",
    "fedem",
}
COMMON = [m for m in family("local") if aggregate_of(small_of_any(method=m)).tailored is None]
UPDATES = st.lists(
    st.tuples(st.lists(st.floats(-9, 9), min_size=2, max_size=2), st.integers(1, 50)),
    min_size=1,
    max_size=6,
)


def updates(pairs):
    return [Update({"w": torch.tensor(w, dtype=torch.float64)}, float(n)) for w, n in pairs]


@given(UPDATES, st.floats(0.01, 100))
def test_only_relative_weights_count(pairs, scale):
    scaled = [Update(u.params, u.weight * scale) for u in updates(pairs)]
    assert_same(weighted_mean(scaled), weighted_mean(updates(pairs)), atol=1e-12)


@given(UPDATES, st.integers(1, 5))
def test_means_of_parts_make_the_mean_of_all(pairs, cut):
    # This is what `additive` says, and what lets a node send one model for many clients.
    parts = [part for part in (updates(pairs)[:cut], updates(pairs)[cut:]) if part]
    merged = [Update(weighted_mean(part), sum(u.weight for u in part)) for part in parts]
    assert_same(weighted_mean(merged), weighted_mean(updates(pairs)), atol=1e-12)


def test_weighs_as_told():
    merged = weighted_mean(updates([([1.0, 0.0], 1), ([4.0, 8.0], 3)]))
    assert merged["w"].tolist() == [3.25, 6.0]  # (1 + 3*4)/4, (0 + 3*8)/4


def test_mix_interpolates_between_model_and_mean():
    model, change = {"w": draw(1, 2)}, updates([([1.0, 2.0], 1), ([3.0, 6.0], 1)])
    merged, state = mixed_mean(0.25).merge(model, {}, change)
    assert state == {}
    expected = 0.75 * model["w"] + 0.25 * torch.tensor([2.0, 4.0], dtype=torch.float64)
    assert_same(merged, {"w": expected}, atol=1e-12)


def test_mean_ignores_the_old_model():
    change = updates([([1.0, 2.0], 1)])
    assert_same(mean().merge({"w": draw(1, 2)}, {}, change)[0], change[0].params)


@pytest.mark.parametrize("algorithm", family("local"))
def test_weights_are_numbers_of_rows_or_of_clients(algorithm):
    weighting = aggregate_of(small_of_any(method=algorithm)).weighting
    assert weighting == ("examples" if algorithm in BY_ROWS else "clients")


@pytest.mark.parametrize("algorithm", COMMON)
def test_equal_updates_are_their_own_mean(algorithm):
    aggregate = aggregate_of(small_of_any(method=algorithm, server_mix=1.0))
    model, same = ({n: draw(seed, 2) for n in ("w", "control/w")} for seed in (1, 2))
    merged, _ = aggregate.merge(model, aggregate.init(model), [Update(same, 2.0)] * 3)
    if not METHODS[algorithm].server_steps:
        assert_same(merged, same, atol=1e-12)


@pytest.mark.parametrize("algorithm", COMMON)
def test_only_servers_with_a_step_of_their_own_and_pfedmes_leave_the_mean(algorithm):
    model, change = {"w": draw(1, 2)}, updates([([1.0, 2.0], 1)])
    aggregate = aggregate_of(small_of_any(method=algorithm, server_mix=0.25))
    merged, _ = aggregate.merge(model, aggregate.init(model), change)
    # Scaffold's control variates and fedproto's prototypes take a step of their own, and models
    # their mean.
    steps = METHODS[algorithm].server_steps and algorithm not in ("scaffold", "fedproto")
    assert torch.equal(merged["w"], change[0].params["w"]) == (not steps and algorithm != "pfedme")


def test_refuses_weights_that_weigh_nothing():
    with pytest.raises(ValueError, match="total weight must be positive, got 0"):
        weighted_mean([])
    with pytest.raises(ValueError, match="server-mix must be positive"):
        mixed_mean(0.0)
