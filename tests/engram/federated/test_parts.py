"""Rules in parts: with all steps on one part, one after the other, and as torch's optimizers do."""

import pytest
import torch
from torch import nn

from engram.derivatives import by_autograd, gradient, moving_only
from engram.federated.parts import in_turn, only, whose_turn, without
from engram.meta.fedavg import fedavg
from engram.models import build_model, from_module, mean_loss, part_of
from engram.optimizers import scaled, with_optimizer
from engram.tasks import REGRESSION
from tests.client.networks import Characters, Normed
from tests.support import assert_same, draw

NET = build_model("mlp", input_shape=(4,), outputs=1, hidden=(3,))
HEAD = frozenset({"dense1.weight", "dense1.bias"})
RULE = fedavg(mean_loss(NET, REGRESSION), eta=0.1)
BATCHES = [(draw(h, 5, 4), draw(h + 50, 5)) for h in range(6)]


def start():
    return {n: x.double() for n, x in NET.init(torch.Generator().manual_seed(1)).items()}


def run(rule, w=None, batches=BATCHES):
    w = w or start()
    u = rule.init(w, None)
    turn = rule.then[0](len(batches)) if rule.then else len(batches)
    for number, batch in enumerate(batches):
        w, u = whose_turn(rule, later=number >= turn).step(w, u, (batch,))
    return w, u


def test_with_all_parameters_in_a_part_it_is_the_rule_itself():
    whole = run(RULE)[0]
    assert_same(run(only(RULE, set(start())))[0], whole)
    assert_same(run(without(RULE, set()))[0], whole)


def test_a_rule_with_a_step_of_its_own_moves_the_same_part():
    assert_same(run(only(RULE._replace(direction=None), HEAD))[0], run(only(RULE, HEAD))[0])


def test_with_all_steps_on_one_part_the_other_stays():
    for part in (HEAD, start().keys() - HEAD):
        alone = run(only(RULE, part))[0]
        turned = in_turn(RULE, part, 0.5)
        assert_same(run(turned._replace(then=(lambda steps: steps, turned.then[1])))[0], alone)
        assert {name for name, leaf in start().items() if torch.equal(leaf, alone[name])} == (
            start().keys() - part
        )


@pytest.mark.parametrize("steps", [1, 4])
def test_parts_are_trained_one_after_the_other(steps):
    middle = run(only(RULE, HEAD), batches=BATCHES[:steps])[0]
    expected = run(without(RULE, HEAD), middle, BATCHES[steps:])[0]
    assert_same(run(in_turn(RULE, HEAD, steps / 6))[0], expected)


def test_either_part_has_a_step_and_the_second_one_a_single_step():
    found = {s: [in_turn(RULE, HEAD, s).then[0](n) for n in (1, 2, 3, 7)] for s in (0.01, 0.5, 0.9)}
    assert in_turn(RULE, HEAD, 0.07).then[0](100) == 7
    assert found == {0.01: [0, 1, 1, 1], 0.5: [0, 1, 2, 4], 0.9: [0, 1, 2, 6]}


def test_a_schedule_scales_both_parts():
    half = fedavg(mean_loss(NET, REGRESSION), eta=0.05)
    assert_same(
        run(scaled(in_turn(RULE, HEAD, 0.3), 0.5))[0], run(in_turn(half, HEAD, 0.3))[0], atol=1e-12
    )


TORCH = {
    "sgd": torch.optim.SGD,
    "momentum": lambda p, **o: torch.optim.SGD(p, momentum=0.9, **o),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@pytest.mark.parametrize("name", TORCH)
def test_each_part_has_an_optimizer_of_its_own_as_in_torch(name):
    rule = with_optimizer(in_turn(RULE, HEAD, 0.5), name, weight_decay=0.1, clip=0.3)
    found, u = run(rule)
    w = {n: nn.Parameter(x.clone()) for n, x in start().items()}
    parts = [[n for n in w if n in HEAD], [n for n in w if n not in HEAD]]
    optimizers = [TORCH[name]([w[n] for n in part], lr=0.1, weight_decay=0.1) for part in parts]
    for number, (x, y) in enumerate(BATCHES):
        turn = number >= 3
        for leaf in w.values():
            leaf.grad = None
        (NET.apply(w, x).squeeze(1) - y).square().mean().backward()
        nn.utils.clip_grad_norm_([w[n] for n in parts[turn]], 0.3)
        optimizers[turn].step()
    assert_same(found, {n: x.detach() for n, x in w.items()}, atol=1e-10)
    assert u.keys() == (rule.moments(start()) if rule.moments else {}).keys()


def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("make", "example", "head"),
    [(dense, (2, 4), "dense1"), (Normed, (2, 1, 6, 6), "head"), (Characters, None, "head")],
)
def test_the_head_is_the_last_layer_and_the_body_the_others(make, example, head):
    inputs = torch.zeros(example) if example else torch.zeros(2, 8, dtype=torch.int64)
    model = from_module(make, inputs)
    names = model.init(torch.Generator())
    found = part_of(model, names, "head")
    assert {name.rpartition(".")[0] for name in found} == {head}
    assert part_of(model, names, "body") == names.keys() - found
    assert not part_of(model, names, "")
    normed = {f"norm.{kind}" for kind in ("weight", "bias", "running_mean", "running_var")}
    assert part_of(model, names, "norm") == (normed if make is Normed else set())


def test_impossible_values_are_refused():
    with pytest.raises(ValueError, match=r"share of the first steps must be in \[0, 1\), got 1.0"):
        in_turn(RULE, HEAD, 1.0)
    with pytest.raises(ValueError, match=r"share of the first steps must be positive, got 0.0"):
        in_turn(RULE, HEAD, 0.0)


@pytest.mark.parametrize("form", [lambda loss: loss, by_autograd], ids=["func", "autograd"])
def test_gradients_by_what_rests_are_zeros_and_those_by_the_others_as_ever(form):
    grad, w = gradient(form(mean_loss(NET, REGRESSION))), start()
    whole = grad(w, BATCHES[0])
    with moving_only(lambda name: name in HEAD):
        part = grad(w, BATCHES[0])
        with moving_only(lambda name: name not in HEAD):
            other = grad(w, BATCHES[0])
    assert_same(grad(w, BATCHES[0]), whole)  # only within
    assert list(part) == list(other) == list(whole)
    for name, leaf in whole.items():
        found, rests = (part, other) if name in HEAD else (other, part)
        torch.testing.assert_close(found[name], leaf)
        assert rests[name].shape == leaf.shape
        assert not rests[name].any()
