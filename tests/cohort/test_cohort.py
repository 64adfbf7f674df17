"""Every way to run a cohort's round gives what each client gets alone, and so does every block."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product

import pytest
import torch

from engram.client.memory import RamStore
from engram.cohort import spans
from engram.cohort.dense_gradients import PlainCoordinates
from engram.cohort.span_coordinates import Span
from engram.cohort.trainer import ways
from engram.cohort.trainer.block_size import block_size
from engram.core.slots import over_slots
from engram.settings.errors import Refused
from tests.samples import EIGHT, entry
from tests.support import (
    ANY_NETWORK,
    assert_same,
    initial_model,
    scores_of,
    small_of_any,
    train_clients,
    trainer,
)

# Rows of 64 pixels. A client draws fewer rows than that (span), or more (plain); or its network
# learns features, of which it draws few (features) or many (stacked).
SPAN = {"hidden": "8,6"}
PLAIN = {"hidden": "8,6", "local_steps": 9, "batch_size": 9}
FEATURES = {"model": "cnn", "hidden": "64", "eta": 0.05}
STACKED = {"model": "cnn", "hidden": "8", "local_steps": 4}
FIRST_ORDER, EXACT = {"hessian": "first-order"}, {"hessian": "exact"}
REMEMBERING = ("apfl", "mr-mtl", "scaffold", "feddyn", "fedamp", "cfl", "pfedhn")
CASES = [
    *(
        ("dense", coordinates, regime | rule)
        for coordinates, regime in ((Span, SPAN), (PlainCoordinates, PLAIN))
        for rule in (
            *(
                {"method": name}
                for name in ("fedavg", "fednova", "pfedme", "local", "ditto", *REMEMBERING)
            ),
            {"method": "local-moml"} | EXACT,
            {"method": "local-moml", "memory": "carry"} | EXACT,
            {"method": "per-fedavg"} | FIRST_ORDER,
            {"method": "fedprox", "mu": 0.5},
            {"method": "ifca", "initial_batch_size": 5},
        )
    ),
    ("dense", Span, {"method": "fedavg"} | FEATURES),
    ("dense", Span, {"method": "fedprox", "mu": 0.5} | FEATURES),
    ("dense", Span, {"method": "fedper"} | SPAN),
    ("dense", PlainCoordinates, {"method": "fedbabu"} | PLAIN),
    ("dense", Span, {"method": "fedrep"} | SPAN),
    ("dense", Span, {"method": "fedalt"} | FEATURES),
    ("dense", PlainCoordinates, {"method": "fedalt"} | PLAIN | {"optimizer": "momentum"}),
    ("dense", Span, {"method": "local-moml"} | FEATURES | FIRST_ORDER),
    ("dense", Span, {"method": "per-fedavg"} | FEATURES | FIRST_ORDER),
    ("vmap", None, {"method": "local-moml"} | FEATURES | EXACT),
    ("vmap", None, {"method": "local-moml", "memory": "carry"} | FEATURES | FIRST_ORDER),
    ("vmap", None, {"method": "pfedme"} | FEATURES),
    ("vmap", None, {"method": "ditto"} | FEATURES),
    ("vmap", None, {"method": "fedala"} | SPAN),
    ("vmap", None, {"method": "fedem"} | SPAN),
    ("vmap", None, {"method": "apfl", "adaptive": True} | SPAN),
    ("vmap", None, {"method": "ifca", "optimizer": "adamw", "weight_decay": 0.1} | SPAN),
    ("vmap", None, {"method": "fedavg"} | STACKED),
    ("vmap", None, {"method": "fedrep"} | STACKED),
    ("dense", Span, {"method": "lg-fedavg"} | SPAN),
    ("dense", PlainCoordinates, {"method": "lg-fedavg"} | PLAIN),
    ("vmap", None, {"method": "fedrep", "optimizer": "adam"} | SPAN),
    ("vmap", None, {"method": "per-fedavg", "hessian": "finite-difference"} | SPAN),
]


def affine(method):
    """The code of a method's steps, if an engine may keep models as coefficients in them."""
    phases = trainer(small_of_any(method=method)).method.client.phases
    return {phase.direction.__code__ for phase in phases if phase.affine}


