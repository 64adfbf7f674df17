"""Sites that fail, lie, or are not there: left out by name, and the others as without them."""

import numpy as np
import pytest
import torch

from engram.client import app
from engram.client.memory import RamStore
from engram.data.schema.columns import Schema
from engram.data.source import Source
from engram.data.tables.tables import TableData, table_data
from engram.link.node_config import NodeConfig
from engram.runs.run import Run
from engram.server.run import run as run_on
from engram.settings.errors import Refused, RunStopped
from engram.simulations.grid import InProcessGrid
from engram.sites.policy import UNLIMITED
from engram.tables.federation.host import TableSites
from engram.tables.federation.molar_messages import SITES, impossible
from engram.tables.federation.strategy import Exchange
from engram.tables.site import SiteEstimate
from engram.wire.messages import EVALUATE
from tests.samples import entry
from tests.server.late import Late
from tests.simulations.apart import Apart
from tests.support import write_npz
from tests.tables.federation.sites import (
    SITES_THERE,
    Odd,
    assert_as_in_one_place,
    error_instead,
    in_one_place,
    memories,
    nan_coefficient,
    odd,
    run,
    settings,
    with_arrays,
)


def without_record(reply):
    del reply.content[SITES]
    return reply


def assert_it_gets_what_the_others_share(kept, model):
    transferred = model.transfer(*table_data(settings()).train[4][:2], task=4)
    np.testing.assert_allclose(kept[4][0, :20], transferred.coef_[-1], rtol=1e-10)


FAULTS = {
    "no reply": (lambda reply: None, "no reply"),
    "an error": (lambda reply: error_instead(reply, "out of disk"), "out of disk"),
    "no record": (without_record, "its reply lacks 'sites'"),
    "not finite": (nan_coefficient, "some coefficients are NaN or infinite"),
    "too coarse numbers": (
        lambda r: with_arrays(r, coef=np.zeros((1, 21), dtype=np.float32)),
        "coef: float32 of (1, 21) instead of float64 of (1, 21)",
    ),
}


@pytest.mark.parametrize(("change", "reason"), FAULTS.values(), ids=list(FAULTS))
def test_whoever_fails_or_lies_is_left_out_and_named(tmp_path, change, reason):
    grid = odd(lambda client, reply: change(reply) if client == 4 else reply)
    found, kept = run(tmp_path / "run", grid=grid)
    assert list(found["left-out"]) == ["4"]
    assert reason in found["left-out"]["4"]
    assert found["sites"] == SITES_THERE - 1
    others = [client for client in range(SITES_THERE) if client != 4]
    model = in_one_place(settings(), leave_out=[4])
    assert_as_in_one_place(found, kept, model, others)
    assert_it_gets_what_the_others_share(kept, model)


def test_estimates_that_cannot_be_are_said_in_words():
    for family, given, reason in [
        ("linear", {"size": 1e12}, "it claims 1e+12 rows of 120"),
        ("linear", {"size": -5.0}, "it claims -5 rows of 120"),
        ("linear", {"sigma": -1.0}, "its noise has the standard deviation -1.0"),
        ("linear", {"sigma": 1e200}, "its noise has the standard deviation 1e+200"),
        ("linear", {"sigma": np.nan}, "its noise has the standard deviation nan"),
        ("linear", {"sigma": np.inf}, "it knows standard errors, and not its noise"),
        ("linear", {"freedom": 0.0}, "its noise has 0.0 degrees of freedom"),
        ("linear", {"scale": np.zeros(2)}, "some standard errors are NaN, 0 or negative"),
        ("linear", {"scale": np.full(2, 1e39)}, "some standard errors are beyond"),
        ("linear", {"coef": np.array([0.0, np.nan])}, "some coefficients are NaN or infinite"),
        ("linear", {"coef": np.array([0.0, 1e39])}, "some coefficients are beyond"),
        ("poisson", {"sigma": 1e-9}, "its noise has the standard deviation 1e-09"),
        ("poisson", {"sigma": 0.0}, "its noise has the standard deviation 0.0"),
        ("poisson", {"sigma": 2.0}, "its noise has the standard deviation 2.0"),
    ]:
        with entry(family, given):
            honest = SiteEstimate(np.zeros(2), np.ones(2), 120.0, 1.0)
            assert impossible(honest, 120, family=family) is None
            assert impossible(honest._replace(**given), 120, family=family).startswith(reason)


def test_without_enough_sites_nothing_is_shared(tmp_path):
    grid = odd(lambda client, reply: None if client < 3 else reply)
    with pytest.raises(RunStopped, match="9 of 10 sites are usable; client 0: no reply"):
        run(tmp_path / "run", grid=grid, min_clients=10)
    assert Run.open(tmp_path / "run").results is None
    found, _ = run(tmp_path / "again", grid=grid, min_clients=9)
    assert found["sites"] == 9


