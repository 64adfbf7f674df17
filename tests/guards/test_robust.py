"""Robust centers and bounded weights: by hand, by their definitions, and against minorities."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize

from engram.core.method import Update
from engram.guards.robust.centers import centered_clipping, geometric_median, median, trimmed_mean
from engram.guards.robust.choices import buckets
from engram.guards.robust.neighbors import krum, mixtures, multi_krum, nearest, nearest_mixing
from engram.guards.robust.weight_limit import bounded, weight_limit
from engram.methods.fedavg import FedAvg
from tests.guards.test_changes import at_of
from tests.methods.problem import built
from tests.samples import entry
from tests.support import assert_same, draw

LINE = [8.0, 1.0, 100.0, 4.0, 2.0]


def points(*values):
    return [{"w": torch.tensor([float(v)], dtype=torch.float64)} for v in values]


def models(count, seed=0, dtype=torch.float32):
    """Models of two leaves, none like another."""
    drawn = [{"a": draw(seed + i, 3, 2), "b": draw(seed + 100 + i, 4)} for i in range(count)]
    return [{name: leaf.to(dtype) for name, leaf in model.items()} for model in drawn]


# --- By hand ---------------------------------------------------------------------------------


def test_trimmed_mean():
    for values, cut, expected in [
        (LINE, 0, 23.0),
        (LINE, 1, 14 / 3),  # (2 + 4 + 8) / 3
        (LINE, 2, 4.0),
        (LINE, 9, 4.0),  # nothing would be left: the middle
        ([8.0, 1.0, 4.0, 2.0], 1, 3.0),
        ([8.0, 1.0, 4.0, 2.0], 2, 3.0),  # the middle two
        ([5.0], 1, 5.0),
    ]:
        with entry(values, cut):
            found = trimmed_mean(points(*values), cut)["w"].item()
            assert found == pytest.approx(expected, abs=1e-12)


def test_krum():
    for values, malicious, expected in [
        # Two nearest: 0 has 1 + 9, 1 has 1 + 4, 3 has 4 + 9, 7 has 16 + 36.
        ([7, 0, 100, 3, 1], 1, 1),
        # Three nearest: 0 has 1 + 9 + 49, 1 has 1 + 4 + 36, 3 has 4 + 9 + 16.
        ([7, 0, 100, 3, 1], 0, 3),
        # One nearest at least: 0 and 1 have 1, and 0 comes first.
        ([7, 0, 1], 5, 0),
        # 1 and 10 have 1 + 81, and 1 comes first, or 10 does.
        ([0, 1, 10, 11], 0, 1),
        ([0, 10, 1, 11], 0, 10),
        ([5], 0, 5),
    ]:
        with entry(values, malicious):
            assert krum(points(*values), malicious)["w"].item() == expected


# --- By their definitions ---------------------------------------------------------------------


def rows(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 10))


def of_rows(x):
    """Rows as models of two leaves."""
    each = torch.from_numpy(np.asarray(x, dtype=np.float64))
    return [{"a": row[:6].view(3, 2), "b": row[6:]} for row in each]


def row_of(model):
    return torch.cat([leaf.flatten() for leaf in model.values()]).numpy()


def test_multi_krum_is_the_mean_of_the_best_scores():
    for count, malicious in [(9, 2), (11, 3), (7, 0), (6, 1)]:
        with entry(count, malicious):
            x = rows(count)
            squares = ((x[:, None] - x[None]) ** 2).sum(2)
            nearest = np.sort(squares, axis=1)[:, 1 : count - malicious - 1]
            best = np.argsort(nearest.sum(1), kind="stable")[: count - malicious]
            np.testing.assert_allclose(row_of(multi_krum(of_rows(x), malicious)), x[best].mean(0))
            assert_same(krum(of_rows(x), malicious), of_rows(x)[best[0]])


def test_a_liar_that_krum_takes_is_near_others_that_need_not_have_one_mean():
    """Others are in two clusters; of the clusters of two, f = 2 leaves out both models."""
    taken = 0
    for seed in range(40):
        x, (n, f) = rows(9, seed) + 4 * (np.arange(9) % 2)[:, None], (9, 2)
        x[:f] = x[3:6].mean(0) + 0.05 * seed * rows(1, seed + 99)  # liars agree on one lie
        far = np.linalg.norm(x[:, None] - x[None], axis=2)
        most = far[f:, f:].max() * np.sqrt((n - f - 2) / (n - 2 * f - 1))
        lies = [i for i in nearest(of_rows(x), f) if i < f]
        taken += len(lies)
        assert all(far[i, f:].min() <= most for i in lies)
    assert taken > 10
    assert nearest(points(0, 0.1, 0.2, 10, 10.1, 0.3, 0.4, 0.5, 0.6), 2) == [0, 1, 2, 5, 6, 7, 8]


def test_the_geometric_median_has_the_least_sum_of_distances():
    for count in [1, 2, 5, 8]:
        with entry(count):
            x = rows(count, seed=count)

            def total(z, x=x):
                return np.linalg.norm(x - z, axis=1).sum()

            found = total(row_of(geometric_median(of_rows(x), steps=1000)))
            most = {"maxiter": 40_000}
            least = minimize(total, x.mean(0), method="Nelder-Mead", options=most).fun
            assert found <= least * (1 + 1e-4)


def test_centered_clipping_is_its_definition():
    x = rows(7, seed=3)
    v = np.sort(x, axis=0)[3]
    tau = np.median(np.linalg.norm(x - v, axis=1))
    for _ in range(3):
        length = np.linalg.norm(x - v, axis=1)
        v = v + ((x - v) * np.minimum(1, tau / length)[:, None]).mean(0)
    np.testing.assert_allclose(row_of(centered_clipping(of_rows(x))), v)


def test_buckets_are_means_in_the_order_that_is_drawn():
    x = rows(5)
    updates = [Update({"model": row}, 1) for row in of_rows(x)]
    order = np.random.default_rng(0).permutation(5)
    at = at_of(built(FedAvg()), {})._replace(drawn=lambda stream: np.random.default_rng(0))
    found = buckets(2).gather(at, updates)
    expected = [x[order[:2]].mean(0), x[order[2:4]].mean(0), x[order[4]]]
    np.testing.assert_allclose([row_of(u.slots["model"]) for u in found], expected, rtol=1e-6)


def test_nearest_mixing_is_its_definition():
    for count, malicious in [(9, 2), (11, 3), (7, 0)]:
        with entry(count, malicious):
            x = rows(count)
            nearest = ((x[:, None] - x[None]) ** 2).sum(2).argsort(1)[:, : count - malicious]
            y = np.stack([x[some].mean(0) for some in nearest])
            np.testing.assert_allclose([row_of(m) for m in mixtures(of_rows(x), malicious)], y)
            middle = np.sort(y, axis=0)[malicious : count - malicious].mean(0)
            np.testing.assert_allclose(row_of(nearest_mixing(of_rows(x), malicious)), middle)


@given(st.integers(0, 10**6), st.integers(1, 4), st.floats(0, 100))
def test_mixtures_of_honest_models_lie_around_their_mean_whatever_attackers_send(seed, f, far):
    # Allouah et al. 2023, Lemma 1: mean |y_i - x'|^2 <= 8 f / (n - f) mean |x_i - x'|^2.
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(12, 10))
    lies = honest[:1] * rng.normal() + far * rng.normal(size=(f, 10))
    y = np.stack([row_of(m) for m in mixtures(of_rows(np.vstack([honest, lies])), f)])[:12]
    spread, center = honest.var(0).sum(), honest.mean(0)
    assert ((y - center) ** 2).sum(1).mean() <= 8 * f / 12 * spread * (1 + 1e-9)


# --- Minorities ------------------------------------------------------------------------------

HONEST = st.lists(st.floats(-9, 9), min_size=5, max_size=9)
SEVEN = st.lists(st.floats(-9, 9), min_size=7, max_size=9)
ANYTHING = st.lists(st.floats(-3e38, 3e38), min_size=2, max_size=2)
CENTERS = {"median": median, "trimmed": partial(trimmed_mean, cut=2)}


@pytest.mark.parametrize("name", CENTERS)
@given(HONEST, ANYTHING)
def test_two_that_lie_leave_the_range_of_the_others(name, honest, lies):
    center = CENTERS[name](points(*honest, *lies))["w"].item()
    assert min(honest) - 1e-9 <= center <= max(honest) + 1e-9


@given(HONEST, ANYTHING)
def test_two_that_lie_make_krum_pick_no_distant_model(honest, lies):
    # Blanchard et al., Sec. 4: with n = honest + 2 and 2 * 2 + 2 < n, an honest model's score is
    # at most (n - 4) D^2, D the width of the honest ones; a liar's has an honest one among its
    # n - 4 > 1 nearest.
    picked = krum(points(*lies, *honest), 2)["w"].item()
    width, terms = max(honest) - min(honest), len(honest) - 2
    assert min(abs(picked - value) for value in honest) <= width * terms**0.5 + 1e-6


@given(SEVEN, ANYTHING)
def test_two_of_nine_or_more_move_the_geometric_median_by_a_multiple_of_the_spread(honest, lies):
    # Pillutla et al., and Minsker 2015, Lemma 2.1: from any point, by 2 (n - m) / (n - 2 m) times
    # the others' largest distance from it.
    sent = points(*lies, *honest)
    n, point = len(sent), float(np.mean(honest))
    reach = max(abs(v - point) for v in honest) * 2 * (n - 2) / (n - 4)
    assert abs(geometric_median(sent)["w"].item() - point) <= reach * 1.01 + 1e-3


@given(SEVEN, ANYTHING)
def test_and_centered_clipping_by_their_share_of_a_few_radii(honest, lies):
    # The start, a median, is within the others' range, and so most of them are within its width;
    # each of three steps then moves by a radius at most.
    sent = points(*lies, *honest)
    width = max(honest) - min(honest)
    found = centered_clipping(sent)["w"].item()
    assert min(honest) - 3 * width - 1e-6 <= found <= max(honest) + 3 * width + 1e-6


# --- Properties ------------------------------------------------------------------------------

ALL = {
    "median": median,
    "trimmed-mean": partial(trimmed_mean, cut=1),
    "krum": partial(krum, malicious=1),
    "multi-krum": partial(multi_krum, malicious=1),
    "geometric-median": geometric_median,
    "centered-clipping": centered_clipping,
    "nearest-mixing": partial(nearest_mixing, malicious=1),
}


def test_one_that_lies_ruins_the_mean_and_nothing_else():
    sent = [*models(8), {"a": torch.full((3, 2), 3e38), "b": torch.full((4,), -3e38)}]
    assert torch.stack([m["a"] for m in sent]).mean(0).abs().min() > 1e37
    for name, center in ALL.items():
        with entry(name):
            assert all(leaf.abs().max() < 4 for leaf in center(sent).values())


def test_order_does_not_matter_and_shifts_pass_through():
    sent, (shift,) = models(9, dtype=torch.float64), models(1, seed=77, dtype=torch.float64)
    shifted = [{name: leaf + shift[name] for name, leaf in m.items()} for m in sent]
    for name, center in ALL.items():
        with entry(name):
            expected = {name: leaf + shift[name] for name, leaf in center(sent).items()}
            assert_same(center(shifted[::-1]), expected, atol=1e-6)


def test_equal_models_are_their_own_center_and_nothing_is_written_to():
    for name, center in ALL.items():
        with entry(name):
            sent = models(1) * 6
            copy = {name: leaf.clone() for name, leaf in sent[0].items()}
            found = center(sent)
            assert_same(found, copy, atol=1e-6)
            assert_same(sent[0], copy)
            assert {leaf.dtype for leaf in found.values()} == {torch.float32}


def test_a_parameter_that_is_a_single_number_has_a_center():
    models = [{"scale": torch.tensor(x)} for x in (1.0, 9.0, 2.0)]
    assert_same(median(models), {"scale": torch.tensor(2.0)})


WEIGHTS = st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=30).map(np.array)
MULTIPLES = st.sampled_from([1.0, 1.5, 2.0, 5.0, 100.0])


def test_by_hand():
    for weights, limit in [
        ([7], 21),
        ([4, 1000], 12),  # of two, three times the smaller
        ([4, 10, 1000], 30),
        ([10, 4, 1000, 20], 30),  # of four, three times the second
        ([0, 0, 10, 4, 1000], 30),  # who has no weight is no client
        ([0, 0], np.inf),
    ]:
        with entry(weights, limit):
            assert weight_limit(weights, 3) == limit


def test_each_column_apart():
    weights = np.array([[1.0, 0.0, 0.0], [2.0, 8.0, 0.0], [9.0, 3.0, 0.0]])
    assert weight_limit(weights, 2).tolist() == [4.0, 6.0, np.inf]


@given(WEIGHTS, MULTIPLES, st.data())
def test_shares_of_a_minority_are_bounded(honest, multiple, data):
    liars = data.draw(st.integers(1, max(1, len(honest) - 1)))
    claims = data.draw(st.lists(st.integers(1, 2**31 - 1), min_size=liars, max_size=liars))
    weights = np.append(honest, claims)
    n, k = len(weights), liars
    assume(k <= n // 2)
    found = bounded(weights, multiple)
    bound = k * multiple / (k * multiple + n // 2 + 1 - k)
    assert found[len(honest) :].sum() / found.sum() <= bound * (1 + 1e-12)
    assert weight_limit(weights, multiple) <= multiple * honest.max()


def test_the_bound_is_attained():
    # One of six: of the others, two weigh nothing to speak of, and n // 2 = 3 the median.
    weights = np.array([1e-9, 1e-9, 10, 10, 10, 1e9])
    found = bounded(weights, 5)
    assert found[-1] / found.sum() == pytest.approx(5 / (5 + 3))
    # And where the others are alike: c / (c + n - 1).
    found = bounded(np.array([10.0] * 19 + [2**31 - 1]), 5)
    assert found[-1] / found.sum() == pytest.approx(5 / 24)


@given(WEIGHTS, MULTIPLES, st.randoms(), st.sampled_from([0.25, 8.0, 2.0**-40]))
def test_who_is_within_the_limit_is_left_as_is_and_nobody_gains(weights, multiple, random, unit):
    found, limit = bounded(weights, multiple), weight_limit(weights, multiple)
    assert (found <= weights).all()
    assert np.array_equal(found[weights <= limit], weights[weights <= limit])
    assert (found > 0).all()
    assert np.array_equal(bounded(weights, np.inf), weights)
    assert np.array_equal(bounded(found, multiple), found)  # once more
    order = random.sample(range(len(weights)), len(weights))
    assert np.array_equal(bounded(weights[order], multiple), found[order])
    assert np.array_equal(bounded(weights * unit, multiple), found * unit)  # without rounding


def test_refuses_a_multiple_below_one():
    with pytest.raises(ValueError, match=r"max-weight must be at least 1, got 0\.5"):
        weight_limit([1, 2], 0.5)


def test_losses_among_which_some_are_zero_or_rounded_below_it():
    assert bounded([1.0, 2.0, 3e38], 5).tolist() == [1, 2, 10]
    assert bounded([0.0, 0.0, 3.0, 4.0, 99.0], 5).tolist() == [0, 0, 3, 4, 20]
    assert bounded([0.0, -1e-9, 3.0], 5).tolist() == [0, -1e-9, 3]
