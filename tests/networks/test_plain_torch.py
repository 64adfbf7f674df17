"""Networks of users train as in a loop of plain PyTorch, or are refused before a run begins."""

import copy
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, spectral_norm
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence

from engram.settings.errors import Refused
from tests.networks.plain import CLIENTS, ROWS, gap, looped, simulated
from tests.samples import entry, sampled

ENGINES = ("sequential", "vectorized")
TOKENS, LONGEST = 9, 6


class Packed(nn.Module):
    def __init__(self, kind=nn.LSTM, **options):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 5, padding_idx=0)
        self.net = kind(5, 6, batch_first=True, **options)
        self.head = nn.Linear(6, 2)

    def forward(self, tokens, length):
        packed = pack_padded_sequence(
            self.embed(tokens), length, batch_first=True, enforce_sorted=False
        )
        ends = self.net(packed)[1]
        return self.head((ends[0] if isinstance(ends, tuple) else ends)[-1])


class Looking(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.one(x) if x.max() > 2 else self.other(x)


def around(layer):
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(5, 3))


NUMBERS = {
    "linear layers": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)),
    "weight norm": lambda: around(weight_norm(nn.Linear(4, 5))),
    "one weight norm for all": lambda: around(weight_norm(nn.Linear(4, 5), dim=None)),
    "looking at values": Looking,
}
TEXT = {
    "packed lstm": Packed,
    "packed gru of two layers": lambda: Packed(nn.GRU, num_layers=2),
    "packed in both directions": lambda: Packed(nn.RNN, num_layers=2, bidirectional=True),
    "packed, all dropped between layers": lambda: Packed(num_layers=2, dropout=1.0),
}


def rows(case):
    draw = torch.Generator().manual_seed(3)
    if case not in TEXT:
        x = torch.randn(CLIENTS, ROWS, 4, generator=draw)
        return x, (x[..., 0] > 0).long() + (x[..., 1] > 0).long()
    length = torch.randint(1, LONGEST + 1, (CLIENTS, ROWS), generator=draw)
    tokens = torch.randint(1, TOKENS, (CLIENTS, ROWS, LONGEST), generator=draw)
    tokens *= torch.arange(LONGEST) < length[..., None]
    return {"tokens": tokens, "length": length}, (tokens[..., 0] > 4).long()


# Each network trains vectorized, and in full in turn.
TABLE = list(product([*NUMBERS, *TEXT], ENGINES))
QUICK = [pair for pair in TABLE if pair[1] == "vectorized"]


@pytest.mark.parametrize(("case", "engine"), sampled(TABLE, QUICK))
def test_a_network_trains_as_in_a_plain_loop(case, engine, tmp_path):
    torch.manual_seed(0)
    start = (NUMBERS | TEXT)[case]()
    inputs, targets = rows(case)
    run = simulated(copy.deepcopy(start), inputs, targets, tmp_path / "run", engine=engine)
    reference = looped(start, inputs, targets, functional.cross_entropy)
    assert gap(run, reference) < 1e-5
    assert gap(run, start) > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_packed_sequences_are_differentiated_twice_and_fine_tuned(engine, tmp_path):
    inputs, targets = rows("packed lstm")
    found = []
    for number, make in enumerate((Packed, Padded)):
        torch.manual_seed(0)
        how = {"method": "local-moml", "hessian": "exact", "local_steps": 1, "local_epochs": 0}
        run = simulated(make(), inputs, targets, tmp_path / str(number), engine=engine, **how)
        found.append(run)
    packed, padded = found
    torch.testing.assert_close(packed.model, padded.model, rtol=0, atol=1e-5)
    for name in ("loss", "loss-common"):
        one, other = (run.clients[name].to_numpy(float) for run in found)
        assert one == pytest.approx(other, abs=1e-5, nan_ok=True)


class Padded(Packed):
    """The same without packing: it takes the state at a sequence's last token."""

    def forward(self, tokens, length):
        states = self.net(self.embed(tokens))[0]
        last = nn.functional.one_hot(length - 1, LONGEST).to(states)
        return self.head((states * last[..., None]).sum(1))


OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adamw": torch.optim.AdamW,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_tables_of_patterns_are_groups_of_parameters(name, tmp_path):
    def groups(parameters, lr):
        first, its_bias, second, other_bias = parameters
        each = [
            (first, 0.03, 0.5),
            (its_bias, 0.03, 0.0),
            (second, lr, 0.2),
            (other_bias, 0.2, 0.0),
        ]
        given = [{"params": [p], "lr": lr, "weight_decay": decay} for p, lr, decay in each]
        return OPTIMIZERS[name](given)

    torch.manual_seed(0)
    start = around(nn.Linear(4, 5))
    inputs, targets = rows("linear layers")
    how = {"optimizer": name, "weight_decay_by": "*.bias=0,0.*=0.5"}
    how |= {"eta_by": "0.*=0.03,*.bias=0.2", "weight_decay": 0.2}
    reference = looped(start, inputs, targets, functional.cross_entropy, optimizer=groups)
    for engine in ENGINES:
        run = simulated(start, inputs, targets, tmp_path / engine, engine=engine, **how)
        assert gap(run, reference) < (1e-6 if name != "adamw" else 1e-5)
        assert gap(run, start) > 1e-3


