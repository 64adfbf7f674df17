"""Local steps by any optimizer and epochs of unequal clients: all engines compute the same."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import engram
from engram.client.disk_memory import DiskStore
from engram.client.memory import RamStore
from engram.core.slots import over_slots
from engram.core.streams import Stream, generator
from engram.simulations.engine import simulate
from tests.networks.networks import CASES, IMAGES, Normed
from tests.networks.test_modules import (  # noqa: F401 - a fixture is used by being here
    _registered,
    experiment,
)
from tests.samples import entry, sampled
from tests.support import (
    SEVEN,
    assert_same,
    cross_entropy,
    initial_model,
    run_rounds,
    small_of_any,
    train_clients,
    trainer,
)

OPTIMIZERS = {
    "momentum": {"optimizer": "momentum"},
    "clipped": {"optimizer": "momentum", "gradient_clip": 0.5},
    "decayed": {"weight_decay": 0.1},
    "adam": {"optimizer": "adam", "weight_decay": 0.1, "schedule": "cosine"},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1, "gradient_clip": 0.5},
}
UNEQUAL = {"partition": "dirichlet", "num_clients": 8, "batch_size": 7, "adapt_shots": 2}
EPOCHS = UNEQUAL | {"local_epochs": 2}


def both(e):
    cohorts = [3, 0, 2], [0, 1], [2, 3, 0]
    one, other = (
        run_rounds(trainer(e, engine=engine), cohorts)[0] for engine in ("vectorized", "sequential")
    )
    assert_same(one.slots, other.slots, atol=1e-5)
    assert one.losses == pytest.approx(other.losses, abs=1e-5)
    return one


STEPS = {"steps": {}, "epochs": EPOCHS | {"batch_size": 30}}
# Each optimizer, with a state of either kind and without, along steps and along epochs. Each method
# goes two of these, of which one is of steps and one of epochs; in full, one goes every way.
WAYS = [
    *(("momentum", "kept", "steps"), ("clipped", "fresh", "epochs"), ("decayed", "", "steps")),
    *(("adam", "kept", "epochs"), ("adamw", "fresh", "steps"), ("momentum", "kept", "epochs")),
]
EVERY_WAY = [
    way
    for way in itertools.product(OPTIMIZERS, ("", "fresh", "kept"), STEPS)
    if bool(way[1]) == ("optimizer" in OPTIMIZERS[way[0]])
]
PAIRS = [(name, *WAYS[at % 6]) for i, name in enumerate(SEVEN) for at in (i, i + 3)]
QUICK = PAIRS[::2]
TABLE = dict.fromkeys([*PAIRS, *(("local-moml", *way) for way in EVERY_WAY)])


@pytest.mark.parametrize(("method", "name", "state", "steps"), sampled(TABLE, QUICK))
def test_both_engines_compute_the_same(method, name, state, steps):
    own = OPTIMIZERS[name] | STEPS[steps]
    if state:
        own["optimizer_state"] = state
    eta = 0.01 if "adam" in name else 0.05
    trained = both(small_of_any(method=method, memory="carry", eta=eta, **own))
    assert trained.failures == {}


class NoBias(Normed):
    """Adam enlarges the rounding error of a bias before batch norm, whose gradient is zero."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1, bias=False)


@pytest.mark.parametrize("case", ["batch norm and dropout", "recurrent", "tied transformer"])
def test_networks_of_users_train_by_epochs(case, tmp_path, monkeypatch):
    settings = {"optimizer": "adamw", "weight_decay": 0.1, "eta": 0.01}
    monkeypatch.setitem(CASES, "batch norm and dropout", (NoBias, IMAGES, {}))
    found = []
    for engine in ("vectorized", "sequential"):
        # 18 training rows of a client: 7, 7 and 4.
        e = experiment(case, method="fedavg", local_epochs=2, batch_size=7, **settings)
        found.append(simulate(e, tmp_path / engine, engine=engine))
    assert found[0]["loss"] == pytest.approx(found[1]["loss"], abs=1e-5)


def test_fast_ways_are_taken_where_they_are_right():
    for settings, way in [
        ({}, "dense"),
        ({"schedule": "step"}, "dense"),
        ({"optimizer": "momentum"}, "dense"),
        ({"optimizer": "momentum", "optimizer_state": "kept"}, "vmap"),
        ({"optimizer": "adam"}, "vmap"),
        ({"weight_decay": 0.1}, "vmap"),
        ({"gradient_clip": 0.1}, "vmap"),
        ({"local_epochs": 1}, "dense"),
        ({"local_epochs": 1, "weight_decay": 0.1}, "vmap"),
    ]:
        with entry(settings, way):
            e = small_of_any(method="fedavg", **settings)
            for engine, expected in (("vectorized", way), ("sequential", "in-turn")):
                assert trainer(e, engine=engine).ways == (expected,)


