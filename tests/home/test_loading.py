"""Models of a run load into the module that the user brought, and score as the run said."""

import copy

import pytest
import torch
from torch import nn

import engram
from engram.settings.errors import Refused
from tests.networks.plain import CLIENTS, ROWS, TESTS, simulated

pytestmark = pytest.mark.usefixtures("plug_ins")


class Normed(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh())
        self.head = nn.Linear(5, 3, bias=bias)

    def forward(self, x):
        return self.head(self.body(x))


class Tied(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=bias)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens)).tanh())


class Twice(nn.Module):
    """Two layers that have one weight, and no bias."""

    def __init__(self):
        super().__init__()
        self.one, self.between = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.one.weight

    def forward(self, x):
        return self.head(self.between(self.one(x).tanh()).tanh())


@pytest.fixture
def rows():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(CLIENTS, ROWS, 4, generator=draw)
    return x, (x[..., 0] > 0).long() + (x[..., 1] > 0).long()


SERVED = ("scaffold", "ditto", "fedbn", "fedpac", "feddbe", "pfedhn")
ALONE = ("scaffold", "ditto", "fedpac", "feddbe")


@pytest.mark.parametrize("method", SERVED)
def test_a_loaded_model_scores_as_the_run_said(method, rows, tmp_path):
    run = simulated(Normed, *rows, tmp_path / "run", method=method, metrics=["log-loss"])
    module = Normed()
    if method in ALONE:
        module.load_state_dict(run.model)  # all names, and no others
    served = run.clients["log-loss"]
    for client in range(CLIENTS):
        module.load_state_dict(run.personal_model(client))
        x, y = (leaf[client, :TESTS] for leaf in rows)
        with torch.no_grad():
            found = nn.functional.cross_entropy(module.eval()(x), y)
        assert float(found) == pytest.approx(float(served[client]), abs=1e-5)


@pytest.mark.parametrize(("method", "network", "k"), [("feddbe", Twice, 4), ("gpfl", Normed, 3)])
def test_a_bias_or_gate_without_a_place_is_exported(method, network, k, rows, tmp_path):
    given = {"method": method, "metrics": ["log-loss"], "num_classes": k}
    run = simulated(network, *rows, tmp_path / "run", **given)
    net = engram.load_model(run.export(1))
    with torch.no_grad():
        found = nn.functional.cross_entropy(net(rows[0][1, :TESTS]), rows[1][1, :TESTS])
    assert float(found) == pytest.approx(float(run.clients["log-loss"][1]), abs=1e-5)


def test_several_common_models_and_a_bias_without_a_place_are_refused(rows, tmp_path):
    run = simulated(Normed, *rows, tmp_path / "ifca", method="ifca")
    with pytest.raises(Refused, match="ifca has 3 common models: export a client's"):
        _ = run.model
    run = simulated(lambda: Normed(bias=False), *rows, tmp_path / "dbe", method="feddbe")
    assert run.model.keys() == {n for n in Normed(False).state_dict() if "num_" not in n}
    with pytest.raises(Refused, match="feddbe has a bias before the last layer, which has none"):
        run.personal_model(0)
    run = simulated(Normed, *rows, tmp_path / "gpfl", method="gpfl")
    with pytest.raises(Refused, match="gpfl has a gate before the last layer, which no param"):
        run.personal_model(0)


def test_tied_parameters_stand_under_both_names(tmp_path):
    draw = torch.Generator().manual_seed(2)
    text = torch.randint(7, (CLIENTS, ROWS, 4), generator=draw)
    torch.manual_seed(0)
    start = Tied()
    given = {"task": "next-token", "num_classes": 7}
    run = simulated(copy.deepcopy(start), text, text.flip(2), tmp_path / "run", **given)
    for found in (run.model, run.personal_model(1)):
        module = Tied()
        module.load_state_dict(found)
        assert torch.equal(module.head.weight, found["embed.weight"])


@pytest.mark.parametrize("bias", [False, True])
def test_a_tied_parameter_is_the_last_layers_where_a_network_is_split(bias, tmp_path):
    text = torch.arange(CLIENTS * ROWS * 4).reshape(CLIENTS, ROWS, 4) % 7
    given = {"method": "fedper", "task": "next-token", "num_classes": 7}
    run = simulated(lambda: Tied(bias), text, text.flip(2), tmp_path / "run", **given)
    assert run.model.keys() == {"mix.weight", "mix.bias"}
    own = {"embed.weight", "head.weight"} | ({"head.bias"} if bias else set())
    assert run.personal_model(0).keys() == run.model.keys() | own
