"""One client or many, vectorized or in turn: the same numbers, and those of the rule by hand."""

from copy import deepcopy
from itertools import accumulate, chain

import numpy as np
import pytest
import torch
from torch import nn

import engram
from engram.client.disk_memory import DiskStore
from engram.client.memory import RamStore
from engram.cohort.trainer.trainer import ClientFailed
from engram.core.method import Phase
from engram.core.slots import flat, over_slots, unflat
from engram.core.streams import Stream, generator
from engram.core.tree import add_scaled, select
from engram.methods.fedavg import FedAvg
from engram.scoring.score_columns import COMMON
from engram.settings.network import method
from tests.samples import entry
from tests.support import (
    SEVEN,
    assert_same,
    cross_entropy,
    draw,
    initial_model,
    run_rounds,
    scores_of,
    small,
    small_of_any,
    train_clients,
    trainer,
)


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_a_client_does_not_see_who_else_takes_part(engine):
    for name in SEVEN:
        with entry(name):
            e = small_of_any(method=name)
            together, _ = run_rounds(trainer(e, engine=engine), [[5, 2, 7]])
            alone, _ = run_rounds(trainer(e, engine=engine), [[2]])
            assert_same(select(together.slots, slice(1, 2)), alone.slots, atol=1e-6)


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_clients_of_other_memories_receive_their_own_slots(engine):
    # Client 2 has an optimizer's state, so that the others train apart from it.
    e = small_of_any(method="pfedhn", optimizer="adam", optimizer_state="kept")
    sent = []
    for cohort in ([5, 2, 7], [2]):
        t = trainer(e, engine=engine)
        for server_round, clients in enumerate(([2], cohort), start=1):
            common, own = t.method.server.send(t.method.server.start, clients)
            own = over_slots(lambda leaf, of=clients: leaf + draw(0, 20, *leaf.shape[1:])[of], own)
            when = {"server_round": server_round, "durable": 0}
            trained = train_clients(t, common, clients, own=own, **when)
        at = trained.clients.index(2)
        sent.append(over_slots(lambda leaf, at=at: leaf[at], trained.slots))
    assert_same(*sent, atol=1e-6)


def test_rows_come_in_order():
    # Some begin with rows for a memory, and all take 2 steps of so many batches of 4.
    for name in ("local-moml", "fedavg"):
        t = trainer(small_of_any(method=name, order="stream"))
        client = t.method.client
        size = client.initial_rows + 2 * 4 * client.phases[0].batches
        own = np.sort(t.data.train.rows[7])
        for server_round in (1, 2, 3):
            expected = own[np.arange((server_round - 1) * size, server_round * size) % len(own)]
            assert t.sampler.draw([3, 7], server_round).rows[1].tolist() == expected.tolist()


def test_a_round_run_again_gives_the_same_and_changes_no_model_or_earlier_memory(tmp_path):
    for name in SEVEN:
        for store in (RamStore(), DiskStore(tmp_path / name)):
            with entry(name, store):
                t = trainer(small_of_any(method=name, memory="carry"), store)
                model = initial_model(t)
                copy = over_slots(torch.clone, model)
                train_clients(t, model, [3, 4], server_round=1, durable=0)
                first = over_slots(torch.clone, store.load(4, before=2) or {})
                moved = over_slots(lambda leaf: leaf + 0.01, model)
                one = train_clients(t, moved, [3, 4], server_round=2, durable=1)
                again = train_clients(t, moved, [3, 4], server_round=2, durable=1)
                assert_same(one.slots, again.slots)
                assert_same(model, copy)
                assert_same(store.load(4, before=2) or {}, first)


def test_every_setting_of_an_algorithm_reaches_it():
    start = initial_model(trainer(small_of_any()))  # the same, whatever the seed

    def trained(**settings):
        store = RamStore()
        t = trainer(small_of_any(**{"alpha": 0.05, "local_steps": 2} | settings), store)
        found = run_rounds(t, [[3, 4], [3, 4]], start)[0].slots
        return flat(found) | (store.load(4, before=3) or {})

    before = trained()
    other = {"eta": 0.2, "alpha": 0.2, "beta": 0.3, "hessian": "first-order", "memory": "carry"}
    other |= {"local_steps": 3, "batch_size": 3, "initial_batch_size": 4, "seed": 5}
    for key, value in other.items():
        with entry(key):
            after = trained(**{key: value})
            assert any(not torch.equal(before[name], after[name]) for name in before)


