"""Steps of a module are those of a loop of plain torch, with what that does by side effects."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from engram.core.derivatives import by_autograd, by_functions
from engram.core.method import Phase
from engram.core.rounds import Stepper
from engram.core.slot_optimizers import optimizer_of
from engram.networks.losses import mean_loss
from engram.networks.module import from_module
from engram.scoring.tasks import CLASSIFICATION
from tests.samples import entry

ETA = 0.1
NUMBERS = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
TOKENS = torch.randint(0, 5, (6, 3), generator=torch.Generator().manual_seed(1))
TARGETS = torch.tensor([0, 1, 1, 0, 1, 0])


class Net(nn.Module):
    """Two layers, of which ``way`` says what is between them."""

    def __init__(self, way=lambda net, z: z, **parts):
        super().__init__()
        self.one, self.way = nn.Linear(4, 5), way
        for name, part in parts.items():
            setattr(self, name, part())
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.way(self, self.one(x).tanh()))


class Words(nn.Module):
    def __init__(self, embed):
        super().__init__()
        self.embed, self.head = embed(), nn.Linear(4, 2)

    def forward(self, tokens):
        z = self.embed(tokens)
        return self.head(z if z.ndim == 2 else z[:, -1])


class Experts(nn.Module):
    """A row goes to one of three; the third one gets none at first."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

    def forward(self, x):
        chosen = (x[:, 0] > 0).long() + (x[:, 0] > 9).long()
        out = torch.zeros(len(x), 2)
        for i, expert in enumerate(self.experts):
            if (chosen == i).any():
                out = out + (chosen == i)[:, None] * expert(x)
        return out


def frozen(net):
    net.one.requires_grad_(False)
    return net


CASES = {
    "frozen": lambda: frozen(Net()),
    "unused": lambda: Net(spare=lambda: nn.Linear(3, 3)),
    "experts": Experts,
}
TORCH = {
    "sgd": lambda p: torch.optim.SGD(p, ETA, weight_decay=0.2),
    "momentum": lambda p: torch.optim.SGD(p, ETA, momentum=0.9, weight_decay=0.2),
    "adam": lambda p: torch.optim.Adam(p, ETA, weight_decay=0.2),
}


def batches():
    """Three batches; the last one reaches the third expert, too."""
    far = NUMBERS.clone()
    far[0, 0] = 10.0
    return [(NUMBERS, TARGETS), (-NUMBERS, TARGETS), (far, TARGETS)]


def stepped(model, params, given, name):
    """Parameters after a step on each batch, by the engine's own pieces for a single client."""
    missed = {}
    loss = mean_loss(model, CLASSIFICATION)
    objective = by_functions(loss) if model.vectorizes else by_autograd(loss, missed=missed)
    of = {"running": model.running, "statistics": model.statistics, "unreached": model.unreached}
    stepper = Stepper(optimizer_of(name, weight_decay=0.2), **of, missed=missed)

    def gradient(work, rows):
        return {"model": objective.gradient(work["model"], rows[0])}, work

    phase = Phase(gradient, ETA)
    work, states = {"model": params}, {}
    for batch in given:
        work, states = stepper.take(phase, work, states, (batch,))
    return work["model"]


# Where some parameters have no gradient, which optimizers tell apart.
@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("case", CASES)
def test_steps_are_torchs(case, name):
    torch.manual_seed(0)
    start = CASES[case]()
    start_state = copy.deepcopy(start.state_dict())
    given = batches()
    model = from_module(start, given[0][0])
    assert model.vectorizes == (case != "experts")
    params = model.init(torch.Generator())
    found = stepped(model, params, given, name)
    optimizer = TORCH[name](start.parameters())
    for x, y in given:
        optimizer.zero_grad()
        functional.cross_entropy(start.train()(x), y).backward()
        optimizer.step()
    state = start.state_dict()
    tolerance = 2e-6 if name != "adam" else 2e-5
    for key, leaf in found.items():
        expected = state[model.names.get(key, key)].float()
        msg = f"{key}: {(leaf - expected).abs().max()}"
        torch.testing.assert_close(leaf, expected, rtol=0, atol=tolerance, msg=msg)
        assert torch.equal(params[key], start_state[model.names.get(key, key)].float())


# --- What is refused -----------------------------------------------------------------------------


def masked():
    net, mask = Net(), (torch.arange(20).reshape(5, 4) % 2).float()
    net.one.weight.register_hook(lambda gradient: gradient * mask)
    return net


def moving():
    net = Net()

    def move(leaf):
        with torch.no_grad():
            leaf.sub_(0.1 * leaf.grad)

    net.one.weight.register_post_accumulate_grad_hook(move)
    return net


def saved(reentrant):
    def way(net, z):
        return checkpoint(lambda z: net.two(z).tanh(), z, use_reentrant=reentrant)

    return lambda: Net(way, two=lambda: nn.Linear(5, 5))


def detached():
    net = Net(lambda _, z: torch.from_numpy(z.detach().numpy()))
    net.head.register_full_backward_hook(lambda *_: 1 / 0)
    return net


def test_gradients_that_no_engine_takes_are_refused():
    for make, words in [
        (masked, "gradients of Net must be those of its functions .*got 'hooks on parameters'"),
        (moving, "gradients of Net must be those of its functions .*got 'hooks on parameters'"),
        (saved(True), "gradients of Net must be those of its functions .*got 'others'"),
        (saved(False), "gradients of Net must be those of its functions .*got 'others'"),
        (detached, "Net must take a backward pass, got ZeroDivisionError"),
    ]:
        with entry(make), pytest.raises(ValueError, match=words):
            from_module(make(), NUMBERS)


def test_an_embedding_that_torch_writes_into_is_refused():
    for kind in (nn.Embedding, nn.EmbeddingBag):
        start = Words(lambda kind=kind: kind(5, 4, max_norm=0.1))  # all of whose rows are too long
        before = copy.deepcopy(start.state_dict())
        with pytest.raises(ValueError, match=r"max_norm of an embedding must be None, got 0\.1"):
            from_module(start, TOKENS)
        assert all(torch.equal(leaf, before[name]) for name, leaf in start.state_dict().items())


def test_a_module_that_uses_parameters_of_another_place_is_refused():
    net = Net()
    net.way = lambda _, z: z * net.head.weight.sum()
    with pytest.raises(ValueError, match=r"a copy of Net uses must be its own alone"):
        from_module(net, NUMBERS)
    assert all(leaf.grad is None for leaf in net.parameters())
