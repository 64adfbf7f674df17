"""A bandit between sites plays as the library's does in one place, batch by batch."""

from functools import partial

import numpy as np
import pytest
import torch

from engram.bandits.federation.environments import simulated_environment
from engram.client.disk_memory import DiskStore
from engram.client.memory import RamStore
from engram.core.streams import Stream, generator
from engram.runs.run import Run
from engram.runs.writer import RunWriter
from engram.settings.errors import DataError, Refused, RunStopped
from engram.tables.bandits.environments import regret
from engram.tables.bandits.policies import batches, close_tasks
from engram.tables.federation.bandit_host import policy_of
from engram.tables.federation.bandit_strategy import BanditExchange
from engram.tables.federation.molar_messages import SITES
from engram.wire.messages import TRAIN
from tests.bandits.federation.turns import entry, killed_at
from tests.bandits.federation.turns import run as run_sites
from tests.server.late import Late
from tests.support import small, write_npz
from tests.tables.federation.sites import odd, with_arrays

COUNT = 6


def settings(**special):
    base = {"method": "molar-bandit", "dataset": "sparse-linear", "num_clients": COUNT}
    return small(**base | {"num_rounds": 9, "timeout": 1.0} | special)


run = partial(run_sites, settings=settings)


def coefs(store, **special):
    """What every site has in the end, shape (M, P, d)."""
    e = settings(**special)
    kept = [store.load(client, before=e.num_rounds + 2) for client in range(e.num_clients)]
    sent = [x.dtype for memory in kept for name, x in memory.items() if name.startswith("sent.")]
    assert {*sent} <= {torch.float64}  # thresholds go by them
    return np.stack([memory["coefs"].numpy() for memory in kept])


def in_one_place(**special):
    """Plays the library's policy in the same environments, with the same ties broken alike."""
    e = settings(**special)
    policy, everyone = policy_of(e), range(e.num_clients)
    worlds = [simulated_environment(e, client) for client in everyone]
    state = [policy.init(e.own.parameters, worlds[0].contexts.shape[2])] * e.num_clients
    lost = np.zeros(e.num_clients)
    for number, batch in enumerate(batches(e.own.first_batch, e.own.horizon(e)), start=1):
        now = [world.rounds(batch.start, batch.stop) for world in worlds]
        ties = [generator(e.seed, Stream.TIES, number, client) for client in everyone]
        played = [policy.play(*task) for task in zip(state, now, ties, strict=True)]
        state = close_tasks(policy, [one for one, *_ in played])
        lost += [regret(each, arms).sum() for each, (_, arms, _) in zip(now, played, strict=True)]
    return np.stack([site.coefs for site in state]), lost


@pytest.mark.parametrize(
    ("special", "nodes"),
    [
        ({}, 1),
        ({}, 4),
        ({"history": "all", "thresholding": "soft", "first_batch": 3}, 4),
        ({"bandit_model": "P", "arms": 2, "num_rounds": 10}, 4),
    ],
)
def test_the_exchange_is_the_library(tmp_path, special, nodes):
    found, store = run(tmp_path / "run", nodes=nodes, **special)
    expected, lost = in_one_place(**special)
    assert np.abs(expected).max() > 0.1  # the last batches had rows enough
    np.testing.assert_allclose(coefs(store, **special), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found["clients"]["regret"], lost, rtol=1e-10)
    assert found["regret"] == pytest.approx(lost.mean())


def test_what_is_recorded(tmp_path):
    found, _ = run(tmp_path / "run")
    record = Run.open(tmp_path / "run")
    assert record.results == found
    (metric,) = record.metrics
    assert (metric.name, metric.better) == ("regret", "lower")
    rows = record.rows()
    assert [row["round"] for row in rows] == list(range(1, 10))
    assert found["turns"] == 256
    assert rows[2]["regret"] == 0  # four turns: too few to be told of
    assert BanditExchange.in_words(rows[2]) == "6 sites, regret 0, reported by 0 of them"
    assert BanditExchange.in_words(found) == f"6 sites, regret {found['regret']:.4g}"
    assert 0 < rows[-2]["regret"] < rows[-1]["regret"] == found["regret"]
    assert all(row["cohort"] == list(range(COUNT)) for row in rows)
    assert len(found["shared"]["coef"][0]) == len(found["shared"]["names"]) == 30
    assert sum(found["clients"]["turns"]) > 256