# --- Failures --------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_a_client_that_diverges_is_left_out_and_keeps_its_memory(engine):
    e = small_of_any(memory="carry", local_steps=3)
    store = RamStore()
    t = trainer(e, store, engine=engine)
    model = initial_model(t)
    train_clients(t, model, [3, 4], server_round=1, durable=0)
    before = store.load(3, before=9)
    t.data.train.x[t.data.train.rows[3]] = torch.inf
    trained = train_clients(t, model, [3, 4], server_round=2, durable=1)
    assert trained.clients == [4]
    assert all(len(leaf) == 1 and leaf.isfinite().all() for leaf in flat(trained.slots).values())
    (reason,) = trained.failures.values()
    assert reason.startswith("client 3: its model or loss became non-finite in round 2")
    assert ("at step 1" in reason) == (engine == "sequential")
    assert reason.endswith("; its inputs have NaN or infinity in training row 4")
    assert_same(store.load(3, before=9), before)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(("eta", "scale"), [(1e30, 1.0), (0.1, 1e25)])
def test_a_smaller_step_is_advised_only_where_the_rows_are_fine(
    private, eta, scale, warnings_of_engram
):
    own = {"privacy": "local", "clip": 1.0} if private else {}
    for engine in ("vectorized", "sequential"):
        warnings_of_engram.clear()
        t = trainer(small_of_any(method="fedavg", eta=eta, local_steps=3, **own), engine=engine)
        t.data.train.x.mul_(scale)
        trained = train_clients(t, initial_model(t), [3], server_round=1, durable=0)
        (reason,) = trained.failures.values()
        told = warnings_of_engram.text if private else reason
        assert ("lower fedavg.eta" in told) == (eta == 1e30)
        assert ("its inputs reach" in told) == (scale == 1e25)
        assert reason.endswith("; its log says more") == private


@pytest.mark.parametrize("step", [1, 2])
def test_sequential_says_who_failed_where(step):
    t = trainer(small_of_any(beta=1.0), engine="sequential")
    rows = t.data.train.rows[4]
    drawn = generator(0, Stream.LOCAL_STEPS, 7, 4).integers(len(rows), size=(2, 3, 4))
    only = sorted(set(drawn[step - 1].flat) - set(drawn[: step - 1].flat))
    t.data.train.y[rows[only]] = 99  # a class that the network has no logit for
    with pytest.raises(ClientFailed, match=f"client 4 failed in round 7 at step {step}: IndexE"):
        train_clients(t, initial_model(t), [3, 4], server_round=7, durable=0)


# --- Evaluation ------------------------------------------------------------------------------


def test_scores_follow_the_few_shot_protocol():
    e = small_of_any(protocol="few-shot", adapt_shots=4, adapt_steps=3, adapt_lr=0.1, seed=3)
    t = trainer(e)
    model, loss = initial_model(t)["model"], cross_entropy(t.learner.model)
    scores = scores_of(t, [12, 0])
    for i, client in enumerate([12, 0]):
        rows = generator(3, Stream.SUPPORT, client).permutation(t.data.test.rows[client])
        rows = torch.from_numpy(rows)
        tuned = {name: leaf.clone() for name, leaf in model.items()}
        for _ in range(3):
            slope = torch.func.grad(loss)(tuned, t.data.test.take(rows[:4]))
            tuned = add_scaled(tuned, -0.1, slope)
        x, y = t.data.test.take(rows[4:])
        for params, which in ((model, COMMON), (tuned, "")):
            hits = (t.learner.model.apply(params, x).argmax(dim=1) == y).double().mean()
            accuracy, mean_loss = (scores.columns[n + which][i] for n in ("accuracy", "loss"))
            assert float(accuracy) == pytest.approx(float(hits), abs=1e-6)
            assert float(mean_loss) == pytest.approx(float(loss(params, (x, y))), abs=1e-5)
        assert int(scores.queries[i]) == len(rows) - 4


def test_a_fine_tuned_model_that_diverged_is_right_about_nothing():
    scores = scores_of(trainer(small_of_any(adapt_lr=1e30)), range(20))
    diverged = ~scores.columns["loss"].isfinite()
    assert diverged.any()
    assert (scores.columns["accuracy"][diverged] == 0).all()


