"""Loops of users beside a plain one: accelerate's, closures, parts of batches, two optimizers."""

import copy

import pytest
import torch
from torch.func import functional_call

from engram import strategies
from engram.flower import client
from engram.networks.vision import torchvision
from engram.strategies import Ditto
from tests.flower.support import BATCHES, Net, fit, gap, kept, loss, run, trainer


def with_closures(net, session):
    """As Lightning does: the optimizer's step is given a function of the loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in BATCHES:

        def closure(batch=batch):
            optimizer.zero_grad()
            value = loss(net, batch)
            value.backward()
            return value

        optimizer.step(closure)


def in_parts(net, session):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    halves = [(x[i : i + 3], y[i : i + 3]) for x, y in BATCHES for i in (0, 3)]
    for i, batch in enumerate(session.batches(halves)):
        (loss(net, batch) / 2).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()


def accelerated(net, session):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    prepared, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    for batch in session.batches(BATCHES):
        optimizer.zero_grad()
        accelerator.backward(loss(prepared, batch))
        optimizer.step()
        schedule.step()


@pytest.mark.full
@pytest.mark.parametrize("name", ["FedProx", "Scaffold", "Ditto", "PFedMe", "APFL", "PerFedAvg"])
@pytest.mark.parametrize("loop", [with_closures, in_parts, accelerated])
def test_as_a_plain_loop(loop, name):
    net, ends = Net(), []
    for way in (loop, lambda net, session: fit(net, session.batches(BATCHES))):

        def train(msg, context, way=way):
            mine = Net()
            with client(msg, context, mine) as session:
                way(mine, session)
            return session.reply(6)

        strategy = getattr(strategies, name)(net)
        _, grid = run(strategy, train)
        assert not grid.errors
        ends.append(strategy.slots["model"])
    assert gap(*ends) < 1e-6


class Trained(torch.nn.Module):
    """A network that computes its loss, as those of transformers do."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.full
@pytest.mark.parametrize("name", ["FedAvg", "FedProx", "Scaffold", "MRMTL"])
def test_a_trainer_of_transformers_as_a_plain_loop(name, tmp_path):
    torchvision()  # which fails to import with a CPU build of torch
    transformers = pytest.importorskip("transformers")
    (x, y), ends, start = BATCHES[0], [], Trained()

    def by_trainer(net):
        how = {"per_device_train_batch_size": 6, "num_train_epochs": 4, "optim": "sgd"}
        how |= {"learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0}
        how |= {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
        options = transformers.TrainingArguments(tmp_path, dataloader_pin_memory=False, **how)
        rows = [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]
        transformers.Trainer(net, options, train_dataset=rows).train()

    for way in (by_trainer, lambda net: fit(net.net, [BATCHES[0]] * 4)):

        def train(msg, context, way=way):
            net = Trained()
            with client(msg, context, net) as session:
                way(net)
            return session.reply(6)

        strategy = getattr(strategies, name)(start)
        _, grid = run(strategy, train)
        assert not grid.errors
        ends.append(strategy.slots["model"])
    assert gap(*ends) < 1e-6


def test_two_models_of_a_method_have_moments_of_their_own():
    net, momentum, weight = Net(), 0.9, 0.5
    strategy = Ditto(net, lambda_=weight)
    again = trainer(batches=lambda session: session.batches(BATCHES), momentum=momentum)
    _, grid = run(strategy, again, rounds=1)
    start = {n: x.detach().clone() for n, x in net.named_parameters()}
    ends = {}
    for name, pull in (("model", 0.0), ("own", weight)):
        w, moments = dict(start), dict.fromkeys(start, 0.0)
        for batch in BATCHES:
            w = {n: x.detach().requires_grad_() for n, x in w.items()}
            value = loss(lambda x, w=w: functional_call(net, w, (x,)), batch)
            grads = torch.autograd.grad(value, [*w.values()])
            for (n, x), g in zip([*w.items()], grads, strict=True):
                moments[n] = momentum * moments[n] + g + pull * (x.detach() - start[n])
                w[n] = x.detach() - 0.1 * moments[n]
        ends[name] = w
    own = {f"own/{n}": x for n, x in ends["own"].items()}
    assert gap(kept(grid.contexts[100]), own) < 1e-6
    assert gap(strategy.slots["model"], ends["model"]) < 1e-6


class Gan(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.maker, self.judge = torch.nn.Linear(2, 5), torch.nn.Linear(5, 1)


def adversarial(gan, pull=0.0):
    """A loop with an optimizer for each part; ``pull`` holds the maker near its start."""
    start = {n: x.detach().clone() for n, x in gan.maker.named_parameters()}
    make, judge = (torch.optim.SGD(part.parameters(), 0.1) for part in (gan.maker, gan.judge))
    for x, _ in BATCHES:
        judge.zero_grad()
        (gan.judge(gan.maker(x[:, :2])).mean() - gan.judge(x).mean()).square().backward()
        judge.step()
        make.zero_grad()
        gan.judge(gan.maker(x[:, :2])).square().mean().backward()
        for n, leaf in gan.maker.named_parameters() if pull else ():
            leaf.grad += pull * (leaf.detach() - start[n])
        make.step()


def test_two_optimizers_take_plain_steps_or_one_of_them_a_methods():
    start = Gan()
    for name, part, pull in (("FedAvg", "", 0.0), ("FedProx", "maker", 0.3)):
        by_hand = copy.deepcopy(start)
        adversarial(by_hand, pull)

        def train(msg, context, part=part):
            gan = copy.deepcopy(start)
            with client(msg, context, gan.get_submodule(part)) as session:
                adversarial(gan)
            return session.reply(6)

        how = {"mu": pull} if pull else {}
        strategy = getattr(strategies, name)(start.get_submodule(part), **how)
        _, grid = run(strategy, train, rounds=1)
        assert not grid.errors
        ends = {n: x.detach() for n, x in by_hand.get_submodule(part).named_parameters()}
        assert gap(strategy.slots["model"], ends) < 1e-6
