"""The contract of a local rule, over every algorithm and Hessian variant."""

import pytest
from torch.func import vmap

from engram.models import begun
from federation.methods import family
from tests.support import DIM, assert_same, batch, draw, quadratic, small_of_any

CLIENTS = 4
RULES = [
    (name, hessian)
    for name in family("local")
    for hessian in ("exact", "first-order", "finite-difference")
    if hessian == "exact" or name in ("local-moml", "per-fedavg")
]


@pytest.fixture(params=RULES, ids="/".join)
def rule(request):
    algorithm, hessian = request.param
    return small_of_any(method=algorithm, hessian=hessian, alpha=0.05).own.rule(quadratic)


def inputs(rule, clients):
    """Stacked models, memories and batches of a cohort."""
    w = vmap(lambda w: begun(w, rule.companions))({"w": draw(10, clients, DIM)})
    first = batch(9, clients) if rule.needs_initial_batch else None
    u = vmap(rule.init, in_dims=(0, None if first is None else 0))(w, first)
    return w, u, tuple(batch(i, clients) for i in range(rule.batches_per_step))


def one(tree, i):
    return {name: leaf[i] for name, leaf in tree.items()}


def test_many_clients_at_once_equal_one_at_a_time(rule):
    w, u, batches = inputs(rule, CLIENTS)
    together, states = vmap(rule.step)(w, u, batches)
    for i in range(CLIENTS):
        mine = tuple((x[i], y[i]) for x, y in batches)
        alone, state = rule.step(one(w, i), one(u, i), mine)
        assert_same(one(together, i), alone, atol=1e-12)
        assert_same(one(states, i), state, atol=1e-12)


def test_a_step_changes_none_of_its_arguments(rule):
    w, u, batches = inputs(rule, CLIENTS)
    copies = [{k: v.clone() for k, v in tree.items()} for tree in (w, u)]
    vmap(rule.step)(w, u, batches)
    assert_same(w, copies[0])
    assert_same(u, copies[1])


def test_state_keeps_its_structure(rule):
    w, u, batches = inputs(rule, CLIENTS)
    w_new, u_new = vmap(rule.step)(w, u, batches)
    assert {k: v.shape for k, v in w_new.items()} == {k: v.shape for k, v in w.items()}
    assert {k: v.shape for k, v in u_new.items()} == {k: v.shape for k, v in u.items()}
    if rule.state_is_model:
        assert u_new["w"].shape == w["w"].shape


def test_no_step_is_taken_where_every_gradient_is_zero(rule):
    w = begun({"w": draw(10, DIM)}, rule.companions)
    x = draw(1, 5, DIM)
    exact_fit = tuple((x, x @ w["w"]) for _ in range(rule.batches_per_step))
    state = rule.init(w, exact_fit[0] if rule.needs_initial_batch else None)
    stepped, _ = rule.step(w, state, exact_fit)
    assert_same(stepped, w, atol=1e-12)