def test_every_method_is_held_both_ways():
    # `affine` is a promise that only such a comparison can check.
    steps = {name: affine(name) for name in ANY_NETWORK}
    every = set().union(*steps.values())
    assert len(every) >= 13
    for regime in (SPAN, PLAIN):
        held = [
            steps[settings["method"]]
            for way, _, settings in CASES
            if way == "dense" and regime.items() <= settings.items()
        ]
        assert set().union(*held) == every


def settings_of(settings):
    steps = {"alpha": 0.05, "eta": 0.1, "local_steps": 2, "batch_size": 3}
    return small_of_any(**(steps | settings))


def sampled(cases):
    """Returns the cases, of which `make test` runs those of the eight methods alone."""
    marks = [() if case[-1]["method"] in EIGHT else pytest.mark.full for case in cases]
    return [pytest.param(*case, marks=mark) for case, mark in zip(cases, marks, strict=True)]


@pytest.mark.parametrize(("way", "coordinates", "settings"), sampled(CASES))
def test_every_way_trains_as_one_client_alone_does(way, coordinates, settings, monkeypatch):
    e = settings_of(settings)
    stores = RamStore(), RamStore()
    fast, slow = trainer(e, stores[0]), trainer(e, stores[1], engine="sequential")
    assert (fast.ways, slow.ways) == ((way,), ("in-turn",))
    frames, run = [], fast.run
    monkeypatch.setattr(fast, "run", lambda *task: frames.append(run(*task)) or frames[-1])
    results = []
    for t in (fast, slow):
        model = initial_model(t)
        train_clients(t, model, [4], server_round=1, durable=0)  # only one of them remembers
        trained = train_clients(t, model, [3, 4, 12], server_round=2, durable=1)
        results.append(trained)
    one, other = results
    # Adam divides each gradient by its own size, and so it enlarges the rounding of the least ones.
    atol = 2e-5 if settings.get("optimizer") == "adam" else 2e-6
    assert_same(one.slots, other.slots, atol=atol)
    assert one.losses == pytest.approx(other.losses, abs=1e-5)
    for client in (3, 4, 12):
        mine, theirs = (store.load(client, before=3) or {} for store in stores)
        assert_same(mine, theirs, atol=atol)
    for done in frames:
        assert isinstance(done.sent.coordinates, coordinates or type(None))


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
@pytest.mark.parametrize("settings", [SPAN, FEATURES | {"method": "pfedme"}])
def test_models_and_divergence_are_found_without_losses(settings, engine):
    t = trainer(settings_of(settings), engine=engine)
    model = initial_model(t)
    when = {"server_round": 1, "durable": 0}
    with_losses = train_clients(t, model, [3, 4], **when)
    without = train_clients(t, model, [3, 4], losses=False, **when)
    assert len(with_losses.losses) == 2
    assert without.losses == []
    assert_same(with_losses.slots, without.slots)
    far = over_slots(lambda leaf: leaf * 1e30, model)
    lost = train_clients(t, far, [3, 4], losses=False, **when)
    assert list(lost.failures) == [3, 4]


@pytest.mark.parametrize("settings", [SPAN, PLAIN, FEATURES | FIRST_ORDER, STACKED])
def test_a_group_is_the_mean_of_its_clients_in_blocks_of_any_size(settings):
    t = trainer(settings_of(settings))
    model, groups = initial_model(t), [[3, 0, 12], [19]]
    when = {"server_round": 1, "durable": 0}
    each = train_clients(t, model, [3, 0, 12, 19], **when)
    whole = t.block
    for t.block in (1, 3):
        apart = train_clients(t, model, [3, 0, 12, 19], **when)
        assert (apart.clients, apart.examples) == (each.clients, each.examples)
        assert apart.losses == pytest.approx(each.losses, abs=1e-5)
        assert_same(apart.slots, each.slots, atol=1e-6)
    # Clients alike, some of them bounded, and none.
    for t.block, combine in product((whole, 3), (1, 25, 2**31)):
        first, second = t.train(model, groups, combine=combine, **when)
        weights = torch.tensor([float(min(n, combine)) for n in each.examples[:3]])
        assert len(set(each.examples[:3])) > 1  # or weights would not matter
        shares = weights / weights.sum()
        first_three = over_slots(lambda leaf: leaf[:3], each.slots)
        expected = over_slots(partial(torch.tensordot, shares, dims=1), first_three)
        assert_same(first.slots, expected, atol=1e-6)
        assert_same(second.slots, over_slots(lambda leaf: leaf[3], each.slots), atol=1e-6)


