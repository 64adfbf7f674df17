"""Clients on another device than the CPU, as far as a machine without one shows.

On torch's meta device tensors have no values, and none of the CPU may meet them, as none may meet
those of a GPU. So what makes a tensor, and does not say where, is found.
"""

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from engram.cohort import dense, sequential, vmapped
from engram.cohort.trainer.chunks import Asked, Chunk
from engram.scoring.query_rows import padded
from engram.scoring.served import ServedModels
from tests.samples import EIGHT, entry
from tests.support import small_of_any, trainer

CLIENTS = [3, 4]


def away(tree):
    return tree_map(lambda x: x.to("meta") if isinstance(x, torch.Tensor) else x, tree)


def elsewhere(split):
    return split and split._replace(x=away(split.x), y=away(split.y))


@pytest.fixture
def unseen(monkeypatch):
    """Values are not looked at: all are taken for finite."""

    def fine(x, leading=0):
        count = tree_leaves(x)[0].shape[0] if leading else 1
        return torch.ones(count, dtype=torch.bool) if leading else torch.tensor(True)

    for module in (vmapped, dense, sequential):
        monkeypatch.setattr(module, "is_finite", fine)
    here = torch.Tensor.__bool__
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda x: x.is_meta or here(x))


@pytest.mark.usefixtures("unseen")
def test_clients_train_and_answer_on_their_device_alone():
    for method in EIGHT:
        model = {"model": "resnet", "hidden": "4"} if method == "fedbn" else {"hidden": "8,6"}
        t = trainer(small_of_any(method=method, **model))
        for way in {*t.ways, "vmap", "in-turn"}:
            with entry(method, way):
                check_device(t, way)


def check_device(t, way):
    network = t.learner.network
    learner = t.learner._replace(network=network._replace(initial=away(network.initial)))
    server = t.method.server
    common, own = server.send(server.start, CLIENTS)
    asked = Asked(t.empty | common, 1, 0, None, losses=False)
    ((*_, cohort),) = t.cohorts(asked, Chunk([0, 0], CLIENTS, own))
    draws = cohort.draws._replace(split=elsewhere(cohort.draws.split))
    common, own, kept = away((cohort.common, cohort.own, cohort.kept))
    cohort = cohort._replace(common=common, own=own, kept=kept, draws=draws)
    done = learner.trains(way, t._task, 1.0)(cohort)
    sent, kept = done.sent.stack(), done.kept.stack()
    assert {leaf.device.type for leaf in tree_leaves((sent, kept))} == {"meta"}
    data = t.data._replace(test=elsewhere(t.data.test), train=elsewhere(t.data.train))
    what = learner, data, t._task, t.shapes
    models = ServedModels(t.experiment, *what, vectorized=way != "in-turn")
    queries = padded(data.test, data.test.rows, CLIENTS)
    said, _ = models.answers(models.of(common, own, kept, True, CLIENTS), queries)
    assert {leaf.device.type for leaf in tree_leaves(said)} == {"meta"}
