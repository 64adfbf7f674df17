"""Clipping, Gaussian noise, and what it is worth: closed forms."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from engram.core.tree import add_scaled, clip, interpolate, norm
from engram.guards.accounting.composition import epsilon_by_answers
from engram.guards.accounting.gaussian import concentrated_epsilon
from engram.guards.accounting.releases import Release
from engram.guards.changes import arrays_of
from tests.epsilons import epsilon
from tests.samples import entry
from tests.support import assert_same

MODEL = {"a": torch.tensor([[1.0, -2.0]]), "b": torch.tensor([0.5])}
C = 0.5


def moved(a, b, c):
    return {"a": MODEL["a"] + torch.tensor([[a, b]]), "b": MODEL["b"] + c}


def reach(params, origin=MODEL):
    return float(norm(add_scaled(params, -1.0, origin)))


# --- Clipping --------------------------------------------------------------------------------


def test_a_long_update_keeps_its_direction_and_gets_the_bounds_length_and_a_short_one_stays():
    # |(2, -1, 2)| = 3, so it is scaled by 0.5 / 3.
    held = clip(moved(2.0, -1.0, 2.0), MODEL, C)
    assert_same(held, moved(1 / 3, -1 / 6, 1 / 3), atol=1e-6)
    assert reach(held) == pytest.approx(C, abs=1e-6)
    short = moved(0.2, -0.1, 0.2)
    for bound in (0.3 + 1e-6, 1e9, math.inf):
        assert_same(clip(short, MODEL, bound), short)
    # Nothing overflows.
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
    assert reach(interpolate(*both, 0.8)) <= C + 1e-6


# --- Noise -----------------------------------------------------------------------------------


def test_noise_is_dealt_to_the_leaves_by_name():
    numbers = torch.tensor([1.0, 2.0, 3.0])
    found = arrays_of(numbers, dict(reversed(MODEL.items())))
    assert_same(found, {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([3.0])})
    stack = {name: torch.stack([leaf, leaf]) for name, leaf in MODEL.items()}
    both = arrays_of(torch.stack([numbers, numbers + 3]), stack)
    assert_same({name: leaf[1] for name, leaf in both.items()}, arrays_of(numbers + 3, MODEL))


# --- What it is worth ------------------------------------------------------------------------


def phi(x):
    return (1 + math.erf(x / math.sqrt(2))) / 2


def test_epsilon_is_where_the_exact_delta_is():
    # Balle and Wang, Thm. 8.
    for mu, value in [(1.0, 1.0), (0.5, 0.7), (2.0, 5.0)]:
        with entry(mu, value):
            delta = phi(mu / 2 - value / mu) - math.exp(value) * phi(-mu / 2 - value / mu)
            assert epsilon(1 / mu, 1, delta) == pytest.approx(value, rel=1e-6)


def test_releases_add_up_as_one_with_less_noise_and_a_large_delta_needs_no_epsilon():
    assert epsilon(2.0, 9, 1e-5) == pytest.approx(epsilon(2.0 / 3, 1, 1e-5), rel=1e-9)
    assert epsilon(1.0, 0, 1e-5) == 0
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


def test_the_classical_formula_is_safe_for_small_epsilons_only():
    # Dwork and Roth, Thm. A.1, is for epsilon < 1.
    for wanted, least, most in [(0.5, 0.3, 0.5), (1.0, 0.7, 1.0), (16.0, 18.0, 19.0)]:
        with entry(wanted, least, most):
            classical = math.sqrt(2 * math.log(1.25 / 1e-5)) / wanted
            assert least < epsilon(classical, 1, 1e-5) < most


def test_epsilon_refuses_what_is_no_mechanism():
    with pytest.raises(ValueError, match="noise-multiplier must be positive, got 0"):
        epsilon_by_answers([Release(0.0)], 1e-5)
    with pytest.raises(ValueError, match=r"delta must be in \(0, 1\), got 1.0"):
        epsilon(1.0, 1, 1.0)


def test_concentrated_privacy_gives_an_epsilon_that_no_gaussian_exceeds():
    # rho = 0.5, delta = e^-8: 0.5 + 2 sqrt(0.5 * 8) = 4.5.
    assert concentrated_epsilon(0.5, math.exp(-8)) == pytest.approx(4.5, rel=1e-12)
    assert concentrated_epsilon(0.0, 0.1) == 0
    # A Gaussian mechanism of multiplier z is 1 / (2 z^2)-concentrated, and its epsilon is exact.
    for z in (0.5, 1.0, 4.0):
        for releases in (1, 30):
            assert epsilon(z, releases, 1e-5) < concentrated_epsilon(releases / (2 * z**2), 1e-5)
