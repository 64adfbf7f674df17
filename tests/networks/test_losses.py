"""Losses and metrics of users mean what they mean in a loop of plain torch, on every engine."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import engram
from engram.contract_check import engines_differ
from engram.data.readers.in_memory import hold
from engram.networks.registry import model
from engram.runs.run import Run
from engram.settings.errors import Refused
from engram.simulations.engine import simulate
from tests.support import (
    assert_same,
    initial_model,
    scores_of,
    small_of_any,
    train_clients,
    trainer,
)

pytestmark = pytest.mark.usefixtures("plug_ins")

CLIENTS, ROWS, STEPS, SIZE = 3, (16, 21, 13), 2, 6
WEIGHTS = torch.tensor([1.0, 8.0, 3.0])


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.conv(x).tanh().mean((2, 3)))


def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3))


NETWORKS = {"dense": dense, "vmap": Convolutions, "in-turn": Convolutions}


def dice(outputs, targets):
    p, y = outputs.softmax(1)[:, 1], (targets == 1).to(outputs)
    return 1 - 2 * (p * y).sum() / (p.sum() + y.sum() + 1e-9)


def contrastive(outputs, targets):
    z = functional.normalize(outputs, dim=1)
    alike = targets[:, None] == targets
    return torch.where(alike, 1 - z @ z.T, (z @ z.T).clamp(min=0)).mean()


def torchs_likelihood(outputs, targets):  # which looks at whether variances are below zero
    return functional.gaussian_nll_loss(outputs[:, 0], targets, outputs[:, 1].exp())


def each_row(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none") * (1 + targets)


def balanced(outputs, targets):
    counts = torch.tensor([max(1, (targets == c).sum().item()) for c in range(3)])
    return functional.cross_entropy(outputs, targets, weight=counts.rsqrt())


CASES = {
    "weighted classes": partial(functional.cross_entropy, weight=WEIGHTS),
    "smoothed labels": nn.CrossEntropyLoss(label_smoothing=0.1),
    "a sum": partial(functional.cross_entropy, reduction="sum"),
    "ignored classes": nn.CrossEntropyLoss(ignore_index=0),
    "dice": dice,
    "contrastive": contrastive,
    "each row's": each_row,
    "looks at values": balanced,
    "a likelihood of torch's": torchs_likelihood,
}
IN_TURN = ("looks at values", "a likelihood of torch's")  # which vmap cannot do


def data():
    rng = np.random.default_rng(0)
    whose = np.repeat(np.arange(CLIENTS), ROWS)
    x = rng.normal(size=(len(whose), 1, 4, 4)).astype(np.float32)
    y = (np.arange(len(whose)) * 7 // 2) % 3
    arrays = {"x_train": x, "y_train": y, "task_train": whose}
    return arrays | {
        "x_test": x[::-1].copy(),
        "y_test": y[::-1].copy(),
        "task_test": whose[::-1].copy(),
    }


def experiment(function, make, arrays=None, **settings):
    engram.loss(function, "own")
    model(make, "net")
    given = {"num_clients": CLIENTS, "partition": "natural", "clients_per_round": CLIENTS}
    given |= {"order": "stream", "local_steps": STEPS, "batch_size": SIZE, "eta": 0.1}
    given |= {"validation_fraction": 0.0, "model": "net", "loss": "own", "method": "fedavg"}
    return small_of_any(**given | {"dataset": hold(arrays or data())} | settings)


def in_plain_torch(function, module, params, x, y):
    """A client's parameters after a round, whose batches are its next rows."""
    w = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
    for rows in np.arange(STEPS * SIZE).reshape(STEPS, SIZE):
        loss = function(functional_call(module, w, (x[rows],)), y[rows]).mean()
        for leaf, slope in zip(w.values(), torch.autograd.grad(loss, w.values()), strict=True):
            leaf.data -= 0.1 * slope
    return w


