"""Steps of a module are those of a loop of plain torch, with what that does by side effects."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from engram.core.method import Phase
from engram.core.objective import by_autograd, by_functions
from engram.core.rounds import Stepper
from engram.core.slot_optimizers import optimizer_of
from engram.networks.build import mean_loss
from engram.networks.module import from_module
from engram.scoring.tasks import CLASSIFICATION

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
    def __init__(self, embed, net=None):
        super().__init__()
        self.embed, self.net, self.head = embed(), net and net(), nn.Linear(4, 2)

    def forward(self, tokens):
        z = self.embed(tokens)
        z = self.net(z)[0] if self.net else z
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


class Tied(Net):
    def __init__(self):
        super().__init__(lambda net, z: net.again(z).tanh(), again=lambda: nn.Linear(5, 5))
        self.third = nn.Linear(5, 5)
        self.third.weight = self.again.weight

    def forward(self, x):
        return self.head(self.third(self.again(self.one(x).tanh())).tanh())


def masked(net):
    mask = (torch.arange(20).reshape(5, 4) % 2).float()
    net.one.weight.register_hook(lambda gradient: gradient * mask)
    return net


def clamped(net):  # which says nothing of small gradients, as those before a run are
    net.head.bias.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    return net


def accumulated(net):
    def halve(leaf):
        leaf.grad.mul_(0.5)

    net.one.bias.register_post_accumulate_grad_hook(halve)
    return net


def frozen(net):
    net.one.requires_grad_(False)
    return net


def saved(reentrant):
    def way(net, z):
        part = lambda z: net.drop(net.two(z).tanh())  # noqa: E731
        return checkpoint(part, z, use_reentrant=reentrant)

    return lambda: Net(way, two=lambda: nn.Linear(5, 5), drop=nn.Identity)


def short():  # rows are shorter than the bound at first, and grow beyond it
    embed = nn.Embedding(5, 4, max_norm=0.5)
    nn.init.normal_(embed.weight, std=0.2)
    return embed


def norm():
    return nn.BatchNorm1d(5)


CASES = {
    "batch norm": lambda: Net(lambda net, z: net.norm(z), norm=norm),
    "frozen": lambda: frozen(Net()),
    "unused": lambda: Net(spare=lambda: nn.Linear(3, 3)),
    "mask": lambda: masked(Net()),
    "clamp": lambda: clamped(Net(lambda net, z: net.norm(z), norm=norm)),
    "accumulated": lambda: accumulated(Net()),
    "max_norm": lambda: Words(short),
    "bag with max_norm": lambda: Words(lambda: nn.EmbeddingBag(5, 4, max_norm=0.1)),
    "checkpoint": saved(False),
    "reentrant checkpoint": saved(True),
    "batch norm that is checkpointed": lambda: Net(
        lambda net, z: checkpoint(net.norm, z, use_reentrant=False), norm=norm
    ),
    "tied": Tied,
    "lstm": lambda: Words(lambda: nn.Embedding(5, 4), lambda: nn.LSTM(4, 4, batch_first=True)),
    "experts": Experts,
    "float64": lambda: masked(Net()).double(),
}
ITSELF = {"mask", "clamp", "accumulated", "max_norm", "bag with max_norm", "float64"} | {
    case for case in CASES if "checkpoint" in case
}
TORCH = {
    "sgd": lambda p: torch.optim.SGD(p, ETA, weight_decay=0.2),
    "momentum": lambda p: torch.optim.SGD(p, ETA, momentum=0.9, weight_decay=0.2),
    "adam": lambda p: torch.optim.Adam(p, ETA, weight_decay=0.2),
}


def batches(case):
    """Three batches; the last one of numbers reaches the third expert, too."""
    if case in ("max_norm", "bag with max_norm", "lstm"):
        return [(TOKENS, TARGETS), (TOKENS.flip(1), TARGETS), (TOKENS, TARGETS)]
    far = NUMBERS.clone()
    far[0, 0] = 10.0
    return [(NUMBERS, TARGETS), (-NUMBERS, TARGETS), (far, TARGETS)]


def stepped(model, params, given, name, keys=()):
    """Parameters after a step on each batch, by the engine's own pieces for a single client."""
    missed = {}
    loss = mean_loss(model, CLASSIFICATION)
    objective = by_functions(loss) if model.vectorizes else by_autograd(loss, missed=missed)
    stepper = Stepper(
        optimizer_of(name, weight_decay=0.2),
        running=model.running,
        statistics=model.statistics,
        unreached=model.unreached,
        missed=missed,
    )
    phase = Phase(
        lambda work, rows: ({"model": objective.gradient(work["model"], rows[0])}, work), ETA
    )
    work, states = {"model": params}, {}
    for batch in given:
        work, states = stepper.take(phase, work, states, ((*batch, *keys),))
    return work["model"]


