"""The three Hessian variants agree where they should."""

import torch

from engram.meta.meta_gradient import curvature_correction
from tests.support import DIM, assert_same, batch, draw


def smooth(params, data):
    x, y = data
    return torch.nn.functional.softplus(-(2 * (y > 0) - 1) * (x @ params["w"])).mean()


def linear(params, data):
    x, _ = data
    return (x @ params["w"]).mean()


def correct(loss, hessian, w, g, alpha=0.5):
    return curvature_correction(loss, alpha, hessian)({"w": w}, batch(2), {"w": g})


def test_finite_differences_are_close_to_exact():
    w, g = draw(10, DIM), draw(11, DIM)
    exact = correct(smooth, "exact", w, g)
    assert not torch.allclose(exact["w"], g, atol=1e-3)  # the Hessian does something here
    assert_same(correct(smooth, "finite-difference", w, g), exact, atol=1e-8)


def test_finite_differences_do_not_depend_on_the_length_of_the_vector():
    w, g = draw(10, DIM), draw(11, DIM)
    one = correct(smooth, "finite-difference", w, g)
    tiny = correct(smooth, "finite-difference", w, 1e-6 * g)
    assert_same({"w": tiny["w"] * 1e6}, one, atol=1e-8)
    zero = torch.zeros(DIM, dtype=torch.float64)
    assert_same(correct(smooth, "finite-difference", w, zero), {"w": zero})


def test_first_order_is_exact_where_the_hessian_is_zero():
    w, g = draw(10, DIM), draw(11, DIM)
    assert_same(correct(linear, "exact", w, g), correct(linear, "first-order", w, g))


def test_exact_equals_the_whole_hessian():
    w, g = draw(10, DIM), draw(11, DIM)
    hessian = torch.autograd.functional.hessian(lambda v: smooth({"w": v}, batch(2)), w)
    assert_same(correct(smooth, "exact", w, g), {"w": g - 0.5 * hessian @ g}, atol=1e-12)