# --- What is refused -----------------------------------------------------------------------------


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x):
        return self.net(x * (1 + 0.1 * torch.randn_like(x)) if self.training else x)


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.head, self.state = nn.LSTM(1, 5, batch_first=True), nn.Linear(5, 3), None

    def forward(self, x):
        same = self.state is not None and self.state[0].shape[1] == len(x)
        out, self.state = self.net(x[..., None], self.state if same else None)
        return self.head(out[:, -1])


class Following(nn.Module):
    """Centers its inputs by a moving mean, in evaluation; its buffer is no batch norm's."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.register_buffer("center", torch.zeros(4))

    def forward(self, x):
        if self.training:
            self.center = 0.9 * self.center + 0.1 * x.mean(0)
            return self.net(x)
        return self.net(x - self.center)


class Starting(nn.Module):
    """Sets a parameter by the first rows that it sees."""

    def __init__(self):
        super().__init__()
        self.net, self.scale, self.begun = nn.Linear(4, 3), nn.Parameter(torch.ones(4)), False

    def forward(self, x):
        if self.training and not self.begun:
            self.scale.data.copy_(x.abs().mean(0))
            self.begun = True
        return self.net(x * self.scale)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x):
        return self.net(x.mul_(0.5))


def image_norm():
    norm = nn.InstanceNorm1d(1, track_running_stats=True)
    return nn.Sequential(nn.Unflatten(1, (1, 4)), norm, nn.Flatten(), nn.Linear(4, 3))


STATE = "must be a function of its inputs and parameters .*"
REFUSED = {
    "spectral norm": (
        lambda: around(parametrizations.spectral_norm(nn.Linear(4, 5))),
        "outputs of Sequential " + STATE + "which changes 0.parametrizations.weight.0._u, 0.par",
    ),
    "spectral norm of old": (
        lambda: around(spectral_norm(nn.Linear(4, 5))),
        "outputs of Sequential " + STATE + "which changes 0.weight_u, 0.weight_v",
    ),
    "noise times inputs": (Noisy, "outputs of Noisy " + STATE + "others for the same inputs"),
    "a state that is kept": (Remembering, "outputs of Remembering " + STATE + "others for the"),
    "a moving mean": (Following, "outputs of Following " + STATE + "which changes center"),
    "a start by the first rows": (Starting, "outputs of Starting " + STATE + "changes scale"),
    "instance norm's statistics": (image_norm, "which changes 1.running_mean, 1.running_var"),
    "a count of batches": (
        lambda: around(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, momentum=None))),
        "momentum of 0.1 must be a number .None counts batches.*got None",
    ),
    "inputs that are written to": (InPlace, "inputs of InPlace must be left as they are, got"),
    "half precision throughout": (
        lambda: around(nn.Linear(4, 5)).half(),
        r"weight must be float32, for it is trained \(module\.float\(\)\), got 'torch.float16'",
    ),
    "float64": (
        lambda: around(nn.Linear(4, 5)).double(),
        r"weight must be float32, for it is trained \(module\.float\(\)\), got 'torch.float64'",
    ),
}


def test_what_keeps_a_state_or_draws_is_refused_by_name_before_the_run(tmp_path):
    for engine in ENGINES:
        for case, (make, words) in REFUSED.items():
            with entry(engine, case):
                with pytest.raises(Refused, match=words) as refused:
                    simulated(make, *rows(case), tmp_path / "run", engine=engine)
                assert "\n" not in str(refused.value)
                assert not (tmp_path / "run").exists()


def test_buffers_of_an_instance_that_is_refused_are_as_before(tmp_path):
    net = around(parametrizations.spectral_norm(nn.Linear(4, 5)))
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(Refused, match="which changes"):
        simulated(net, *rows("numbers"), tmp_path / "run")
    assert all(torch.equal(leaf, net.state_dict()[name]) for name, leaf in before.items())


class Auxiliary(Looking):
    def forward(self, x):
        return (self.one(x), self.other(x)) if self.training else self.one(x)


def test_a_second_head_in_training_needs_a_loss_of_ones_own(tmp_path):
    inputs, targets = rows("linear layers")
    with pytest.raises(Refused, match=r"outputs in training must be one tensor.*got 'a tuple'"):
        simulated(Auxiliary(), inputs, targets, tmp_path / "run")


@pytest.mark.parametrize("key", ["eta", "weight_decay"])
def test_a_pattern_that_no_parameter_matches_is_refused(key, tmp_path):
    inputs, targets = rows("linear layers")
    net, table = around(nn.Linear(4, 5)), {"0.*": 0.1, "9.*": 0.1}
    key_ = key.replace("_", "-")
    said = f"{key_} must be patterns of parameters, such as 0.weight, .*got '9.*'"
    with pytest.raises(Refused, match=said):
        simulated(net, inputs, targets, tmp_path / "run", **{key: table})
