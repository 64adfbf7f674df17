"""Optimizers of local steps: those of torch, and what they are when there is nothing to them."""

from functools import partial
from itertools import product

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from engram.core.derivatives import by_autograd
from engram.core.rounds import Stepper
from engram.core.slot_optimizers import check_optimizer, optimizer_of
from engram.methods.ditto import Ditto
from engram.methods.fedavg import FedAvg
from engram.methods.fedrep import FedRep
from engram.methods.local import Local
from engram.networks.losses import mean_loss
from engram.networks.module import from_module
from engram.networks.optimizers import optimizer, step_factors
from engram.scoring.tasks import REGRESSION
from tests.methods import problem
from tests.methods.quadratics import built, client, local_round
from tests.samples import entry
from tests.support import DIM, assert_same, draw, quadratic

TORCH = {
    "sgd": torch.optim.SGD,
    "momentum": lambda p, **o: torch.optim.SGD(p, momentum=0.9, **o),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
W = {"w": draw(10, DIM)}
BATCHES = [client(20 + h) for h in range(4)]


def after(moves, *, settings=None, batches=BATCHES, factor=1.0):
    """Returns FedAvg's model, or another method's, after a client's steps."""
    method = built(settings or FedAvg())
    stepper = Stepper(moves, factor)
    return local_round(method, {"model": W}, method.client.start, batches, stepper)[0]["model"]


def assert_numbers_are_torchs(name, make, clip, decay):
    torch.manual_seed(0)
    # In float64: Adam divides by gradients' sizes, so near zero it enlarges rounding errors.
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    x, y = draw(1, 12, 8, 4), draw(2, 12, 8)
    network = from_module(module, x[0].float())
    gradient = by_autograd(mean_loss(network, REGRESSION)).gradient
    moves = optimizer_of(name, weight_decay=decay, clip=clip)
    w = {name: leaf.double() for name, leaf in network.init(torch.Generator()).items()}
    module.double()
    state = moves.init(w)
    other = make(module.parameters(), lr=0.02, weight_decay=decay)
    for inputs, targets in zip(x, y, strict=True):
        w, state = moves.update(w, gradient(w, (inputs, targets)), state, 0.02)
        other.zero_grad()
        (module(inputs).squeeze(1) - targets).square().mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        other.step()
    expected = {network.names.get(n, n): leaf for n, leaf in w.items()}
    assert_same(expected, {n: p.detach() for n, p in module.named_parameters()}, atol=1e-10)


def test_the_numbers_are_torchs():
    for decay, clip, name in product([0.0, 0.1], [0.0, 0.05], TORCH):
        with entry(decay, clip, name):
            assert_numbers_are_torchs(name, TORCH[name], clip, decay)


def test_optimizers_that_do_nothing_else_are_sgd():
    for same in [
        optimizer_of("momentum", momentum=0.0),
        optimizer_of("sgd", clip=1e9),
        optimizer_of("sgd", weight_decay=1e-300),
    ]:
        with entry(same):
            w = W["w"]
            for rows in BATCHES:
                w = w - 0.1 * torch.func.grad(quadratic)({"w": w}, rows)["w"]
            assert_same(after(optimizer_of("sgd")), {"w": w}, atol=1e-12)
            assert_same(after(same), {"w": w}, atol=1e-12)


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
    moves = optimizer_of("sign")
    gradient = torch.func.grad(quadratic)(W, BATCHES[0])["w"]
    expected = {"w": W["w"] - 0.1 * gradient.sign()}
    assert_same(after(moves, batches=BATCHES[:1]), expected, atol=1e-12)
    assert not moves.remembers


@pytest.mark.usefixtures("plug_ins")
def test_an_optimizer_that_looks_at_values_is_not_vectorized():
    @optimizer
    def looks(gradient):
        return gradient if gradient.sum().item() > 0 else -gradient

    assert not check_optimizer("looks")


# --- Steps of slots ------------------------------------------------------------------------------


@pytest.mark.usefixtures("plug_ins")
def test_running_statistics_are_left_alone_and_do_not_decay():
    optimizer(adamax)
    both = {"a.running_mean": torch.ones(DIM)} | W  # first by its name
    (phase,) = built(FedAvg()).client.phases
    for name in ("sgd", "adam", "adamax"):
        with entry(name):
            moves = optimizer_of(name, weight_decay=0.5)
            running = Stepper(moves, running=frozenset({"a.running_mean"}))
            found, _ = running.take(phase, {"model": both}, {}, (BATCHES[0],))
            assert_same(found["model"], both | after(moves, batches=BATCHES[:1]))


@pytest.mark.parametrize("name", TORCH)
def test_each_of_two_models_is_moved_as_if_it_were_alone(name):
    # Without its proximal term, Ditto is SGD on two models side by side.
    method, moves = built(Ditto(lambda_=0.0)), optimizer_of(name, weight_decay=0.1, clip=0.3)
    own = {"w": 3 * draw(11, DIM)}
    sent, kept = local_round(method, {"model": W}, {"own": own}, BATCHES, Stepper(moves))
    alone = local_round(built(FedAvg()), {"model": own}, {}, BATCHES, Stepper(moves))[0]
    assert_same(sent["model"], after(moves), atol=1e-12)
    assert_same(kept["own"], alone["model"], atol=1e-12)
    # A model that a method does not move has no moments.
    (phase,) = built(Local()).client.phases
    work = {"model": W, "own": own}
    found, states = Stepper(moves).take(phase, work, {}, (BATCHES[0],))
    assert torch.equal(found["model"]["w"], W["w"])
    assert not torch.equal(found["own"]["w"], own["w"])
    assert states.keys() == ({"own"} if moves.remembers else set())


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_each_part_has_an_optimizer_of_its_own_as_in_torch(name):
    moves = optimizer_of(name, weight_decay=0.1, clip=0.3)
    how = {"cohorts": [[1]], "optimizer": moves}
    _, server, memories = problem.run(FedRep(personal_share=0.5), **how)
    w = {n: nn.Parameter(x.clone()) for n, x in problem.W.items()}
    parts = [[w[n] for n in w if (n in problem.HEAD) == head] for head in (True, False)]
    optimizers = [TORCH[name](part, lr=problem.ETA, weight_decay=0.1) for part in parts]
    for h in range(problem.STEPS):
        turn = h >= problem.STEPS // 2
        optimizers[turn].zero_grad()
        problem.loss(w, problem.batch(1, 1, h)).backward()
        nn.utils.clip_grad_norm_(parts[turn], 0.3)
        optimizers[turn].step()
    found = server["model"] | memories[1]["personal model"]
    assert_close(found, {n: x.detach() for n, x in w.items()}, rtol=1e-3, atol=1e-4)


# --- Schedules -----------------------------------------------------------------------------------


def test_a_schedule_is_another_step_size():
    for name in TORCH:
        with entry(name):
            moves = optimizer_of(name, weight_decay=0.2)
            halved = after(moves, settings=FedAvg(eta=0.05))
            assert_same(after(moves, factor=0.5), halved, atol=1e-12)


def test_a_schedule_bears_on_both_phases():
    (_, half, mine), (_, other, theirs) = (
        problem.run(FedRep(eta=eta, personal_share=0.3), cohorts=[[1]], factor=factor)
        for eta, factor in ((0.1, 0.5), (0.05, 1.0))
    )
    assert_close((half, mine), (other, theirs))


def test_schedules_are_torchs():
    for schedule, make in [
        ("constant", lambda o: torch.optim.lr_scheduler.ConstantLR(o, factor=1.0)),
        ("cosine", lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8)),
        ("step", lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [4, 6])),
    ]:
        with entry(schedule, make):
            optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
            scheduler = make(optimizer)
            for factor in step_factors(schedule, 8):
                (expected,) = scheduler.get_last_lr()
                assert factor == pytest.approx(expected, abs=1e-12)
                optimizer.step()
                scheduler.step()


def test_impossible_values_are_refused():
    for wrong, words in [
        ({"momentum": 1.0}, "momentum must be at least 0, below 1, got 1.0"),
        ({"weight_decay": -1.0}, "weight-decay must be at least 0, got -1.0"),
        ({"clip": -1.0}, "gradient-clip must be at least 0, got -1.0"),
    ]:
        with entry(wrong), pytest.raises(ValueError, match=words):
            optimizer_of("adam", **wrong)