@pytest.mark.parametrize("disk", [False, True], ids=["ram", "disk"])
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path, disk):
    def store(name):
        return DiskStore(tmp_path / name) if disk else RamStore()

    whole, kept = run(tmp_path / "whole", store=store("a"))
    other = store("b")
    with killed_at(6) as calls:  # two batches after the checkpoint of the fourth
        run(tmp_path / "run", store=other)
    if not disk:
        other = RamStore()
    again, other = run(tmp_path / "run", store=other, resume=str(tmp_path / "run"))
    assert again | {"ms-per-round": 0} == whole | {"ms-per-round": 0}
    assert np.array_equal(coefs(kept), coefs(other))
    assert len(calls) == 6


def test_killed_at_the_last_checkpoint_it_plays_the_last_batch_again(tmp_path, monkeypatch):
    whole, _ = run(tmp_path / "whole", store=DiskStore(tmp_path / "a"), checkpoint_every=4)
    save = RunWriter.save_checkpoint

    def dies(record, number, *args, **options):
        if number == 9:
            raise KeyboardInterrupt
        return save(record, number, *args, **options)

    store = DiskStore(tmp_path / "b")
    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "save_checkpoint", dies)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run", store=store, checkpoint_every=4)
    again, _ = run(tmp_path / "run", store=store, checkpoint_every=4, resume=str(tmp_path / "run"))
    assert again["clients"] == whole["clients"]


def test_how_far_it_goes_is_part_of_what_it_is(tmp_path):
    run(tmp_path / "run")
    with pytest.raises(Refused, match="num-rounds was 9, not 10"):
        run(tmp_path / "run", resume=str(tmp_path / "run"), num_rounds=10)


# --- Sites that fail or lie ---------------------------------------------------------------------


def in_round(number, client, change):
    """A grid on which one client's reply of one round is changed."""

    def apply(who, reply):
        details = reply.content["clients"]
        if who == client and details["server-round"] == number:
            return change(reply)
        return reply

    return odd(apply, kind=TRAIN)


FAULTS = {
    "NaN": (
        lambda r: with_arrays(r, coef=np.full((1, 30), np.nan)),
        "some coefficients are NaN or infinite",
    ),
    "a size": (lambda r: with_arrays(r, size=np.array([1e12])), "it claims 1e+12 rows of 256"),
    "others' estimates": (entry("senders", [1]), "its node sends estimates of [(1, 0)]"),
    "a parameter that is none": (entry("parameters", [3]), "its node sends estimates of"),
    "lists that do not fit": (entry("regret", []), "its node's lists do not fit each other"),
    "a regret that is none": (
        entry("regret", [np.nan]),
        "regret must lie between 0 and 3.40282e+38, got nan",
    ),
    "a regret below 0": (entry("regret", [-1.0]), "regret must lie between 0 and"),
    "a regret that no sum can hold": (entry("regret", [1.7e308]), "regret must lie between 0 and"),
    "a reward that no sum can hold": (entry("reward", [1.7e308]), "its turns or rewards are"),
    "too many turns": (entry("turns", [1000]), "its turns or rewards are impossible"),
    "more rows than turns": (lambda r: with_arrays(r, size=np.array([257.0])), "of 256"),
    "no list": (entry("reward", "much"), "reward must be a list of float"),
}


@pytest.mark.parametrize(("change", "reason"), FAULTS.values(), ids=list(FAULTS))
def test_a_site_is_left_out_of_the_batch_in_which_it_fails_or_lies(tmp_path, change, reason):
    found, store = run(tmp_path / "run", grid=in_round(9, 2, change))
    rows = Run.open(tmp_path / "run").rows()
    assert [row["left-out"] for row in rows] == [0] * 8 + [1]
    assert reason in rows[-1]["absent"]["2"]
    assert found["sites"] == COUNT - 1
    # It has learned from the others even so.
    assert np.abs(coefs(store)[2]).max() > 0.1


def test_precision_that_a_site_claims_is_bounded_and_named(tmp_path, warnings_of_engram):
    def lie(reply):
        sure = {"sigma": np.array([1e-9]), "freedom": np.array([np.inf])}
        return with_arrays(reply, coef=np.full((1, 30), 7.0), **sure)

    many = {"grid": in_round(9, 2, lie), "num_clients": 14, "nodes": 14}
    found, _ = run(tmp_path / "bounded", **many)
    # One of 14 has 5 / (5 + 7) of the weight at most, less than half.
    assert np.abs(found["shared"]["coef"]).max() < 3
    rows = Run.open(tmp_path / "bounded").rows()
    assert [row.get("bounded", []) for row in rows] == [[]] * 8 + [[2]]
    assert warnings_of_engram.text.count("client 2 would have more weight") == 1
    found, _ = run(tmp_path / "believed", max_weight=1e9, **many)
    assert set(found["shared"]["coef"][0]) == {7.0}


