"""Networks and their gradients against autograd, and how they start."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram.bandits.networks import (
    difference_norms,
    f_parts,
    forward,
    gradient_norms,
    gradients,
    initial,
)
from tests.bandits.plain_meta_ban import gradient, network, norm, stepped

DEPTHS = st.lists(st.integers(1, 5), min_size=1, max_size=4)
SEEDS = st.integers(0, 2**32 - 1)


def drawn(seed, hidden, lead=(), dim=3, n=4):
    """Networks of shape ``lead``, and columns for them, in double precision."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*lead, *shape, generator=generator, dtype=torch.float64)

    sizes = [dim, *hidden, 1]
    weights = tuple(normal(b, a) for a, b in pairwise(sizes))
    return weights, normal(dim, n), normal(n)


@given(SEEDS, DEPTHS, st.sampled_from([(), (2,), (2, 3)]))
def test_gradients_are_those_of_autograd(seed, hidden, lead):
    weights, x, targets = drawn(seed, hidden, lead)
    shares = torch.rand(targets.shape, generator=torch.Generator().manual_seed(seed)).double()

    def loss(free):
        return 0.5 * (shares * (forward(free, x)[0] - targets) ** 2).sum()

    for found, expected in zip(
        gradients(weights, x, targets, shares), gradient(weights, loss), strict=True
    ):
        torch.testing.assert_close(found, expected)


@given(SEEDS, DEPTHS)
def test_norms_are_those_of_each_row_s_own_gradient(seed, hidden):
    (weights, x, _), (others, _, _) = drawn(seed, hidden), drawn(seed + 1, hidden)
    seen, by_others = forward(weights, x)[1], forward(others, x)[1]
    norms = gradient_norms(weights, seen)
    differences = difference_norms(weights, seen, others, by_others)
    for at in range(4):
        row = x[:, at]
        slopes, other = (gradient(w, lambda w, x=row: network(w, x)) for w in (weights, others))
        assert norms[at].item() == pytest.approx(norm(slopes))
        assert differences[at].item() == pytest.approx(norm(stepped(slopes, other, 1.0)))
        parts = reversed(f_parts(weights, seen))
        for (delta, below), slope in zip(parts, slopes, strict=True):
            torch.testing.assert_close(torch.outer(delta[:, at], below[:, at]), slope)


@given(SEEDS, DEPTHS)
def test_near_networks_differ_little(seed, hidden):
    weights, x, _ = drawn(seed, hidden)
    others = tuple(w * (1 + 1e-5) for w in weights)
    expected = difference_norms(weights, forward(weights, x)[1], others, forward(others, x)[1])
    weights, x, others = (tuple(w.float() for w in part) for part in (weights, (x,), others))
    seen, by_others = forward(weights, *x)[1], forward(others, *x)[1]
    assert not difference_norms(weights, seen, weights, seen).any()
    found = difference_norms(weights, seen, others, by_others)
    # Weights in single precision are right to 6e-8, so their differences of 1e-5 to about 1e-2.
    torch.testing.assert_close(found.double(), expected, rtol=0.1, atol=0)


def test_initial_weights_have_the_paper_s_variances():
    # Of n normal numbers of variance s, the mean square has the standard deviation s (2 / n)^1/2.
    widths = (400, 200, 100)
    weights = initial(np.random.default_rng(0), 50, widths)
    assert [tuple(w.shape) for w in weights] == [(400, 50), (200, 400), (100, 200), (1, 100)]
    for w, variance in zip(weights, (2 / 400, 2 / 200, 2 / 100, 1 / 100), strict=True):
        spread = (2 / w.numel()) ** 0.5
        assert abs(w.square().mean().item() / variance - 1) < 4 * spread
        assert abs(w.mean().item()) < 4 * (variance / w.numel()) ** 0.5
        assert w.dtype == torch.float32
