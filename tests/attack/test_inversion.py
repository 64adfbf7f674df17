"""Rows come back from changes of networks that are written out in plain torch."""

import pytest
import torch

from engram.attack.inversion import recovered, rows_of_gradient, rows_of_layer


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def _net(generator):
    return [torch.randn(size, generator=generator) * 0.5 for size in ((8, 5), (8,), (3, 8), (3,))]


def _gradients(params, x, y, activation, *, create=False):
    leaves = [leaf.detach().requires_grad_() for leaf in params]
    w1, b1, w2, b2 = leaves
    outputs = activation(x @ w1.T + b1) @ w2.T + b2
    loss = torch.nn.functional.cross_entropy(outputs, y)
    return torch.autograd.grad(loss, leaves, create_graph=create)


def test_a_layer_that_one_row_has_moved_is_this_row(generator):
    params, x, y = _net(generator), torch.randn(1, 5, generator=generator), torch.tensor([2])
    weight, bias, *_ = (-0.3 * g for g in _gradients(params, x, y, torch.tanh))
    rows = rows_of_layer(weight, bias)
    torch.testing.assert_close(rows, x.expand(8, 5), rtol=1e-3, atol=1e-3)


def test_a_unit_that_one_row_of_a_batch_moves_tells_this_row(generator):
    # Over steps, too: what moves a unit's weight and bias adds up.
    params, x = _net(generator), torch.randn(6, 5, generator=generator)
    y, moved = torch.arange(6) % 3, [torch.zeros_like(leaf) for leaf in _net(generator)]
    alone = set()
    for _ in range(3):
        w1, b1, *_ = params
        active = x @ w1.T + b1 > 0
        alone_now = {
            int(active[:, unit].nonzero()) for unit in range(8) if active[:, unit].sum() == 1
        }
        alone = alone_now if not alone else alone & alone_now
        step = [-0.01 * g for g in _gradients(params, x, y, torch.relu)]
        params = [leaf + change for leaf, change in zip(params, step, strict=True)]
        moved = [old + change for old, change in zip(moved, step, strict=True)]
    assert alone  # the seed is such
    found = recovered(x, rows_of_layer(moved[0], moved[1]), spread=1e-6)
    assert alone <= set(found.nonzero().flatten().tolist())
    assert not found.all()


def test_units_that_have_not_moved_tell_nothing():
    weight = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, torch.inf]])
    found = rows_of_layer(weight, torch.tensor([0.5, 0, 1]))
    torch.testing.assert_close(found, torch.tensor([[2.0, 4.0]]))


def test_rows_are_found_by_the_direction_of_their_gradient(generator):
    params, x = _net(generator), torch.randn(2, 5, generator=generator)
    y = torch.tensor([0, 2])
    names = ["a", "b", "c", "d"]

    def gradient(rows):
        return dict(zip(names, _gradients(params, rows, y, torch.tanh, create=True), strict=True))

    change = {name: -0.7 * leaf.detach() for name, leaf in gradient(x).items()}
    starts = torch.randn(3, 2, 5, generator=generator)
    found = rows_of_gradient(gradient, change, starts, steps=800)
    assert recovered(x, found, spread=5.0).all()
    # A change that has nothing to do with the rows does not tell them.
    other = {name: torch.randn(leaf.shape, generator=generator) for name, leaf in change.items()}
    assert not recovered(x, rows_of_gradient(gradient, other, starts, steps=50), spread=5.0).any()


def test_a_row_is_shown_by_a_guess_within_a_tenth_of_the_spread():
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    near = torch.tensor([[0.0, 0.9], [9.0, 9.0]])
    assert recovered(rows, near, spread=8.2).tolist() == [True, False]
    assert recovered(rows, near, spread=8.0).tolist() == [False, False]
    assert recovered(rows, near[:0], spread=8.0).tolist() == [False, False]
