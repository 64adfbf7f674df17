"""Epsilon of sampled Gaussians, against integrals and sums that are taken here."""

import math
import sys
from functools import cache

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from engram.settings.errors import Refused
from tests.epsilons import epsilon, poisson_epsilon, subset_epsilon
from tests.samples import entry

MNIST = 256 / 60000  # batches of 256 of 60,000 rows, as TensorFlow Privacy's tutorial has them


def by_renyi(z, q, releases, delta):
    """Epsilon by the moments accountant: E over N(0, z^2) of the likelihood ratio's power.

    With the conversion epsilon = rdp + ln(1 / delta) / (order - 1) of Mironov (2017, Prop. 3).
    """

    def power(x, order):
        ratio = math.log1p(q * math.expm1((2 * x - 1) / (2 * z**2)))
        return math.exp(norm.logpdf(x, 0, z) + order * ratio)

    found = []
    for order in range(2, 21):
        ends = (-12 * z, order + 12 * z)
        moment, _ = quad(power, *ends, args=(order,), limit=500, points=[0, order])
        rdp = math.log(moment) / (order - 1)
        found.append(releases * rdp + math.log(1 / delta) / (order - 1))
    return min(found)


def by_distribution(z, q, releases, delta, step=1e-3):
    """Epsilon by composing both privacy loss distributions, rounded to the nearest grid point."""
    worst = 0.0
    for added in (False, True):
        # The loss grows with x: ln((1 - q) + q e^((2 x - 1) / 2 z^2)).
        x = np.linspace(-14 * z, 1 + 14 * z, 200_001)
        loss = np.log1p(q * np.expm1((2 * x - 1) / (2 * z**2)))
        without, with_one = norm.cdf(x, 0, z), (1 - q) * norm.cdf(x, 0, z) + q * norm.cdf(x, 1, z)
        mass = np.diff(without if added else with_one)
        each = np.rint((loss[1:] + loss[:-1]) / 2 * (-1 if added else 1) / step).astype(int)
        size = 2**17  # all losses but for a mass far below delta are within half of it
        one = np.bincount(each % size, weights=mass, minlength=size)
        whole = np.fft.irfft(np.fft.rfft(one) ** releases, size).clip(0)
        losses = np.fft.fftfreq(size, 1 / size) * step
        left, right = 0.0, 100.0
        for _ in range(50):
            middle = (left + right) / 2
            far = losses > middle
            enough = (whole[far] * -np.expm1(middle - losses[far])).sum() <= delta
            left, right = (left, middle) if enough else (middle, right)
        worst = max(worst, right)
    return worst


@pytest.mark.parametrize(
    ("z", "q", "releases"),
    [(1.0, 0.01, 1), (1.0, 0.01, 100), (0.7, 0.1, 20), (2.0, 0.5, 30), (1.1, MNIST, 300)],
)
def test_epsilon_is_what_composed_privacy_losses_say(z, q, releases):
    found = poisson_epsilon(z, q, releases, 1e-5)
    assert found == pytest.approx(by_distribution(z, q, releases, 1e-5), rel=1e-2)


def test_epsilon_is_below_what_was_published_for_mnist():
    """TensorFlow Privacy's tutorial and the moments accountant, by Renyi's, at delta 1e-5."""
    for z, epochs, published in [(1.12, 60, 2.92), (0.6, 30, 9.74), (1.1, 60, 3.0)]:
        with entry(z, epochs, published):
            releases = epochs * 60000 // 256
            assert by_renyi(z, MNIST, releases, 1e-5) == pytest.approx(published, abs=0.05)
            assert 0.7 * published < poisson_epsilon(z, MNIST, releases, 1e-5) < published


def test_everybody_is_the_plain_gaussian_and_nobody_loses_nothing():
    assert poisson_epsilon(5.0, 1.0, 9, 1e-5) == epsilon(5.0, 9, 1e-5)
    assert poisson_epsilon(5.0, 0.999, 9, 1e-5) == pytest.approx(epsilon(5.0, 9, 1e-5), rel=1e-3)
    assert poisson_epsilon(1.0, 0.1, 0, 1e-5) == 0