def test_blocks_of_clients_score_alike(monkeypatch):
    t = trainer(small_of_any())
    whole = scores_of(t, range(20))
    for module in ("score_clients", "served"):
        monkeypatch.setattr(f"engram.scoring.{module}.BLOCK", 5000)
    blocks = scores_of(t, range(20))
    torch.testing.assert_close(whole, blocks, rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_models_that_clients_keep_are_scored_as_they_are(engine):
    store = RamStore()
    t = trainer(small_of_any(method="ditto"), store, engine=engine)
    before = scores_of(t, range(20)).columns
    train_clients(t, initial_model(t), [3, 4], server_round=1, durable=0)
    after = scores_of(t, range(20), server_round=1).columns
    for name in ("accuracy", "loss"):
        moved = np.flatnonzero(~torch.isclose(before[name], after[name], rtol=0, atol=1e-6))
        assert set(moved.tolist()) <= {3, 4}, name  # others are fine-tuned, as before
    own = unflat(store.load(4, before=2))["kept"]["own"]
    x, y = t.data.test.take(torch.from_numpy(t.data.test.rows[4]))
    loss = cross_entropy(t.learner.model)(own, (x, y))
    assert float(after["loss"][4]) == pytest.approx(float(loss), abs=1e-5)
    hits = (t.learner.model.apply(own, x).argmax(dim=1) == y).double().mean()
    assert float(after["accuracy"][4]) == pytest.approx(float(hits), abs=1e-6)


@pytest.mark.parametrize("settings", [{}, {"model": "resnet", "hidden": "4"}])
@pytest.mark.usefixtures("plug_ins")
def test_a_loss_of_a_methods_own_is_lowered_whatever_the_network(settings):
    @method("doubled", source="nobody")
    class Doubled(FedAvg):
        """FedAvg of twice the loss."""

        def build(self, context):
            o, network = context.objective, context.network

            def twice(w, batch):
                return 2 * o.criterion(network.represent(w, batch)[0], batch), ()

            derivative = o.differentiate(twice, network.learned)

            def direction(work, batches):
                return {"model": derivative(work["model"], batches[0])[0]}, work

            base = super().build(context)
            phases = (Phase(direction, self.eta),)
            return base._replace(client=base.client._replace(phases=phases))

    found = []
    for name, eta in (("doubled", 0.05), ("fedavg", 0.1)):
        t = trainer(small_of_any(method=name, eta=eta, **settings))
        found.append([run_rounds(t, [[3, 4]])[0].slots for _ in range(6)])  # each way has its turn
    for one, other in zip(*found, strict=True):
        assert_same(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("times", "fastest"),
    [((9.0, 1.0, 4.0, 2.0, 5.0, 4.0), "vmap"), ((1.0, 9.0, 4.0, 9.0, 2.0, 4.0), "in-turn")],
)
def test_the_way_that_takes_the_first_step_fastest_trains_from_then_on(monkeypatch, times, fastest):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 10))
    engram.model(lambda: deepcopy(net), "net-of-two-ways")
    t = trainer(small(method="fedavg", model="net-of-two-ways"))
    assert t.ways == ("in-turn", "vmap", "grouped")
    clock = iter(accumulate(chain.from_iterable((0.0, time) for time in times)))
    monkeypatch.setattr("engram.cohort.trainer.ways.time.process_time", lambda: next(clock))
    for server_round in (1, 2):  # the clock has no further times
        trained = train_clients(t, initial_model(t), [0, 1], server_round=server_round, durable=0)
        assert trained.way == fastest


@pytest.mark.parametrize("length", [{"local_steps": 3}, {"local_epochs": 2}])
def test_the_first_steps_of_draws_are_those_of_all_steps(length):
    e = small(batch_size=7, order="shuffled", **length)  # LocalMOML has an initial batch
    draws = trainer(e).sampler.draw([0, 3, 5], 1)
    whole, first = list(draws.each_step()), list(draws.first(1).each_step())
    assert 0 < len(first) < len(whole)
    for one, other in zip(first, whole, strict=False):
        torch.testing.assert_close(one.batches, other.batches, rtol=0, atol=0)
    torch.testing.assert_close(draws.first(1).initial_batch(), draws.initial_batch())