def test_one_sites_regret_does_not_make_the_mean(tmp_path):
    honest, _ = run(tmp_path / "honest")
    each = np.array(honest["clients"]["regret"])
    assert honest["regret"] == pytest.approx(each.mean())
    assert honest["regret-median"] == pytest.approx(np.median(each))
    found, _ = run(tmp_path / "run", grid=in_round(9, 2, entry("regret", [3e38])))
    others = np.delete(each, 2)
    # A hundred times the third smallest of six.
    assert found["regret"] == pytest.approx((others.sum() + 100 * np.sort(others)[2]) / 6)
    assert others.min() <= found["regret-median"] <= others.max()
    assert Run.open(tmp_path / "run").rows()[-1]["regret-median"] == found["regret-median"]


def test_a_site_tells_of_no_more_turns_than_there_were(tmp_path):
    # It has told of some before the ninth batch, and 256 turns are all that there were.
    found, _ = run(tmp_path / "run", grid=in_round(9, 2, entry("turns", [256])))
    assert "its turns or rewards are impossible" in found["left-out"]["2"]
    assert 0 < found["clients"]["turns"][2] < 256


def test_without_enough_sites_a_run_stops_and_can_go_on(tmp_path):
    grid = in_round(7, 2, lambda reply: None)
    with pytest.raises(RunStopped, match="5 of 6 sites are usable; client 2: no reply"):
        run(tmp_path / "run", grid=grid, min_clients=6)
    found, _ = run(tmp_path / "run", min_clients=6, resume=str(tmp_path / "run"))
    whole, _ = run(tmp_path / "whole", min_clients=6)
    assert found["clients"] == whole["clients"]


def test_nothing_that_leaves_a_site_has_rows_in_it(tmp_path):
    shapes = set()

    def look(client, reply):
        for name, record in reply.content.items():
            tensors = {key: x for key, x in record.items() if isinstance(x, torch.Tensor)}
            shapes.update((name, key, tuple(x.shape[1:])) for key, x in tensors.items())
        return reply

    run(tmp_path / "run", grid=odd(look))
    wide = {(SITES, name, (30,)) for name in ("coef", "scale")}
    assert shapes == wide | {(SITES, name, ()) for name in ("size", "sigma", "freedom")}


# --- Tables ------------------------------------------------------------------------------------


def table(tmp_path):
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(3), (400, 200, 300))
    x = rng.normal(size=(len(task), 4))
    y = x @ [1, -2, 3, 0] + 0.5 * rng.normal(size=len(task)) + 10
    return write_npz(tmp_path / "table.npz", x=x, y=y, task=task)


def test_sites_choose_between_rows_of_their_tables(tmp_path):
    special = {"dataset": table(tmp_path), "num_clients": 3, "arms": 2, "num_rounds": 8}
    found, store = run(tmp_path / "run", **special)
    turns = found["clients"]["turns"]
    assert turns[0] > turns[2] > turns[1]
    assert found["shared"]["names"] == ["x0", "x1", "x2", "x3", "intercept"]
    np.testing.assert_allclose(found["shared"]["coef"][0], [1, -2, 3, 0, 10], atol=0.4)
    assert coefs(store, **special).shape == (3, 1, 5)
    # By chance half of the choices are wrong, by |x'beta - z'beta| = 4.2 on average.
    assert found["regret"] < 0.2 * np.mean(turns) * 2.1


def test_tables_that_cannot_be_played(tmp_path):
    special = {"dataset": table(tmp_path), "num_clients": 3}
    with pytest.raises(DataError, match="bandit-model must be C for a table"):
        run(tmp_path / "run", **special, bandit_model="P")
    with pytest.raises(ValueError, match="family is a setting of molar, and the method is"):
        settings(family="logistic")
    with pytest.raises(ValueError, match="num-rounds must be at most 17 for molar-bandit"):
        settings(num_rounds=100)


def test_a_site_that_comes_late_plays_from_then_on(tmp_path):
    g = partial(Late, comes={3: 4})
    found, _ = run(tmp_path / "run", grid=g)
    rows = Run.open(tmp_path / "run").rows()
    assert [row["absent"] for row in rows] == [{"2": "no node hosts it"}] * 4 + [{}] * 5
    assert [row["sites"] for row in rows] == [COUNT - 1] * 4 + [COUNT] * 5
    e, world = settings(), simulated_environment(settings(), 2)
    later = list(batches(e.own.first_batch, e.own.horizon(e)))[4:]
    turns = sum(len(world.rounds(batch.start, batch.stop).contexts) for batch in later)
    assert found["clients"]["turns"][2] == turns > 0
    assert found["left-out"] == {}
