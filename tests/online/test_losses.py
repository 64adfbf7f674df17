"""Losses: by hand, derivatives as differences say, and what their best constant is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.online.losses import ABSOLUTE, HINGE, LOGISTIC, SQUARED, quantile
from tests.samples import entry

LOSSES = {
    "squared": SQUARED,
    "absolute": ABSOLUTE,
    "quantile": quantile(0.3),
    "logistic": LOGISTIC,
    "hinge": HINGE,
}
TWO_CLASSES = ("logistic", "hinge")


def test_by_hand():
    for name, p, y, value, derivative in [
        ("squared", 3.0, 0.5, 3.125, 2.5),
        ("absolute", 3.0, 0.5, 2.5, 1.0),
        ("absolute", -3.0, 0.5, 3.5, -1.0),
        ("absolute", 0.5, 0.5, 0.0, 0.0),
        ("quantile", 3.0, 0.5, 1.75, 0.7),  # 0.7 * 2.5 above, 0.3 * 3.5 below
        ("quantile", -3.0, 0.5, 1.05, -0.3),
        ("quantile", 0.5, 0.5, 0.0, 0.0),
        ("logistic", 0.0, 1.0, np.log(2), -0.5),
        ("logistic", np.log(3), -1.0, np.log(4), 0.75),  # the odds are 3 to 1
        ("hinge", 0.25, 1.0, 0.75, -1.0),
        ("hinge", 0.25, -1.0, 1.25, 1.0),
        ("hinge", 1.5, 1.0, 0.0, 0.0),
    ]:
        with entry(name, p, y, value, derivative):
            loss = LOSSES[name]
            assert loss.value(np.array(p), np.array(y)) == pytest.approx(value, abs=1e-12)
            assert loss.derivative(np.array(p), np.array(y)) == pytest.approx(derivative, abs=1e-12)


NUMBERS = st.floats(-40, 40)


@pytest.mark.parametrize("name", LOSSES)
@given(a=NUMBERS, b=NUMBERS, y=NUMBERS, sign=st.sampled_from([-1.0, 1.0]))
def test_derivatives_are_subgradients_and_never_larger_than_said(name, a, b, y, sign):
    # f(b) >= f(a) + f'(a) (b - a) for all a and b holds of the subgradients of a convex f only.
    loss, y = LOSSES[name], np.array(sign if name in TWO_CLASSES else y)
    here, there = loss.value(np.array(a), y), loss.value(np.array(b), y)
    derivative = loss.derivative(np.array(a), y)
    assert here >= 0
    assert there >= here + derivative * (b - a) - 1e-9
    assert abs(derivative) <= loss.lipschitz


def test_second_derivatives_are_derivatives_of_derivatives():
    h = 1e-5
    for name, loss in LOSSES.items():
        for p, y in [(-3.0, 1.0), (0.3, 1.0), (2.0, -1.0), (0.7, -1.0)]:
            with entry(name, p, y):
                behind, ahead = (loss.derivative(np.array(p + step), y) for step in (-h, h))
                change = pytest.approx((ahead - behind) / (2 * h), abs=1e-8)
                assert loss.second_derivative(np.array(p), y) == change


def test_the_best_constant_is_the_mean_the_median_or_the_quantile():
    for name, best in [("squared", 3.2), ("absolute", 2.0), ("quantile", 1.0)]:
        with entry(name, best):
            y = np.array([0.0, 1.0, 2.0, 4.0, 9.0])  # the 0.3 quantile of five is the second
            grid = np.linspace(-1, 10, 1101)
            total = [LOSSES[name].value(np.full(5, p), y).sum() for p in grid]
            assert grid[np.argmin(total)] == pytest.approx(best, abs=1e-9)


def test_a_quantile_is_between_0_and_1():
    for q in [0.0, 1.0, -0.5, float("nan")]:
        with entry(q), pytest.raises(ValueError, match="quantile must be in"):
            quantile(q)


def test_large_margins_do_not_overflow():
    p = np.array([-1e6, 1e6])
    assert LOGISTIC.value(p, np.ones(2)).tolist() == [1e6, 0.0]
    assert LOGISTIC.derivative(p, np.ones(2)).tolist() == [-1.0, 0.0]
