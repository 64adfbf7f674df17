"""The parts of secure aggregation, against other implementations and by hand."""

import math
from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import pytest
from Crypto.Cipher import AES
from scipy.stats import chisquare

from engram.guards.places import Sum
from engram.guards.secure.masks import agreed, mask, public_of
from engram.guards.secure.noise import deviation, discrete_gaussian
from engram.guards.secure.quantize import MOST, levels, quantize, restore
from engram.guards.secure.session import threshold
from engram.guards.secure.shares import PRIME, join, split
from tests.guards.secure.parties import entropy
from tests.samples import entry

TWENTY = Sum(20, 20, 14)  # parties with a client each, of whom 14 must stay


def test_any_shares_as_many_as_the_threshold_give_the_secret():
    secret = bytes(range(32))
    shares = split(secret, [0, 2, 3, 7, 11], 3, entropy(0))
    for some in combinations(shares, 3):
        assert join({p: shares[p] for p in some}) == secret


def test_shares_lie_on_a_polynomial_of_the_least_degree_that_hides_the_secret():
    """Newton's divided differences of order 3 vanish, and those of order 2 do not."""
    shares = split(b"\x01" * 32, range(5), 3, entropy(1))
    column = [int.from_bytes(share) for share in shares.values()]
    for order in range(1, 4):
        inverse = pow(order, -1, PRIME)  # the points are 1, 2, ..., so far apart
        column = [(b - a) * inverse % PRIME for a, b in pairwise(column)]
        assert any(column) == (order < 3)


def test_fewer_shares_than_the_threshold_are_uniform():
    """For any secret and two shares there is one polynomial of degree two: none is less likely."""
    values = [split(bytes(32), range(3), 3, entropy(seed))[0] for seed in range(4096)]
    bits = np.array([value[1] for value in values])  # the first byte has 9 bits less one
    assert chisquare(np.bincount(bits, minlength=256)).pvalue > 1e-4


def test_shares_of_different_secrets_are_noticed():
    one, other = (split(bytes([n]) * 32, range(3), 3, entropy(n)) for n in (1, 2))
    with pytest.raises(ValueError, match="shares of one secret"):
        join({0: one[0], 1: one[1], 2: other[2]})


def test_impossible_shares_are_refused():
    for bad in [{"threshold": 4}, {"threshold": 0}, {"holders": [1, 1, 2]}]:
        with entry(bad):
            given = {"holders": range(3), "threshold": 2} | bad
            with pytest.raises(ValueError, match="must be"):
                split(bytes(32), **given, entropy=entropy(0))


def test_a_mask_is_aes_256_in_counter_mode():
    seed = bytes(range(32))
    cipher = AES.new(seed, AES.MODE_CTR, nonce=b"", initial_value=0)
    expected = np.frombuffer(cipher.encrypt(bytes(40)), dtype="<u4")
    np.testing.assert_array_equal(mask(seed, 10), expected)


def test_every_bit_of_a_seed_bears_on_the_mask():
    seed = int.from_bytes(bytes(range(32)))
    masks = {mask((seed ^ 1 << bit).to_bytes(32), 4).tobytes() for bit in range(256)}
    assert len(masks) == 256


def test_two_parties_agree_on_a_key_that_differs_by_purpose():
    one, other = b"\x05" * 32, b"\x07" * 32
    key = agreed(one, public_of(other), b"mask")
    assert key == agreed(other, public_of(one), b"mask")
    assert len(key) == 32
    assert key != agreed(one, public_of(other), b"shares")


def test_a_key_of_low_order_is_refused():
    with pytest.raises(ValueError, match=r"."):
        agreed(b"\x05" * 32, bytes(32), b"mask")


THRESHOLDS = [
(3, 2 / 3, 3), (4, 2 / 3, 3), (20, 2 / 3, 14), (20, 0.5, 11), (2, 0.5, 2), (4, 0.99, 4),
]  # fmt: skip


