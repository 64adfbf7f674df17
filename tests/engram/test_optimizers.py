"""Optimizers of local steps: those of torch, and what they are when there is nothing to them."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.func import vmap

from engram.core.optimizers import check_optimizer
from engram.federated.local_only import local_only
from engram.federated.proximal import ditto
from engram.meta.fedavg import fedavg
from engram.meta.local_moml import local_moml, per_fedavg
from engram.meta.pfedme import pfedme
from engram.models import from_module, mean_loss
from engram.optimizers import model_part, scaled, with_optimizer
from engram.steps import optimizer, step_factor
from engram.tasks import REGRESSION
from engram.tree import part
from tests.support import DIM, assert_same, batch, draw, quadratic

RULES = {
    "fedavg": fedavg(quadratic, eta=0.1),
    "local-moml": local_moml(quadratic, alpha=0.05, beta=0.5, eta=0.1),
    "per-fedavg": per_fedavg(quadratic, alpha=0.05, eta=0.1),
    "pfedme": pfedme(quadratic, alpha=0.05, eta=0.1, strength=3.0, inner_steps=2),
}
TORCH = {
    "sgd": torch.optim.SGD,
    "momentum": lambda p, **o: torch.optim.SGD(p, momentum=0.9, **o),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def run(rule, steps, w=None):
    w = w or {"w": draw(10, DIM)}
    u = rule.init(w, batch(9) if rule.needs_initial_batch else None)
    size = rule.batches_per_step
    for h in range(steps):
        w, u = rule.step(w, u, tuple(batch(20 + h * size + b) for b in range(size)))
    return w, u


def assert_numbers_are_torchs(name, make, clip, decay):
    torch.manual_seed(0)
    # In float64: Adam divides by gradients' sizes, so near zero it enlarges rounding errors.
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    x, y = draw(1, 12, 8, 4), draw(2, 12, 8)
    network = from_module(module, x[0].float())
    loss = mean_loss(network, REGRESSION)
    rule = with_optimizer(fedavg(loss, eta=0.02), name, weight_decay=decay, clip=clip)
    w = {name: leaf.double() for name, leaf in network.init(torch.Generator()).items()}
    module.double()
    u = rule.init(w, None)
    other = make(module.parameters(), lr=0.02, weight_decay=decay)
    for inputs, targets in zip(x, y, strict=True):
        w, u = rule.step(w, u, ((inputs, targets),))
        other.zero_grad()
        (module(inputs).squeeze(1) - targets).square().mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        other.step()
    expected = {network.names.get(n, n): leaf for n, leaf in w.items()}
    assert_same(expected, {n: p.detach() for n, p in module.named_parameters()}, atol=1e-10)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_sgd_is_the_rule_itself(rule):
    assert with_optimizer(rule, "sgd", momentum=0.5) is rule


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_optimizers_that_do_nothing_else_are_sgd(rule):
    plain, states = run(rule, 4)
    for same in (
        with_optimizer(rule, "momentum", momentum=0.0),
        with_optimizer(rule, "sgd", clip=1e9),
        with_optimizer(rule, "sgd", weight_decay=1e-300),
    ):
        w, u = run(same, 4)
        assert_same(w, plain, atol=1e-12)
        assert_same(model_part(u), states, atol=1e-12)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_direction_is_the_displacement_over_the_step_size(rule):
    w = {"w": draw(10, DIM)}
    u = rule.init(w, batch(9))
    batches = tuple(batch(20 + b) for b in range(rule.batches_per_step))
    d, state = rule.direction(w, u, batches)
    stepped, expected = rule.step(w, u, batches)
    assert_same({"w": w["w"] - rule.eta * d["w"]}, stepped, atol=1e-12)
    assert_same(state, expected)


def test_two_steps_of_momentum_by_hand():
    rule = with_optimizer(RULES["fedavg"], "momentum", momentum=0.7)
    gradient = torch.func.grad(quadratic)
    w = {"w": draw(10, DIM)}
    first = gradient(w, batch(20))["w"]
    middle = w["w"] - 0.1 * first
    second = 0.7 * first + gradient({"w": middle}, batch(21))["w"]
    assert_same(run(rule, 2)[0], {"w": middle - 0.1 * second}, atol=1e-12)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_the_first_step_of_adam_goes_by_signs(rule, name):
    # m' = d and v' = d^2, so it is eta d / (|d| + 1e-8), whatever the direction's length.
    w = {"w": draw(10, DIM)}
    plain = run(rule, 1)[0]["w"]
    d = (w["w"] - plain) / 0.1
    assert (d.abs() > 1e-3).all()
    stepped, _ = run(with_optimizer(rule, name), 1)
    assert_same(stepped, {"w": w["w"] - 0.1 * d / (d.abs() + 1e-8)}, atol=1e-10)


def adagrad(gradient, squares):
    squares = squares + gradient**2
    return gradient / (squares.sqrt() + 1e-10), squares


def rmsprop(gradient, squares, momentum):
    squares = 0.99 * squares + 0.01 * gradient**2
    momentum = 0.9 * momentum + gradient / (squares.sqrt() + 1e-8)
    return momentum, squares, momentum


def adamax(gradient, mean, most, *, step):
    mean = 0.9 * mean + 0.1 * gradient
    most = torch.maximum(0.999 * most, gradient.abs() + 1e-8)
    return mean / ((1 - 0.9**step) * most), mean, most


OWN = {
    "adagrad": (adagrad, torch.optim.Adagrad),
    "rmsprop": (rmsprop, partial(torch.optim.RMSprop, momentum=0.9)),
    "adamax": (adamax, torch.optim.Adamax),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.usefixtures("plug_ins")
def test_an_optimizer_of_a_users_is_the_one_of_torch_that_it_writes_out(name):
    function, make = OWN[name]
    optimizer(function)
    assert check_optimizer(name)  # vmap can run it
    assert_numbers_are_torchs(name, make, clip=0.05, decay=0.1)


@pytest.mark.usefixtures("plug_ins")
def test_an_optimizer_of_a_users_may_have_no_moments():
    optimizer(torch.sign)
    rule = with_optimizer(RULES["fedavg"], "sign")
    w = {"w": draw(10, DIM)}
    expected = w["w"] - 0.1 * torch.func.grad(quadratic)(w, batch(20))["w"].sign()
    assert_same(run(rule, 1)[0], {"w": expected}, atol=1e-12)
    assert rule.moments is None


@pytest.mark.usefixtures("plug_ins")
def test_an_optimizer_that_looks_at_values_is_not_vectorized():
    @optimizer
    def looks(gradient):
        return gradient if gradient.sum().item() > 0 else -gradient

    assert not check_optimizer("looks")


@pytest.mark.usefixtures("plug_ins")
def test_an_optimizer_that_counts_steps_leaves_statistics_alone():
    optimizer(adamax)
    rule = with_optimizer(RULES["fedavg"], "adamax", statistics={"a.running_mean"})
    w, data = {"w": draw(10, DIM)}, batch(20)
    both = w | {"a.running_mean": torch.ones(DIM)}  # first by its name
    alone = with_optimizer(RULES["fedavg"], "adamax")
    expected, _ = alone.step(w, alone.init(w, data), (data,))
    found, _ = rule.step(both, rule.init(both, data), (data,))
    assert_same(found, expected | {"a.running_mean": torch.ones(DIM)})


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("name", TORCH)
def test_the_numbers_are_torchs(name, clip, decay):
    assert_numbers_are_torchs(name, TORCH[name], clip, decay)


@pytest.mark.parametrize("name", TORCH)
def test_each_of_two_models_is_moved_as_if_it_were_alone(name):
    # Without its proximal term, this rule is SGD on two models side by side.
    how = {"weight_decay": 0.1, "clip": 0.3}
    both = with_optimizer(ditto(quadratic, eta=0.1, strength=0.0), name, **how)
    alone = with_optimizer(RULES["fedavg"], name, **how)
    start = {"w": draw(10, DIM), "own/w": 3 * draw(11, DIM)}
    found, u = run(both, 4, start)
    for mark in ("", "own/"):
        assert_same(part(found, mark), run(alone, 4, part(start, mark))[0], atol=1e-12)
    moments = both.moments(start) if both.moments else {}
    assert moments.keys() == u.keys() - model_part(u).keys()


@pytest.mark.parametrize("name", TORCH)
def test_what_a_rule_does_not_move_stays_and_has_no_moments(name):
    rule = with_optimizer(local_only(quadratic, eta=0.1), name, weight_decay=0.1)
    start = {"w": draw(10, DIM), "own/w": draw(11, DIM)}
    found, u = run(rule, 4, start)
    assert torch.equal(found["w"], start["w"])
    assert not torch.equal(found["own/w"], start["own/w"])
    assert not {"optimizer/first/w", "optimizer/second/w"} & u.keys()


def test_running_statistics_do_not_decay():
    rule = with_optimizer(RULES["fedavg"], "sgd", weight_decay=0.5, statistics={"running"})
    zero = {"w": torch.zeros(DIM, dtype=torch.float64), "running": torch.ones(2)}
    w, _ = rule.step(zero, {}, (batch(1),))
    assert torch.equal(w["running"], zero["running"])


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("name", TORCH)
def test_many_clients_at_once_equal_one_at_a_time(rule, name):
    rule = with_optimizer(rule, name, weight_decay=0.1, clip=0.3)
    w = {"w": draw(10, 4, DIM)}
    u = vmap(rule.init)(w, batch(9, 4))
    assert rule.moments is None or rule.moments(w).keys() <= u.keys()
    for h in range(3):
        batches = tuple(batch(h + b, 4) for b in range(rule.batches_per_step))
        before = [({"w": w["w"][i]}, {k: v[i] for k, v in u.items()}) for i in range(4)]
        w, u = vmap(rule.step)(w, u, batches)
        for i, own in enumerate(before):
            alone, state = rule.step(*own, tuple((x[i], y[i]) for x, y in batches))
            assert_same({"w": w["w"][i]}, alone, atol=1e-12)
            assert_same({k: v[i] for k, v in u.items()}, state, atol=1e-12)


@pytest.mark.parametrize("name", TORCH)
def test_a_schedule_is_another_step_size(name):
    half = with_optimizer(fedavg(quadratic, eta=0.05), name, weight_decay=0.2)
    whole = with_optimizer(fedavg(quadratic, eta=0.1), name, weight_decay=0.2)
    assert_same(run(scaled(whole, 0.5), 4)[0], run(half, 4)[0], atol=1e-12)
    assert scaled(whole, 1.0) is whole


@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        ("constant", lambda o: torch.optim.lr_scheduler.ConstantLR(o, factor=1.0)),
        ("cosine", lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8)),
        ("step", lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [4, 6])),
    ],
)
def test_schedules_are_torchs(schedule, make):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    for server_round in range(1, 9):
        (expected,) = scheduler.get_last_lr()
        assert step_factor(schedule, server_round, 8) == pytest.approx(expected, abs=1e-12)
        optimizer.step()
        scheduler.step()


def test_a_step_size_of_each_run_is_kept_apart():
    # Studies stack runs that differ in step sizes: a tensor of them, one for each.
    eta = torch.tensor([0.1, 0.2], dtype=torch.float64)
    gradient = torch.func.vmap(torch.func.grad(quadratic))

    def stacked(w, u, batches):
        return gradient(w, batches[0]), u

    both = RULES["fedavg"]._replace(direction=stacked, eta=eta)
    for name in TORCH:
        rule = with_optimizer(both, name, weight_decay=0.1)
        w = {"w": draw(10, DIM).expand(2, DIM)}
        w, _ = rule.step(w, rule.init(w, None), (tuple(x.expand(2, *x.shape) for x in batch(1)),))
        for i, own in enumerate(eta.tolist()):
            one = with_optimizer(fedavg(quadratic, eta=own), name, weight_decay=0.1)
            start = {"w": draw(10, DIM)}
            alone, _ = one.step(start, one.init(start, None), (batch(1),))
            assert_same({"w": w["w"][i]}, alone, atol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"momentum": 1.0}, "momentum must be at least 0, below 1, got 1.0"),
        ({"weight_decay": -1.0}, "weight-decay must be at least 0, got -1.0"),
        ({"clip": -1.0}, "gradient-clip must be at least 0, got -1.0"),
    ],
)
def test_impossible_values_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        with_optimizer(RULES["fedavg"], "adam", **wrong)


def test_a_rule_without_a_direction_takes_no_optimizer():
    with pytest.raises(ValueError, match="optimizer must be sgd"):
        with_optimizer(RULES["fedavg"]._replace(direction=None), "adam")