def test_a_site_that_comes_after_the_estimates_gets_what_the_others_share(tmp_path):
    experiment, store = settings(min_clients=3), RamStore()
    sites = TableSites(experiment, table_data(experiment), store)
    g = Late(sites, [[client] for client in range(SITES_THERE)], comes={5: 1})
    found = run_on(g, experiment, tmp_path / "run", engine="vectorized", memories=store)
    assert (found["sites"], found["left-out"]) == (SITES_THERE - 1, {"4": "no node hosts it"})
    assert found["clients"]["ids"] == list(range(SITES_THERE))
    kept = memories(store, sites.names, SITES_THERE)
    assert_it_gets_what_the_others_share(kept, in_one_place(settings(), leave_out=[4]))


def test_a_site_that_was_never_there_gets_it_when_the_run_is_resumed(tmp_path):
    experiment, store = settings(num_clients=4), RamStore()
    sites = TableSites(experiment, table_data(experiment), store)
    hosts = [[client] for client in range(4)]
    found = run_on(Late(sites, hosts, comes={2: 9}), experiment, tmp_path / "run", engine="flower")
    assert found["clients"]["ids"] == [0, 2, 3]
    again = settings(num_clients=4, resume=str(tmp_path / "run"))
    later = run_on(Late(sites, hosts, comes={3: 9}), again, tmp_path / "run", engine="flower")
    assert later["clients"]["ids"] == [0, 1, 3]
    assert later["shared"] == found["shared"]


def test_what_is_wrong_with_a_nodes_own_table_stays_in_its_log(tmp_path, warnings_of_engram):
    (tmp_path / "own.csv").write_text("age,days\nMiller,3\n61,2\n62,4\n")
    e, own = settings(target_column="days"), f"csv:{tmp_path}/own.csv"
    with pytest.raises(Refused, match="this node's data cannot be used: its log") as caught:
        app._host(e, NodeConfig(2, 12, data=Source(own)), RamStore(), UNLIMITED)
    assert "Miller" not in str(caught.value)
    assert "Miller" in warnings_of_engram.text


def test_a_site_with_other_columns_is_left_out_and_named(tmp_path):
    experiment = settings(num_clients=4)
    data = table_data(experiment)
    columns = ["x0", "age", *(f"x{k}" for k in range(2, 19))]
    own = [rows and rows._replace(x=rows.x[:, :19]) for rows in data.train]
    other = TableData(own, own, Schema.of_numbers(columns), data.names)
    hosts = [TableSites(experiment, each, RamStore()) for each in (other, data, data, data)]
    grid = InProcessGrid(Apart(hosts), [[0], [1], [2], [3]])
    found = run_on(grid, experiment, tmp_path / "run", engine="vectorized")
    assert list(found["left-out"]) == ["0"]
    assert "it lacks the inputs x1, x19, and has age besides" in found["left-out"]["0"]


def test_reasons_quote_no_values_of_rows(tmp_path):
    rng = np.random.default_rng(0)
    x, task = rng.normal(size=(300, 3)), np.repeat(np.arange(3), 100)
    y = (rng.random(300) < 0.5).astype(float)
    y[100:200] = 0.123456
    path = write_npz(tmp_path / "mine.npz", x=x, y=y, task=task)
    found, _ = run(tmp_path / "run", dataset=path, num_clients=3, family="logistic")
    assert found["left-out"] == {"1": "y must be 0 or 1 in every row"}


def test_a_site_that_cannot_be_used_does_not_take_its_nodes_others_with_it(tmp_path):
    rng = np.random.default_rng(0)
    x, task = rng.normal(size=(300, 2)), np.repeat(np.arange(3), 100)
    y = x @ [1, 2] + rng.normal(size=300)
    x[210:290, 1] = np.nan
    path = write_npz(tmp_path / "mine.npz", x=x, y=y, task=task)
    found, kept = run(tmp_path / "run", dataset=path, num_clients=3, nodes=1)
    assert "task 2: column x1 has NaN in row" in found["left-out"]["2"]
    assert len(found["left-out"]) == 1
    assert (sorted(kept), found["clients"]["ids"]) == ([0, 1], [0, 1])


def test_wide_claims_of_one_site_widen_intervals_by_a_bounded_amount(tmp_path):
    special = {"num_clients": 40, "nodes": 40, "site_weights": "equal"}
    honest, _ = run(tmp_path / "honest", **special)

    def lie(client, reply):
        return with_arrays(reply, scale=np.full((1, 21), 1e30)) if client == 4 else reply

    found, _ = run(tmp_path / "lied", grid=odd(lie), **special)
    both = [f["shared"] for f in (honest, found)]
    widths = [np.array(f["high"], float) - np.array(f["low"], float) for f in both]
    assert np.isfinite(widths[0]).sum() > 15
    assert (np.nan_to_num(widths[1]) < 4 * np.nan_to_num(widths[0], nan=1.0)).all()


