"""The best fixed decision in hindsight, the reference for regret, with a bound on its error.

The total loss F is minimized on a ball by Newton's method: each step goes towards the minimum of
F's quadratic model on the ball. Since F lies above its tangent at any point, and the tangent's
minimum on the ball is known, this bounds how much better another decision can be.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from engram.core.arrays import Array

_STEPS: Final = 100  # of Newton's method, which takes some ten
_ROUNDING: Final = 1e-13  # of a total, relative


class Total(NamedTuple):
    """A convex function F at a point x."""

    value: float  # F(x)
    gradient: Array  # the gradient at x, shape (d,)
    curvature: Array  # the Hessian at x, shape (d, d)


class Best(NamedTuple):
    """A minimizer on a ball."""

    decision: Array  # x, shape (d,)
    total: float  # F(x)
    gap: float  # the least value on the ball is at least ``total - gap``


def least_quadratic(form: Array, linear: Array, radius: float) -> Array:
    """Returns the x with |x| <= r that minimizes x'Hx / 2 - <h, x>, shape (d,).

    It is (H + nu I)^-1 h with the least nu >= 0 for which it lies in the ball, found as the root of
    a function decreasing in nu.

    Args:
        form: H, symmetric and positive semidefinite, shape (d, d).
        linear: h, shape (d,).
        radius: r > 0.
    """
    from scipy.optimize import brentq  # noqa: PLC0415 - slow to import, and wanted here alone

    values, axes = np.linalg.eigh(form)
    values, h = np.maximum(values, 0.0), axes.T @ linear
    if not h.any():
        return np.zeros_like(linear)
    # With this nu, |x| <= |h| / nu < r, by more than rounding.
    high = (1 + 1e-12) * float(np.linalg.norm(h)) / radius

    def excess(nu: float) -> float:
        return float(np.linalg.norm(h / (values + nu))) - radius

    low = 1e-16 * high  # as good as 0, and safe where H is singular
    nu = low if excess(low) <= 0 else brentq(excess, low, high, xtol=1e-300, rtol=1e-15)
    x: Array = axes @ (h / (values + nu))
    return x


def least_on_ball(total: Callable[[Array], Total], start: Array, radius: float) -> Best:
    """Minimizes a smooth convex function F where |x| <= r.

    Args:
        total: ``x -> Total`` of F at x.
        start: Initial point in the ball, shape (d,).
        radius: r > 0.
    """
    x, here = start, total(start)
    gap = _gap(here, x, radius)
    for _ in range(_STEPS):
        slack = _ROUNDING * (1 + abs(here.value))
        if gap <= slack:
            break
        aim = here.curvature @ x - here.gradient
        towards = least_quadratic(here.curvature, aim, radius) - x
        share, falls = 1.0, float(here.gradient @ towards)
        there = total(x + towards)
        while there.value > here.value + 0.1 * share * falls + slack and share > 1e-9:
            share /= 2
            there = total(x + share * towards)
        before, gap = gap, _gap(there, x + share * towards, radius)
        if here.value - there.value <= slack and gap >= before:  # it is rounding that moves it
            gap = before
            break
        x, here = x + share * towards, there
    return Best(x, here.value, gap)


def _gap(here: Total, x: Array, radius: float) -> float:
    """Returns how far the tangent at x falls below F(x) in the ball."""
    return float(here.gradient @ x + radius * np.linalg.norm(here.gradient))
