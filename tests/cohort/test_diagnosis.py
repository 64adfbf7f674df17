"""Why a model became non-finite: what is odd is told, and a smaller step only where nothing is."""

import torch
from torch import nn

from engram.cohort.trainer.diagnosis import Seen, cause_of
from engram.core.derivatives import by_autograd
from tests.samples import entry

W = {"weight": torch.full((3, 2), 0.1), "bias": torch.zeros(3), "norm.running_var": torch.ones(3)}
X = torch.tensor([[0.5, -1.0], [2.0, 0.0], [1.0, 3.0], [0.0, -2.0]])
Y = torch.tensor([0, 1, 2, 1])
ROWS = [7, 2, 9, 4]  # of the client's


def classify(w, batch, **how):
    x, y = batch
    return nn.functional.cross_entropy(x @ w["weight"].T + w["bias"], y, **how)


def ignoring(w, batch):
    return classify(w, batch, ignore_index=1)


def regress(w, batch):
    x, y = batch
    return (x @ w["weight"][0] - y).square().mean()


def root(w, batch):
    return (w["weight"] - w["weight"].detach()).square().sum().sqrt()


def changed(tensor, at, value):
    found = tensor.clone()
    found[at] = value
    return found


def found(x=X, y=Y, loss=classify, **arrays):
    batches = [(x[:2], y[:2]), (x[[1, 3]], y[[1, 3]])]
    rows = Seen(x, y, ROWS, 0 if y.is_floating_point() or loss is ignoring else 3)
    return cause_of(by_autograd(loss, None), W | arrays, batches, rows, {"norm.running_var"})


VALUES = torch.tensor([0.5, 1.0, -1.0, 2.0])


def test_the_cause_is_what_is_odd():
    for given, cause in [
        ({}, ""),
        ({"y": VALUES, "loss": regress}, ""),
        (
            {"x": changed(X, (2, 1), torch.nan)},
            "its inputs have NaN or infinity in training row 9, column 1",
        ),
        (
            {"y": changed(VALUES, 3, torch.inf), "loss": regress},
            "its targets have NaN or infinity in training row 4",
        ),
        ({"y": changed(Y, 1, 3)}, "its targets must be classes in 0..2, got 3 in training row 2"),
        ({"y": changed(Y, 0, -1)}, "its targets must be classes in 0..2, got -1 in training row 7"),
        ({"y": changed(Y, 0, -100)}, ""),
        (
            {"bias": torch.tensor([0.0, torch.inf, 0.0])},
            "the model that it began with is not finite in bias",
        ),
        (
            {"norm.running_var": torch.tensor([1.0, -5.0, 1.0])},
            "the model that it began with has a negative variance in norm.running_var",
        ),
        ({"loss": ignoring}, "its loss is nan before the first step, on a batch with targets 1"),
        (
            {"loss": root},
            "its loss has no finite gradient before the first step, on a batch with targets 0, 1",
        ),
        (
            {"x": changed(X, (1, 0), 255.0)},
            "its inputs reach 255 in training row 2, column 0: standardize them",
        ),
        ({"y": changed(VALUES, 0, -4e4), "loss": regress}, "its targets reach 4e+04: scale them"),
        (
            {"y": VALUES * 1e30, "loss": regress},
            "its loss is inf before the first step, on a batch with targets 5e+29, 1e+30; its "
            "targets reach 2e+30: scale them",
        ),
        (
            {"weight": torch.full((3, 2), 1e6)},
            "the model that it began with reaches 1e+06 in weight, by earlier steps or other "
            "clients",
        ),
    ]:
        with entry(cause):
            assert found(**given) == cause


def test_several_inputs_are_looked_at_too():
    x = {"a": X, "b": changed(X, (1, 0), torch.inf)}  # of which the first step sees one
    cause = "its inputs have NaN or infinity in training row 2, column 0"
    assert cause_of(by_autograd(classify, None), W, [(X, Y)], Seen(x, Y, ROWS, 3)) == cause