def assert_trains_as_in_plain_torch(t, function, make, arrays=None):
    start, sent = initial_model(t), train_clients(t, initial_model(t), [0, 1, 2], **ROUND).slots
    names, own = t.learner.model.names, arrays or data()
    arrays = {k: torch.tensor(v) for k, v in own.items()}
    params = {names.get(name, name): leaf for name, leaf in start["model"].items()}
    for client in range(CLIENTS):
        own = arrays["task_train"] == client
        x, y = arrays["x_train"][own], arrays["y_train"][own]
        expected = in_plain_torch(function, make(), params, x, y)
        mine = {names.get(name, name): leaf[client] for name, leaf in sent["model"].items()}
        assert_same(mine, {name: leaf.detach() for name, leaf in expected.items()}, atol=1e-5)


ROUND = {"server_round": 1, "durable": 0}


# Each loss trains in one of the ways.
CASES_BY_WAY = [(case, [*NETWORKS][i % 3]) for i, case in enumerate(CASES)]


@pytest.mark.parametrize(("case", "way"), CASES_BY_WAY)
def test_a_loss_trains_as_in_plain_torch(case, way):
    function, make = CASES[case], NETWORKS[way]
    t = trainer(experiment(function, make))
    if case in IN_TURN:
        assert t.ways == ("in-turn",)
    else:
        t.way = way
    assert_trains_as_in_plain_torch(t, function, make)


@pytest.mark.parametrize(("case", "method"), [("dice", "local-moml"), ("each row's", "apfl")])
def test_methods_take_a_loss_of_batches_on_both_engines(case, method, tmp_path):
    # The last batches of epochs have only their rows.
    more = {"num_rounds": 2, "adapt_steps": 2, "order": "shuffled", "local_epochs": 2}
    e = experiment(CASES[case], dense, method=method, memory="carry", metrics="accuracy", **more)
    assert trainer(e).ways == ("dense",)
    assert engines_differ(e, tmp_path) == ""


def test_a_client_is_scored_by_the_loss_of_its_own_rows_alone(tmp_path):
    function = CASES["weighted classes"]
    e = experiment(function, dense, eta=1e-30, adapt_steps=0, num_rounds=1, eval_every=1)
    found = simulate(e, tmp_path / "run")["clients"]["loss"]
    t, arrays = trainer(e), {k: torch.tensor(v.copy()) for k, v in data().items()}
    names = t.learner.model.names
    params = {names.get(name, name): leaf for name, leaf in initial_model(t)["model"].items()}
    for client, value in enumerate(found):  # of unequal numbers of rows
        own = arrays["task_test"] == client
        outputs = functional_call(dense(), params, (arrays["x_test"][own],))
        expected = functional.cross_entropy(outputs, arrays["y_test"][own], weight=WEIGHTS)
        assert value == pytest.approx(float(expected.detach()), rel=1e-5)


def test_losses_below_zero_run_to_the_end(tmp_path):
    e = experiment(lambda o, y: functional.cross_entropy(o, y) - 5, dense, num_rounds=2)
    assert -5 < simulate(e, tmp_path / "run")["loss"] < -3
    assert all(row["left-out"] == 0 for row in Run.open(tmp_path / "run").rows()[1:])


def test_a_method_that_weights_rows_refuses_a_loss_of_batches():
    with pytest.raises(Refused, match="loss must be the task's own, whose rows can be weighted"):
        trainer(experiment(CASES["dice"], dense, method="fedem"))


# --- Targets of several axes, and outputs of several tensors --------------------------------------


class Parts(nn.Module):
    """Returns a class and a size, by name."""

    def __init__(self):
        super().__init__()
        self.kind, self.size = nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, x):
        return {"kind": self.kind(x.flatten(1)), "size": self.size(x.flatten(1))}


def both(outputs, targets):
    sizes = functional.mse_loss(outputs["size"][:, 0], targets[:, 1])
    return functional.cross_entropy(outputs["kind"], targets[:, 0].long()) + sizes


