"""Prototypical networks, by hand and as they descend."""

import torch

from engram.cohort.stacked_models import expand, stacked_loss
from engram.meta.protonet import protonet, prototypical_logits, prototypical_loss
from engram.meta.single_node import Episode
from engram.networks.built_in import build_model
from tests.support import gen


def test_prototypes_are_means_and_logits_distances():
    # Points on a line: classes at 1 and (2 + 4) / 2 = 3; the query 1.5 is 0.25 and 2.25 away.
    logits = prototypical_logits(lambda params, x: x * params["a"])
    support = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[1.0, 0], [0, 1], [0, 1]])
    found = logits({"a": torch.tensor(1.0)}, support, torch.tensor([[1.5]]))
    torch.testing.assert_close(found, torch.tensor([[-0.25, -2.25]]))
    loss = prototypical_loss(lambda params, x: x * params["a"])
    query = torch.tensor([[1.5]]), torch.tensor([[1.0, 0]])
    value = loss({"a": torch.tensor(1.0)}, (support, query))
    torch.testing.assert_close(value, torch.log1p(torch.tensor(-2.0).exp()))


def test_protonet_descends_its_loss():
    model = build_model("mlp", input_shape=(3,), outputs=2, hidden=(4,))
    w = {name: leaf.unsqueeze(0) for name, leaf in model.init(gen(1)).items()}
    y = torch.eye(2).repeat(1, 1, 2, 1)  # two of each class
    batches = tuple((torch.randn(1, 1, 4, 3, generator=gen(s)), y) for s in (2, 3))
    loss = stacked_loss(prototypical_loss(model.apply))
    rule = protonet(loss, tasks_per_step=1, support=4, query=4, eta=0.1)
    shown = (Episode(torch.zeros(1, 1, dtype=torch.int64), batches),)
    state = rule.init(w)
    values = []
    for _ in range(20):
        values.append(loss(expand(state.w, 1), batches).item())
        state = rule.step(state, shown)
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0] - 0.03