ENDS = [
    (1e-6, 0.01, 10**6, 1e-5),
    (1.0, 0.01, 100, 1e-100),
    (1e6, 0.5, 10, 1e-5),
    (0.3, 0.5, 9, 0.9),
]


def test_the_ends_of_the_ranges_have_an_epsilon_too():
    for amplified in [poisson_epsilon, subset_epsilon]:
        with entry(amplified):
            for z, q, releases, delta in ENDS:
                with entry(z, q, releases, delta):
                    found = amplified(z, q, releases, delta)
                    assert 0 <= found <= epsilon(z, releases, delta)


def by_theorem_27(z, q, releases, delta):
    """Epsilon by Wang, Balle and Kasiviswanathan's bound, of orders up to 12.

    With the conversion epsilon = rdp + ln(1 - 1 / order) - ln(order delta) / (order - 1) of
    Canonne, Kamath, Steinke (2020, Prop. 12).
    """

    def power(order):  # E of the likelihood ratio's power, e^((order - 1) eps(order))
        return math.exp((order - 1) * order / (2 * z**2))

    @cache
    def moment(order):  # E over N(0, z^2) of the power of the likelihood ratio less 1
        def at(x):
            return norm.pdf(x, 0, z) * math.expm1((2 * x - 1) / (2 * z**2)) ** order

        return quad(at, -14 * z, order + 14 * z, limit=500, points=[0, order], epsrel=1e-11)[0]

    found = []
    for order in range(2, 13):
        total = 1 + q**2 * math.comb(order, 2) * min(4 * moment(2), 2 * power(2))
        for j in range(3, order + 1):
            geometric = 4 * math.sqrt(moment(2 * (j // 2)) * moment(2 * ((j + 1) // 2)))
            total += q**j * math.comb(order, j) * min(geometric, 2 * power(j))
        rdp = releases * math.log(total) / (order - 1)
        found.append(rdp + math.log1p(-1 / order) - math.log(order * delta) / (order - 1))
    return min(found)


def test_epsilon_without_replacement_is_that_of_theorem_27():
    for z, q, releases in [(1.0, 0.01, 1000), (1.5, 0.01, 1000), (2.5, 0.1, 300)]:
        with entry(z, q, releases):
            found = subset_epsilon(z, q, releases, 1e-5)
            assert found == pytest.approx(by_theorem_27(z, q, releases, 1e-5), rel=1e-8)


def test_a_federation_of_ten_thousand_without_replacement():
    """Two clips of noise multiplier 1; the first term of Theorem 27 is 2 q^2 e^4, at order two."""
    found = subset_epsilon(1.0 / 2, 100 / 10_000, 1000, 1e-5)
    first = 1000 * math.log1p(2 * 0.01**2 * math.exp(4)) - math.log(2 * 2 * 1e-5)
    assert found == pytest.approx(first) == pytest.approx(20.987, abs=1e-3)
    assert poisson_epsilon(1.0, 0.01, 1000, 1e-5) < found < epsilon(1.0 / 2, 24, 1e-5)


def test_without_replacement_no_bound_is_above_that_of_known_cohorts():
    assert subset_epsilon(0.25, 0.5, 1000, 1e-5) == epsilon(0.25, 1000, 1e-5)
    assert subset_epsilon(5.0, 1.0, 9, 1e-5) == epsilon(5.0, 9, 1e-5)
    assert subset_epsilon(1.0, 0.1, 0, 1e-5) == 0
    base = subset_epsilon(1.0, 0.1, 10, 1e-5)
    assert subset_epsilon(1.5, 0.1, 10, 1e-5) < base < epsilon(1.0, 10, 1e-5)
    assert subset_epsilon(1.0, 0.2, 10, 1e-5) > base
    assert subset_epsilon(1.0, 0.1, 20, 1e-5) > base


@pytest.mark.parametrize("amplified", [poisson_epsilon, subset_epsilon])
def test_without_the_package_one_line_says_what_to_install(monkeypatch, amplified):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(Refused, match=r"needs dp-accounting: pip install 'engram\[privacy\]'"):
        amplified(1.0, 0.125, 3, 1e-5)
    with pytest.raises(ValueError, match=r"sampling rate must be in \(0, 1\], got 0"):
        amplified(1.0, 0.0, 3, 1e-5)