def mask_dice(outputs, targets):
    p = outputs.softmax(1)[:, 1]
    return 1 - 2 * (p * targets).sum() / (p.sum() + targets.sum())


def shaped(case):
    """A network, targets of its rows, a loss in plain torch, and settings."""
    x = torch.tensor(data()["x_train"])
    mask = (x[:, 0] > 0).long()
    image = partial(nn.Conv2d, 1, 2, 3, padding=1)
    columns = torch.stack([torch.tensor(data()["y_train"]).float(), x[:, 0, 0, 0]], 1)
    return {
        "masks": (image, mask, mask_dice, {}),
        "masks, with the task's own loss": (image, mask, functional.cross_entropy, {"loss": ""}),
        "ignored pixels": (
            image,
            mask.where(x[:, 0] < 1, torch.tensor(255)),
            partial(functional.cross_entropy, ignore_index=255),
            {"num_classes": 2},
        ),
        "images": (image, torch.cat([x, -x], 1), functional.l1_loss, {"task": "regression"}),
        "sequences": (
            lambda: nn.Sequential(nn.Flatten(1, 2), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)),
            x[:, 0].cumsum(2).sum(2),  # (n, 4), of outputs (n, 4, 1)
            lambda outputs, targets: (outputs.squeeze(-1) - targets).abs().mean(),
            {"task": "regression"},
        ),
        "several outputs": (Parts, columns, both, {"task": "regression", "metrics": "kinds"}),
    }[case]


SHAPED = ("masks", "masks, with the task's own loss", "ignored pixels")
SHAPED += ("images", "sequences", "several outputs")


@pytest.mark.parametrize("case", SHAPED)
def test_targets_of_several_axes_train_as_in_plain_torch(case):
    @engram.metric(low=0, high=1)
    def kinds(outputs, targets):
        return (outputs["kind"].argmax(1) == targets[:, 0]).float().mean()

    make, y, function, settings = shaped(case)
    arrays = data() | {"y_train": y.numpy(), "y_test": y.flip(0).numpy()}
    for engine in ("vectorized", "sequential"):
        t = trainer(experiment(function, make, arrays, **settings), engine=engine)
        assert "dense" not in t.ways  # of which rows would be vectors
        for way in t.ways:
            t.way = way
            assert_trains_as_in_plain_torch(t, function, make, arrays)
        scores = scores_of(t, [0, 1, 2]).columns
        assert all(column.isfinite().all() for column in scores.values())


def test_pixels_are_counted_by_accuracy_and_other_metrics_of_classes_are_refused():
    make, y, function, _ = shaped("masks")
    arrays = data() | {"y_train": y.numpy(), "y_test": y.numpy(), "x_test": data()["x_train"]}
    arrays |= {"task_test": arrays["task_train"]}
    e = experiment(function, make, arrays, metrics="accuracy", adapt_steps=0)
    t, x = trainer(e), torch.tensor(arrays["x_test"])
    found = scores_of(t, [0, 1, 2]).columns["accuracy"]
    hits = functional_call(make(), initial_model(t)["model"], (x,)).argmax(1) == y
    for client, value in enumerate(found.tolist()):
        own = torch.tensor(arrays["task_train"] == client)
        assert value == pytest.approx(float(hits[own].float().mean()))
    with pytest.raises(Refused, match="metrics must be accuracy, or one of your own, where a row"):
        trainer(experiment(function, make, arrays, metrics="f1"))


def test_a_metric_that_does_not_take_what_the_network_returns_is_refused():
    make, y, function, settings = shaped("several outputs")
    arrays = data() | {"y_train": y.numpy(), "y_test": y.flip(0).numpy()}
    words = r"metric rmse must take outputs of shape {'kind': \(13, 3\), 'size': \(13, 1\)}, and"
    with pytest.raises(Refused, match=words.replace("13", r"\d+")):
        trainer(experiment(function, make, arrays, **settings | {"metrics": "rmse"}))
