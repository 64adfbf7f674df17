"""The weighting of clients in a round's mean: one setting, for every method."""

from itertools import product

import pytest
import torch

from engram.core.method import FromMean, Update
from engram.core.slots import mean_of, over_slots
from engram.guards.merge import Merge
from engram.settings.families import family
from engram.simulations.engine import simulate
from engram.strategies.running.rounds import Rounds
from tests.samples import entry
from tests.support import small, trainer

ROWS = (1.0, 2.0, 5.0)


def merge(method, **settings):
    """The server's merge of a method on a small network, and updates of unequal rows."""
    e = small(method=method, **settings)
    t = trainer(e)
    rounds = Rounds.of(e, t.given.kind, lambda size, *keys: torch.zeros(size))
    start = torch.Generator().manual_seed(0)
    sent = [
        over_slots(lambda leaf: torch.rand(leaf.shape, generator=start), rounds.shapes.sent)
        for _ in ROWS
    ]
    updates = [
        Update(slots, rows, 1, client)
        for client, (slots, rows) in enumerate(zip(sent, ROWS, strict=True))
    ]
    return rounds.merge, updates


def test_every_methods_mean_weighs_clients_as_the_setting_says():
    for method, weighting in product(family("local"), ("rows", "clients")):
        if method == "fedbn":
            continue
        with entry(method, weighting):
            found, _ = merge(method, weighting=weighting)
            assert found.method.server.merge.by == weighting
            if isinstance(found.method.server.merge, FromMean):
                assert found.by_rows == (weighting == "rows")


@pytest.mark.parametrize(
    "method", ["fedavg", "ditto", "fedpac", "ifca", "fedamp", "fedfomo", "floco", "cfl"]
)
def test_rows_and_clients_merge_into_the_means_that_they_name(method):
    """The common slot after a round is the mean by numpy's weights, whatever the paper has."""
    slot = {"fedpac": "body", "floco": "body"}.get(method, "model")
    for weighting, weights in (("rows", ROWS), ("clients", (1.0, 1.0, 1.0))):
        found, updates = merge(method, weighting=weighting)
        server = found.method.server.start
        if method == "ifca":
            slot = "model0"
            updates = [u._replace(slots=u.slots | {"choice": torch.zeros(())}) for u in updates]
        after = found.after(server, updates)
        if method == "cfl":  # all clients are of the first of its clusters
            after = {slot: {name: leaf[0] for name, leaf in after["models"].items()}}
        for name, leaf in after[slot].items():
            sent = [u.slots["change" if method == "ifca" else slot][name] for u in updates]
            mean = sum(w * x for w, x in zip(weights, sent, strict=True)) / sum(weights)
            expected = server[slot][name] + mean if method == "ifca" else mean
            torch.testing.assert_close(leaf, expected, rtol=1e-5, atol=1e-6)


def test_the_papers_weights_are_each_methods_own():
    for method, by in {"fedavg": "rows", "ditto": "clients", "fedpac": "rows"}.items():
        assert merge(method, weighting="paper")[0].method.server.merge.by == by


def test_robust_and_private_means_count_all_clients_alike():
    for settings in [{"merge": "median"}, {"privacy": "central", "clip": 1.0}]:
        with entry(settings):
            found, _ = merge("fedavg", weighting="rows", **settings)
            assert not found.by_rows
            assert found.most([1, 9]) == 1
    assert merge("fedavg")[0].most([1, 2, 2, 9]) == 10  # 5 times the median


def test_the_mean_by_a_weight_is_that_of_its_field():
    updates = [
        Update({"w": torch.tensor([x])}, 9.0, 1, None, w) for x, w in ((0.0, 1.0), (4.0, 3.0))
    ]
    assert mean_of(updates, "weight").slots["w"].item() == 3.0


@pytest.mark.parametrize("weighting", ["rows", "clients"])
def test_dittos_common_model_is_fedavgs(tmp_path, weighting):
    """On clients of unequal rows, to the last number, and so are its scores."""
    found = {
        method: simulate(
            small(method=method, weighting=weighting, partition="dirichlet", num_clients=8),
            tmp_path / method,
        )
        for method in ("fedavg", "ditto")
    }
    columns = [found[method]["clients"]["accuracy-common"] for method in found]
    assert columns[0] == columns[1]
    assert found["fedavg"]["accuracy"] == found["ditto"]["accuracy-common"]


def test_a_merge_keeps_the_method_of_the_paper_where_it_is_asked_for():
    e = small(method="ditto", weighting="paper")
    t = trainer(e)
    assert Merge(e, t.method, frozenset()).method is t.method
