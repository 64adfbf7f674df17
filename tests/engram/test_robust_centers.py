"""Robust centers by their definitions in numpy and scipy, and against arbitrary minorities."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from engram.guards.robust import (
    bucketed,
    centered_clipping,
    geometric_median,
    krum,
    mixtures,
    multi_krum,
    nearest_mixing,
)
from tests.support import assert_same, draw
from tests.tables import entry

CENTERS = {
    "multi-krum": partial(multi_krum, malicious=2),
    "geometric-median": geometric_median,
    "centered-clipping": centered_clipping,
    "nearest-mixing": partial(nearest_mixing, malicious=2),
}


def rows(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 10))


def models(x):
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
            np.testing.assert_allclose(row_of(multi_krum(models(x), malicious)), x[best].mean(0))
            assert_same(krum(models(x), malicious), models(x)[best[0]])


def test_the_geometric_median_has_the_least_sum_of_distances():
    for count in [1, 2, 5, 8]:
        with entry(count):
            x = rows(count, seed=count)

            def total(z, x=x):
                return np.linalg.norm(x - z, axis=1).sum()

            found = total(row_of(geometric_median(models(x), steps=1000)))
            least = minimize(
                total, x.mean(0), method="Nelder-Mead", options={"maxiter": 40_000}
            ).fun
            assert found <= least * (1 + 1e-4)


def test_on_a_line_it_is_the_median():
    line = [{"w": torch.tensor([float(v)])} for v in (8, 1, 100, 4, 2)]
    assert geometric_median(line)["w"].item() == pytest.approx(4.0, abs=1e-3)


def test_centered_clipping_is_its_definition():
    x = rows(7, seed=3)
    v = np.sort(x, axis=0)[3]
    tau = np.median(np.linalg.norm(x - v, axis=1))
    for _ in range(3):
        length = np.linalg.norm(x - v, axis=1)
        v = v + ((x - v) * np.minimum(1, tau / length)[:, None]).mean(0)
    np.testing.assert_allclose(row_of(centered_clipping(models(x))), v)


def test_buckets_are_means_in_the_order_that_is_drawn():
    x = rows(5)
    found = bucketed(models(x), 2, [3, 1, 4, 0, 2])
    expected = [x[[3, 1]].mean(0), x[[4, 0]].mean(0), x[2]]
    np.testing.assert_allclose([row_of(m) for m in found], expected)
    assert bucketed(models(x), 1, [3, 1, 4, 0, 2])[0]["a"].tolist() == models(x)[0]["a"].tolist()


def test_nearest_mixing_is_its_definition():
    for count, malicious in [(9, 2), (11, 3), (7, 0)]:
        with entry(count, malicious):
            x = rows(count)
            nearest = ((x[:, None] - x[None]) ** 2).sum(2).argsort(1)[:, : count - malicious]
            y = np.stack([x[some].mean(0) for some in nearest])
            np.testing.assert_allclose([row_of(m) for m in mixtures(models(x), malicious)], y)
            middle = np.sort(y, axis=0)[malicious : count - malicious].mean(0)
            np.testing.assert_allclose(row_of(nearest_mixing(models(x), malicious)), middle)


@given(st.integers(0, 10**6), st.integers(1, 4), st.floats(0, 100))
def test_mixtures_of_honest_models_lie_around_their_mean_whatever_attackers_send(seed, f, far):
    # Allouah et al. 2023, Lemma 1: mean |y_i - x'|^2 <= 8 f / (n - f) mean |x_i - x'|^2.
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(12, 10))
    lies = honest[:1] * rng.normal() + far * rng.normal(size=(f, 10))
    y = np.stack([row_of(m) for m in mixtures(models(np.vstack([honest, lies])), f)])[:12]
    spread, center = honest.var(0).sum(), honest.mean(0)
    assert ((y - center) ** 2).sum(1).mean() <= 8 * f / 12 * spread * (1 + 1e-9)


HONEST = st.lists(st.floats(-9, 9), min_size=7, max_size=9)
ANYTHING = st.lists(st.floats(-3e38, 3e38), min_size=2, max_size=2)


@given(HONEST, ANYTHING)
def test_two_of_nine_or_more_move_the_geometric_median_by_a_multiple_of_the_spread(honest, lies):
    # Pillutla et al., and Minsker 2015, Lemma 2.1: from any point, by 2 (n - m) / (n - 2 m) times
    # the others' largest distance from it.
    sent = [{"w": torch.tensor([v], dtype=torch.float64)} for v in (*lies, *honest)]
    n, point = len(sent), float(np.mean(honest))
    reach = max(abs(v - point) for v in honest) * 2 * (n - 2) / (n - 4)
    assert abs(geometric_median(sent)["w"].item() - point) <= reach * 1.01 + 1e-3


@given(HONEST, ANYTHING)
def test_and_centered_clipping_by_their_share_of_a_few_radii(honest, lies):
    # The start, a median, is within the others' range, and so most of them are within its width;
    # each of three steps then moves by a radius at most.
    sent = [{"w": torch.tensor([v], dtype=torch.float64)} for v in (*lies, *honest)]
    width = max(honest) - min(honest)
    found = centered_clipping(sent)["w"].item()
    assert min(honest) - 3 * width - 1e-6 <= found <= max(honest) + 3 * width + 1e-6


def test_one_that_lies_ruins_nothing():
    sent = [{"a": draw(i, 3, 2), "b": draw(100 + i, 4)} for i in range(8)]
    sent.append({"a": torch.full((3, 2), 3e38), "b": torch.full((4,), -3e38)})
    for name, center_of in CENTERS.items():
        with entry(name):
            center = center_of(sent)
            assert all(leaf.abs().max() < 4 for leaf in center.values())
            assert {leaf.dtype for leaf in center.values()} == {
                leaf.dtype for leaf in sent[0].values()
            }


def test_shifts_pass_through_and_equal_models_are_their_own_center():
    x, shift = rows(9), rows(1, seed=9)
    for name, center_of in CENTERS.items():
        with entry(name):
            moved = row_of(center_of(models(x + shift)))
            np.testing.assert_allclose(moved, row_of(center_of(models(x))) + shift[0], atol=1e-6)
            np.testing.assert_allclose(row_of(center_of(models(np.repeat(x[:1], 6, 0)))), x[0])