# --- Epochs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "local-moml"])
def test_an_epoch_has_every_row_once(method):
    t = trainer(small_of_any(method=method, **EPOCHS))
    clients = list(range(8))
    draws = t.sampler.draw(clients, 3)
    sizes = [len(t.data.train.rows[client]) for client in clients]
    assert len(set(sizes)) > 4
    assert any(size % 7 for size in sizes)
    for i, client in enumerate(clients):
        one = t.sampler.draw([client], 3)
        whole = [t.data.train.take(torch.from_numpy(t.data.train.rows[client]))[0]]
        (rows,) = (x.flatten(1).sort(0).values for x in whole)
        for alone in (draws.of([i]), one):  # whoever else takes part
            steps = list(alone.each_step())
            each = -(-sizes[i] // 7)
            assert len(steps) == 2 * each
            assert [step.last for step in steps] == [False] * (2 * each - 1) + [True]
            for number in range(draws.batches):
                batches = [step.batches[number][0][0].flatten(1) for step in steps]
                assert [len(x) for x in batches[: each - 1]] == [7] * (each - 1)
                first, second = torch.cat(batches[:each]), torch.cat(batches[each:])
                torch.testing.assert_close(first.sort(0).values, rows)
                torch.testing.assert_close(second.sort(0).values, rows)
                assert not torch.equal(first, second)
    again = t.sampler.draw(clients, 4)
    assert not torch.equal(draws.rows, again.rows)


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_epochs_are_those_of_a_loop_over_torchs_loader(engine):
    t = trainer(
        small_of_any(method="fedavg", eta=0.1, momentum=0.8, optimizer="momentum", **EPOCHS),
        engine=engine,
    )
    model = initial_model(t)["model"]
    trained = train_clients(t, {"model": model}, [3, 0, 2], server_round=5, durable=0)
    for i, client in enumerate([3, 0, 2]):
        rows = t.data.train.rows[client]
        orders = generator(0, Stream.LOCAL_STEPS, 5, client).permuted(
            np.tile(np.arange(len(rows)), (2, 1)), axis=1
        )
        w = {name: leaf.clone().requires_grad_() for name, leaf in model.items()}
        optimizer = torch.optim.SGD(w.values(), lr=0.1, momentum=0.8)
        for order in orders:
            own = torch.utils.data.Subset(
                list(zip(*t.data.train.take(torch.from_numpy(rows)), strict=True)), order.tolist()
            )
            for batch in torch.utils.data.DataLoader(own, batch_size=7):
                optimizer.zero_grad()
                cross_entropy(t.learner.model)(w, tuple(batch)).backward()
                optimizer.step()
        expected = {name: leaf.detach() for name, leaf in w.items()}
        assert_same({k: v[i] for k, v in trained.slots["model"].items()}, expected, atol=1e-6)


# --- An optimizer's state --------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
@pytest.mark.parametrize("state", ["fresh", "kept"])
def test_what_is_kept_goes_on_where_it_stopped(engine, state, tmp_path):
    e = small_of_any(
        method="fedavg", optimizer="adam", optimizer_state=state, eta=0.01, schedule="cosine"
    )
    t = trainer(e, DiskStore(tmp_path), engine=engine)
    loss, common = cross_entropy(t.learner.model), initial_model(t)
    w = {name: leaf.clone().requires_grad_() for name, leaf in common["model"].items()}
    adam = torch.optim.Adam(w.values())
    for server_round, factor in ((1, 1.0), (2, 0.8535533905932737)):  # (1 + cos(pi / 4)) / 2
        if state == "fresh":
            adam = torch.optim.Adam(w.values())
        adam.param_groups[0]["lr"] = 0.01 * factor
        for step in t.sampler.draw([4], server_round).each_step():
            ((x, y),) = step.batches
            adam.zero_grad()
            loss(w, (x[0], y[0])).backward()
            adam.step()
        trained = train_clients(t, common, [4], server_round=server_round, durable=0)
        common = over_slots(lambda leaf: leaf[0], trained.slots)
        expected = {name: leaf.detach() for name, leaf in w.items()}
        assert_same(common["model"], expected, atol=1e-6)
    again, first = (  # as if resumed, and anew
        train_clients(one, initial_model(one), [4], server_round=1, durable=0).slots
        for one in (t, trainer(e, RamStore(), engine=engine))
    )
    assert_same(again, first)


def test_a_run_that_is_resumed_goes_on_with_what_optimizers_kept(tmp_path):
    own = {"method": "fedavg", "optimizer": "adam", "optimizer_state": "kept", "eta": 0.01}
    own |= {"clients_per_round": 20, "hidden": "6", "local_epochs": 1, "progress": False}
    engram.simulate(**own, num_rounds=2, out=tmp_path / "run")
    resumed = engram.simulate(**own, num_rounds=4, resume=tmp_path / "run")
    whole = engram.simulate(**own, num_rounds=4, out=tmp_path / "whole")
    assert_same(resumed.model, whole.model)


def test_a_model_that_is_kept_is_served_without_the_optimizers_part(tmp_path):
    own = {"optimizer": "adam", "optimizer_state": "kept", "num_rounds": 2, "clients_per_round": 20}
    own |= {"hidden": "6", "local_steps": 2, "eta": 0.01, "progress": False}
    run = engram.simulate(method="pfedme", out=tmp_path / "run", **own)
    personal = run.personal_model(3)
    assert {k: v.shape for k, v in personal.items()} == {k: v.shape for k, v in run.model.items()}


# --- Settings --------------------------------------------------------------------------------


def test_a_schedules_length_is_part_of_the_run():
    for schedule, same in (("constant", True), ("cosine", False)):
        one, other = (small_of_any(schedule=schedule, num_rounds=n).identity() for n in (4, 8))
        assert (one == other) == same