def test_one_site_without_noise_does_not_speak_where_it_knows_nothing(tmp_path):
    def lie(client, reply):
        scale = reply.content[SITES]["scale"].numpy().copy()
        scale[0, 0] = np.inf
        sure = {"sigma": np.zeros(1), "freedom": np.array([np.inf])}
        return with_arrays(reply, scale=scale, **sure) if client == 4 else reply

    found, _ = run(tmp_path / "run", grid=odd(lie))
    assert found["sites"] == SITES_THERE


def test_clients_that_nobody_asked_for_have_no_vote(tmp_path):
    experiment = settings(num_clients=2, min_clients=2)
    data = table_data(settings(num_clients=6))
    honest = TableSites(experiment, data, RamStore())
    renamed = data._replace(schema=Schema.of_numbers(f"q{k}" for k in range(20)))
    other = TableSites(experiment, renamed, RamStore())
    grid = InProcessGrid(Apart([honest, honest, other]), [[0], [1], [2, 3, 4, 5]])
    found = run_on(grid, experiment, tmp_path / "run", engine="vectorized")
    assert (found["sites"], found["left-out"]) == (2, {})
    assert found["shared"]["names"][0] == "x0"


def test_a_run_that_goes_on_keeps_its_columns(tmp_path):
    experiment = settings(num_clients=3)
    data = table_data(experiment)
    backwards = data._replace(schema=Schema.of_numbers(data.columns[::-1]))
    sites = [TableSites(experiment, d, RamStore()) for d in (data, backwards)]
    grids = [InProcessGrid(each, [[0], [1], [2]]) for each in sites]
    run_on(grids[0], experiment, tmp_path / "run", engine="vectorized")
    again = settings(num_clients=3, resume=str(tmp_path / "run"))
    words = r"0 of 3 clients .*clients \[0, 1, 2\]: its inputs are in the order x19"
    with pytest.raises(RunStopped, match=words):
        run_on(grids[1], again, tmp_path / "run", engine="vectorized")


def test_scores_that_are_nonsense_are_left_out(tmp_path, warnings_of_engram):
    wrong = {
        1: {"loss-own": [float("nan")]},
        2: {"loss-personal": [float("inf")]},
        3: {"rows": [2**63 - 1]},
        4: {"loss-own": [1.7e308]},  # which no sum can hold
        6: {"loss-own": [1.0, 2.0]},
    }

    def change(client, reply):
        if client == 5:
            return error_instead(reply, "no room")
        if client == 7:
            del reply.content["clients"]["rows"]
        reply.content["clients"].update(wrong.get(client, {}))
        return reply

    found, _ = run(tmp_path / "run", grid=odd(change, kind=EVALUATE))
    assert found["scored"] == SITES_THERE - 7
    assert not {5, 6, 7} & set(found["clients"]["ids"])
    assert found["loss-personal"] > 0
    assert "held-out loss" in Exchange.in_words(found)
    assert "client 5 lacks scores: no room" in warnings_of_engram.text


def test_a_minority_moves_the_median_by_a_bounded_amount(tmp_path):
    honest, _ = run(tmp_path / "honest")
    data = table_data(settings())
    owns = np.array([s.coef for s in in_one_place(settings()).sites_])[:, 0]

    def lie(client, reply):
        coef = np.full((1, 21), 1e6)
        return with_arrays(reply, coef=coef) if client < 4 else reply

    found, _ = run(tmp_path / "lied", grid=odd(lie))
    moved = np.abs(np.subtract(found["shared"]["coef"], honest["shared"]["coef"]))
    assert moved.max() < 0.3
    assert owns[4:].min() <= found["shared"]["coef"][0] <= owns[4:].max()
    # A mean, weighted as the median is, goes where they want it.
    sizes = np.array([len(rows.y) for rows in data.train])
    assert np.average(np.r_[np.full(4, 1e6), owns[4:]], weights=sizes) > 1e5


def test_nothing_that_leaves_a_site_has_rows_in_it(tmp_path):
    arrays, scores = set(), set()

    def look(client, reply):
        for name, record in reply.content.items():
            tensors = {key: x for key, x in record.items() if isinstance(x, torch.Tensor)}
            arrays.update((name, key, tuple(x.shape)) for key, x in tensors.items())
        if reply.question.kind == EVALUATE:
            scores.update(reply.content["clients"])
        return reply

    run(tmp_path / "run", grid=lambda host, hosts: Odd(host, hosts, look))
    wide = {(SITES, name, (1, 21)) for name in ("coef", "scale")}
    assert arrays == wide | {(SITES, name, (1,)) for name in ("size", "sigma", "freedom")}
    about = {"server-round", "ids", "failed", "reasons", "noted", "notes"}
    assert scores == about | {"rows", "loss-own", "loss-shared", "loss-personal"}