def test_a_group_without_a_usable_client_is_empty_and_spoils_no_other():
    t = trainer(settings_of(SPAN))
    model = initial_model(t)
    t.data.train.x[t.data.train.rows[3]] = torch.nan
    lost, mixed = t.train(model, [[3], [4, 12]], server_round=1, durable=0, combine=1)
    assert (lost.clients, lost.slots, list(lost.failures)) == ([], {}, [3])
    healthy = trainer(settings_of(SPAN))
    (alone,) = healthy.train(model, [[4, 12]], server_round=1, durable=0, combine=1)
    assert_same(mixed.slots, alone.slots, atol=1e-6)


def test_a_budget_that_allows_no_client_is_refused_with_the_numbers():
    for settings, engine in [
        *((regime, "vectorized") for regime in (SPAN, PLAIN, FEATURES, STACKED)),
        ({}, "sequential"),
    ]:
        none = r"needs \S+ GiB, and 9.99e-07 GiB are allowed \(memory-budget\)"
        with entry(settings, engine), pytest.raises(Refused, match=none):
            trainer(settings_of(settings | {"memory_budget": 1e-6}), engine=engine)
        # Three times its model fits: as received, a gradient, and the next. Its batches do not.
        plain = {"method": "fedavg"} | settings
        budget = 12.12 * trainer(settings_of(plain)).learner.size / 2**30
        allowed = rf"one client takes about \d+ KiB.* {budget * 2**20:.0f} KiB are allowed"
        with entry(settings, engine), pytest.raises(Refused, match=allowed):
            trainer(settings_of(plain | {"memory_budget": budget}), engine=engine)


def test_a_budget_limits_the_block():
    e = settings_of(SPAN)
    whole = trainer(e)
    assert whole.block >= 20
    tight = trainer(settings_of(SPAN | {"memory_budget": 200 / 2**20}))  # 200 KiB
    assert 1 <= tight.block < 20
    results = [
        train_clients(t, initial_model(t), range(20), server_round=1, durable=0)
        for t in (whole, tight)
    ]
    assert_same(results[0].slots, results[1].slots, atol=1e-6)


def test_the_order_of_a_models_arrays_does_not_matter():
    # A strategy of somebody else's may send them in another one.
    for settings in (SPAN, PLAIN, FEATURES, STACKED):
        with entry(settings):
            t = trainer(settings_of({"method": "fedavg"} | settings))
            model = initial_model(t)
            other = {"model": dict(reversed(model["model"].items()))}
            one, same = (
                train_clients(t, m, [3, 12], server_round=1, durable=0).slots
                for m in (model, other)
            )
            assert_same(one, same, atol=1e-6)
            one, same = (scores_of(t, [3, 12], m, server_round=1).columns for m in (model, other))
            assert_same(one, same, atol=1e-6)


def test_clients_train_at_once_as_memory_allows(monkeypatch):
    monkeypatch.setattr("engram.cohort.trainer.block_size.available", lambda device: 3 * 2**20)
    assert block_size(2**20, 0, device="cpu") == 1  # a quarter is less than one client takes
    assert block_size(2**17, 0, device="cpu") == 6
    with pytest.raises(Refused, match="takes about 5120 KiB, but 3072 KiB are free"):
        block_size(5 * 2**20, 0, device="cpu")
    # A run's memory-budget may be more than this machine has.
    assert block_size(2**20, 2**60, device="cpu") == 3
    assert block_size(2**20, 2**21, device="cpu") == 2
    with pytest.raises(Refused, match="takes about 5120 KiB, but 3072 KiB are free"):
        block_size(5 * 2**20, 2**60, device="cpu")


# --- Large networks --------------------------------------------------------------------------

IN_SPANS = [
    *({"method": "local-moml", "memory": memory} | EXACT for memory in ("reset", "carry")),
    {"method": "local-moml", "memory": "carry"} | FIRST_ORDER,
    {"method": "per-fedavg"} | EXACT,
    {"method": "pfedme", "inner_steps": 7},
    {"method": "ditto", "local_epochs": 2},
    *({"method": name} for name in (*REMEMBERING, "lg-fedavg")),
    {"method": "ifca", "initial_batch_size": 5},
    *({"method": name, "local_epochs": 1} for name in ("fedavg", "fedrep", "fedbabu", "local")),
]


