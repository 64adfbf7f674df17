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


W, G = draw(10, DIM), draw(11, DIM)


def correct(loss, hessian, g=G):
    return curvature_correction(loss, 0.5, hessian)({"w": W}, batch(2), {"w": g})


def test_exact_is_the_whole_hessian_and_finite_differences_are_close():
    hessian = torch.autograd.functional.hessian(lambda v: smooth({"w": v}, batch(2)), W)
    expected = {"w": G - 0.5 * hessian @ G}
    assert not torch.allclose(expected["w"], G, atol=1e-3)  # the Hessian does something here
    assert_same(correct(smooth, "exact"), expected, atol=1e-12)
    assert_same(correct(smooth, "finite-difference"), expected, atol=1e-8)
    assert_same(correct(linear, "exact"), correct(linear, "first-order"))


def test_finite_differences_do_not_depend_on_the_length_of_the_vector():
    tiny = correct(smooth, "finite-difference", 1e-6 * G)
    assert_same({"w": tiny["w"] * 1e6}, correct(smooth, "finite-difference"), atol=1e-8)
    zero = torch.zeros(DIM, dtype=torch.float64)
    assert_same(correct(smooth, "finite-difference", zero), {"w": zero})