def test_the_threshold_is_above_the_fraction():
    for n, fraction, least in THRESHOLDS:
        with entry(n, fraction, least):
            assert threshold(n, fraction) == least
            assert Fraction(least, n) > Fraction(fraction).limit_denominator(100) or least == n


def test_a_fraction_below_one_half_is_refused():
    for fraction in (0.49, 0.0, 1.0):
        with pytest.raises(ValueError, match=r"secure-threshold must be in \[0.5, 1\)"):
            threshold(10, fraction)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_largest_sum_does_not_wrap(sign):
    for clients in [1, 2, 3, 20, 1000, MOST]:
        with entry(clients):
            extreme = quantize(np.array([sign * 0.7]), bound=0.7, weight=1.0, room=clients)
            total = np.uint32(int(extreme[0]) * clients % 2**32)
            found = restore(np.array([total]), bound=0.7, room=clients)
            np.testing.assert_allclose(found, sign * 0.7 * clients, rtol=1e-12)
            assert clients * levels(clients) + clients / 2 < 2**31


def test_a_sum_of_weighted_updates_is_near_its_levels():
    rng = np.random.default_rng(0)
    clients, bound = 20, 0.3
    updates, weights = rng.uniform(-bound, bound, (clients, 500)), rng.uniform(0, 1, clients)
    total = np.zeros(500, dtype=np.uint32)
    for update, weight in zip(updates, weights, strict=True):
        total += quantize(update, bound=bound, weight=weight, room=clients)
    found = restore(total, bound=bound, room=clients)
    near = clients * bound / (2 * levels(clients))
    assert np.abs(found - weights @ updates).max() <= near * (1 + 1e-6)


def test_numbers_beyond_the_bound_are_cut_and_others_refused():
    found = quantize(np.array([5.0, -5.0]), bound=1.0, weight=1.0, room=2)
    np.testing.assert_allclose(restore(found, bound=1.0, room=2), [1, -1])
    with pytest.raises(ValueError, match="finite"):
        quantize(np.array([np.nan]), bound=1.0, weight=1.0, room=2)
    with pytest.raises(ValueError, match="weight must be in"):
        quantize(np.zeros(1), bound=1.0, weight=2.5, room=2)


@pytest.mark.parametrize("deviation", [0.7, 3.0, 20.5])
def test_noise_is_discrete_gaussian(deviation):
    drawn = discrete_gaussian(40_000, deviation, entropy(3))
    support = np.arange(-4 * round(deviation) - 3, 4 * round(deviation) + 4)
    chances = np.exp(-(support**2.0) / (2 * deviation**2))
    counts = np.array([(drawn == value).sum() for value in support])
    often = chances / chances.sum() * len(drawn) >= 10
    expected = chances[often] / chances[often].sum() * counts[often].sum()
    assert counts[often].sum() > 0.99 * len(drawn)
    assert chisquare(counts[often], expected).pvalue > 1e-3


def test_shares_of_noise_are_as_large_as_their_sum_must_be():
    """Shares of t = 14 sites: z (L + sqrt(d)) / sqrt(14), and tau of Prop. 14 is zero."""
    size, z = 10_000, 0.5
    reach = levels(20 + math.ceil(10 * z * math.sqrt(20 / 14)))
    assert deviation(TWENTY, z, size) == pytest.approx(z * (reach + 100) / math.sqrt(14), rel=1e-12)
    tau = 10 * sum(math.exp(-2 * math.pi**2 * 100**2 * k / (k + 1)) for k in range(1, 1000))
    assert tau == 0.0


def test_noise_that_whole_numbers_cannot_have_is_refused():
    with pytest.raises(ValueError, match="noise-multiplier must be at least"):
        deviation(TWENTY, 1e-6, 100)
    with pytest.raises(ValueError, match="numbers in an update must be at most"):
        deviation(Sum(60_000, 60_000, 40_001), 1.0, 10**9)