@pytest.fixture
def large(monkeypatch):
    """All networks are large, and spans are cheap."""
    monkeypatch.setattr(ways, "_LARGE", 0)
    monkeypatch.setattr(ways, "pays", lambda model, drawn: False)
    monkeypatch.setattr(ways.Learner, "_fits", lambda learner, size: True)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("settings", sampled([(own,) for own in IN_SPANS]))
def test_large_networks_train_in_spans_as_step_by_step(settings, monkeypatch):
    e = settings_of(FEATURES | {"local_steps": 5} | settings)
    monkeypatch.setattr(spans, "Full", type("Never", (Exception,), {}))  # no step is taken twice
    kept, trained = [], []
    for engine, way in (("vectorized", "in-spans"), ("sequential", "in-turn")):
        store = RamStore()
        t = trainer(e, store, engine=engine)
        t.block = 100
        assert t.ways == (way,)
        model = initial_model(t)
        train_clients(t, model, [4], server_round=1, durable=0)
        trained.append(train_clients(t, model, [3, 4, 12], server_round=2, durable=1))
        kept.append([store.load(client, before=3) or {} for client in (3, 4, 12)])
    one, other = trained
    assert_same(one.slots, other.slots, atol=5e-6)
    assert one.losses == pytest.approx(other.losses, abs=1e-5)
    for mine, theirs in zip(*kept, strict=True):
        assert_same(mine, theirs, atol=5e-6)


@pytest.mark.usefixtures("large")
def test_a_span_grows_where_a_step_takes_more_gradients_than_expected(monkeypatch):
    e = settings_of(FEATURES | {"method": "pfedme", "local_steps": 5})
    monkeypatch.setattr(ways.Learner, "gradients", lambda _: 1)
    both = []
    for engine in ("vectorized", "sequential"):
        t = trainer(e, engine=engine)
        both.append(train_clients(t, initial_model(t), [3, 4], server_round=1, durable=0).slots)
    assert_same(*both, atol=5e-6)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("eta", [0.1, 1e3, 1e6, 1e9])
def test_a_large_network_that_breaks_in_a_span_says_when(eta):
    settings = {"method": "ifca", "initial_batch_size": 50, "local_steps": 5, "eta": eta}
    found = []
    for engine in ("vectorized", "sequential"):
        t = trainer(settings_of(FEATURES | settings), engine=engine)
        found.append(train_clients(t, initial_model(t), [3, 4], server_round=1, durable=0).failures)
    assert found[0] == found[1]
    assert bool(found[0]) == (eta > 1e3)
    assert "at step 1" not in str(found)


def test_spans_are_for_few_rows_beside_a_large_layer():
    for settings, way in [
        ({"method": "pfedme"}, "in-spans"),  # 15 gradients of 3 rows, beside a layer of 256 x 512
        ({"method": "pfedme", "batch_size": 10}, "in-turn"),
        ({"method": "pfedme", "inner_steps": 1, "batch_size": 10}, "in-spans"),
        ({"method": "ditto", "optimizer": "momentum"}, "in-turn"),
        ({"method": "ditto", "weight_decay": 0.1}, "in-turn"),
        ({"method": "per-fedavg"} | EXACT, "in-spans"),
        ({"method": "per-fedavg", "hessian": "finite-difference"}, "in-turn"),
        ({"method": "fedavg"}, "dense"),
    ]:
        with entry(settings, way):
            large = {"model": "cnn", "hidden": "512,256,256,256"}
            assert trainer(settings_of(large | settings)).ways == (way,)


def test_gradients_of_a_step_are_counted():
    for settings, count in [
        ({"method": "fedavg"}, 1),
        ({"method": "ditto"}, 2),
        ({"method": "pfedme", "inner_steps": 7}, 7),
        ({"method": "local-moml"} | EXACT, 4),
        ({"method": "local-moml"} | FIRST_ORDER, 2),
        ({"method": "scaffold"}, 1),
        ({"method": "fedrep"}, 1),
    ]:
        with entry(settings, count):
            assert trainer(settings_of(settings)).learner.gradients() == count


@pytest.mark.usefixtures("large")
def test_threads_train_large_networks_at_once():
    e = settings_of(FEATURES | {"method": "local-moml", "local_steps": 8} | EXACT)

    def slots(_):
        t = trainer(e)
        return train_clients(t, initial_model(t), [3, 4], server_round=1, durable=0).slots

    alone = slots(0)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(slots, range(8)):
            assert_same(found, alone)