@pytest.mark.parametrize(
    ("case", "name"),
    # By turns; and all where some parameters have no gradient, which optimizers tell apart.
    sorted(
        {(case, [*TORCH][i % len(TORCH)]) for i, case in enumerate(CASES)}
        | {(case, name) for case in ("frozen", "unused", "experts") for name in TORCH}
    ),
)
def test_steps_are_torchs(case, name):
    torch.manual_seed(0)
    start = CASES[case]()
    start_state = copy.deepcopy(start.state_dict())
    given = batches(case)
    model = from_module(start, given[0][0])
    assert model.by_itself == (case in ITSELF)
    assert model.vectorizes == (case not in {*ITSELF, "experts"})
    params = model.init(torch.Generator())
    found = stepped(model, params, given, name)
    optimizer = TORCH[name](start.parameters())
    for x, y in given:
        optimizer.zero_grad()
        rows = x.double() if case == "float64" else x
        functional.cross_entropy(start.train()(rows), y).backward()
        optimizer.step()
    state = start.state_dict()
    tolerance = 2e-6 if name != "adam" else 2e-5
    for key, leaf in found.items():
        expected = state[model.names.get(key, key)].float()
        torch.testing.assert_close(
            leaf, expected, rtol=0, atol=tolerance, msg=f"{key}: {(leaf - expected).abs().max()}"
        )
        assert torch.equal(params[key], start_state[model.names.get(key, key)].float())


def test_scoring_changes_no_model_and_takes_what_torch_takes():
    torch.manual_seed(0)
    start = Words(lambda: nn.Embedding(5, 4, max_norm=0.5))  # all of whose rows are too long
    before = copy.deepcopy(start.state_dict())
    model = from_module(start, TOKENS)
    params = model.init(torch.Generator())
    expected = copy.deepcopy(start).eval()(TOKENS)
    torch.testing.assert_close(model.apply(params, TOKENS), expected)
    for name, leaf in before.items():
        assert torch.equal(params[name], leaf)
        assert torch.equal(start.state_dict()[name], leaf)


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_checkpointed_drops_the_same_twice_by_the_key(reentrant):
    torch.manual_seed(0)
    start = saved(reentrant)()
    start.drop = nn.Dropout(0.5)
    model = from_module(start, NUMBERS)
    params, key = model.init(torch.Generator()), torch.tensor(7)
    objective = by_autograd(mean_loss(model, CLASSIFICATION))
    found = objective.gradient(params, (NUMBERS, TARGETS, key))
    torch.manual_seed(7)
    functional.cross_entropy(start.train()(NUMBERS), TARGETS).backward()
    assert model.noisy
    for name, leaf in start.named_parameters():
        torch.testing.assert_close(found[name], leaf.grad)


# --- What is refused -----------------------------------------------------------------------------


def moving():
    net = Net()

    def move(leaf):
        with torch.no_grad():
            leaf.sub_(0.1 * leaf.grad)

    net.one.weight.register_post_accumulate_grad_hook(move)
    return net


def detached():
    net = Net(lambda _, z: torch.from_numpy(z.detach().numpy()))
    net.head.register_full_backward_hook(lambda *_: 1 / 0)
    return net


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (moving, "parameters of Net must be left as they are by a backward pass"),
        (detached, "Net must take a backward pass, got ZeroDivisionError"),
    ],
)
def test_what_torch_does_and_no_engine_can_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        from_module(make(), NUMBERS)


def test_a_module_that_uses_parameters_of_another_place_is_refused():
    net = Net()
    net.way = lambda _, z: z * net.head.weight.sum()
    with pytest.raises(ValueError, match=r"a copy of Net uses must be its own alone"):
        from_module(net, NUMBERS)
    assert all(leaf.grad is None for leaf in net.parameters())
