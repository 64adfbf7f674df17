"""One exchange between sites gives what the library gives on all rows in one place, to 1e-10."""

import json

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Error, MessageType
from flwr.app.message import make_message

from client import app
from client.memory import RamStore
from client.tables import TableSites
from engram.molar.regressor import MolarClassifier, MolarRegressor
from federation.data.tables import TableData, table_data
from federation.errors import Refused, RunStopped
from federation.estimates import SITES
from federation.hosting import NodeConfig
from federation.wire import REFUSED, ROSTER_QUERY
from server.exchange import exchange
from server.record import RunRecord
from server.tables import in_words
from simulations.grid import InProcessGrid
from tests.support import small, write_npz

SITES_THERE = 12


def settings(**special):
    base = {"algorithm": "molar", "dataset": "sparse-linear", "num_clients": SITES_THERE}
    return small(**base | {"timeout": 1.0} | special)


def run(folder, *, grid=None, store=None, nodes=SITES_THERE, **special):
    """Returns what was found, and the sites' memories: an array for each client."""
    experiment, store = settings(**special), store or RamStore()
    sites = TableSites(experiment, table_data(experiment), store)
    hosts = [range(node, experiment.num_clients, nodes) for node in range(nodes)]
    g = (grid or InProcessGrid)(sites, hosts)
    found = exchange(g, experiment, folder, engine="vectorized", memories=store)
    return found, memories(store, sites.names, experiment.num_clients)


def memories(store, names, count):
    """Returns coef, low, high, own and shared of each client, shape (5, d), by client."""
    like = {name: torch.empty(5, dtype=torch.float64) for name in names}
    kept = {client: store.load(client, like, before=2) for client in range(count)}
    return {
        client: np.stack([memory[name].numpy() for name in names], axis=1)
        for client, memory in kept.items()
        if memory is not None
    }


def in_one_place(experiment, leave_out=()):
    """Fits all sites' training rows with the library's estimator."""
    data = table_data(experiment)
    there = [(c, rows) for c, rows in enumerate(data.train) if c not in leave_out]
    x = np.concatenate([rows.x for _, rows in there])
    y = np.concatenate([rows.y for _, rows in there])
    task = np.concatenate([np.full(len(rows.y), c) for c, rows in there])
    options = {"option": experiment.thresholding, "c": experiment.threshold_scale}
    options |= {"fit_intercept": experiment.intercept, "undetermined": "shared"}
    if experiment.family == "logistic":
        return MolarClassifier(**options).fit(x, y, task)
    return MolarRegressor(family=experiment.family, **options).fit(x, y, task)


def assert_as_in_one_place(found, kept, model, clients, *, intercept=True):
    shared = found["shared"]["coef"]
    np.testing.assert_allclose(shared[: len(model.shared_coef_)], model.shared_coef_, rtol=1e-10)
    if intercept:
        assert shared[-1] == pytest.approx(model.shared_intercept_, rel=1e-10)
    low, high = model.confidence_intervals()
    for i, client in enumerate(clients):
        d = len(model.shared_coef_)
        coef, own_low, own_high = kept[client][:3, :d]
        np.testing.assert_allclose(coef, model.coef_[i], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(own_low, low[i], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(own_high, high[i], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(kept[client][3, :d], model.individual_coef_[i], rtol=1e-10)
        if intercept:
            assert kept[client][0, -1] == pytest.approx(model.intercept_[i], rel=1e-10)


@pytest.mark.parametrize(
    "special",
    [
        {},
        {"thresholding": "soft", "threshold_scale": 0.7},
        {"intercept": False},
        {"dataset": "sparse-logistic", "family": "logistic", "test_fraction": 0.1},
        {"dataset": "sparse-poisson", "family": "poisson"},
    ],
)
@pytest.mark.parametrize("nodes", [1, 5, SITES_THERE])
def test_the_exchange_is_the_library(tmp_path, special, nodes):
    found, kept = run(tmp_path / "run", nodes=nodes, **special)
    model = in_one_place(settings(**special))
    intercept = special.get("intercept", True)
    assert_as_in_one_place(found, kept, model, range(SITES_THERE), intercept=intercept)
    assert (found["sites"], found["left-out"]) == (SITES_THERE, {})


def test_a_table_with_a_task_column(tmp_path):
    rng = np.random.default_rng(0)
    x, task = rng.normal(size=(400, 4)), np.repeat(np.arange(4), 100)
    y = x @ [1, 2, 3, 4] + rng.normal(size=400)
    x[300:, 2] = 1  # in the last task a column is constant
    path = write_npz(tmp_path / "mine.npz", x=x, y=y, task=task)
    special = {"dataset": path, "num_clients": 4}
    found, kept = run(tmp_path / "run", nodes=2, **special)
    assert found["lacking"] == {"3": "column x2 is constant"}
    assert found["sites"] == 4
    model = in_one_place(settings(**special))
    assert kept[3][0, 2] == found["shared"]["coef"][2]
    np.testing.assert_allclose(kept[3][0, :4], model.coef_[3], rtol=1e-10)


def test_what_is_recorded(tmp_path):
    found, kept = run(tmp_path / "run")
    record = RunRecord.open(tmp_path / "run")
    assert record.results == found
    (row,) = record.rows()
    assert row["cohort"] == list(range(SITES_THERE))
    assert (row["sites"], row["left-out"], row["absent"]) == (SITES_THERE, 0, {})
    assert found["shared"]["names"] == [*(f"x{k}" for k in range(20)), "intercept"]
    assert found["rows"] == sum(len(rows.y) for rows in table_data(settings()).train)
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == found
    # The losses are the mean squared errors on held-out rows, of what each site keeps.
    test = table_data(settings()).test[3]
    x = np.hstack([test.x, np.ones((len(test.y), 1))])
    for name, row in (("personal", 0), ("own", 3), ("shared", 4)):
        loss = np.mean((x @ kept[3][row] - test.y) ** 2)
        assert found["clients"][name][3] == pytest.approx(loss, rel=1e-10)
    assert found["loss-personal"] == pytest.approx(np.mean(found["clients"]["personal"]))
    assert found["loss-personal"] < found["loss-own"]


def test_a_run_that_is_resumed_sends_the_same_estimate_again(tmp_path):
    found, kept = run(tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()  # as if it had been killed before
    store = RamStore()
    again, same = run(tmp_path / "run", store=store, resume=str(tmp_path / "run"))
    assert {k: v for k, v in again.items() if k != "ms-per-round"} == {
        k: v for k, v in found.items() if k != "ms-per-round"
    }
    assert all(np.array_equal(kept[client], same[client]) for client in kept)
    with pytest.raises(Refused, match=r"level was 0\.95, not 0\.9"):
        run(tmp_path / "run", resume=str(tmp_path / "run"), level=0.9)


# --- Sites that fail, lie, or are not there ------------------------------------------------------


class Odd(InProcessGrid):
    """A grid on which what some nodes send is changed."""

    def __init__(self, host, hosts, change):
        super().__init__(host, hosts)
        self.change = change

    def send_and_receive(self, messages, *, timeout=None):
        replies = super().send_and_receive(messages, timeout=timeout)
        changed = [self.change(reply.metadata.src_node_id - 1, reply) for reply in replies]
        return [reply for reply in changed if reply is not None]


def odd(change, kind=MessageType.TRAIN):
    """Returns a grid that changes replies of a kind; ``change`` returns None for none at all."""

    def of_kind(client, reply):
        if reply.metadata.message_type != kind:
            return reply
        return change(client, reply)

    return lambda host, hosts: Odd(host, hosts, of_kind)


def with_arrays(reply, **arrays):
    """Returns a reply with other numbers in it."""
    before = reply.content.array_records[SITES]
    after = {name: before[name].numpy() for name in before} | arrays
    reply.content.array_records[SITES] = ArrayRecord(
        {name: torch.from_numpy(np.array(value)) for name, value in after.items()}
    )
    return reply


def error_instead(reply, reason):
    return make_message(metadata=reply.metadata, error=Error(REFUSED, reason))


def nan_coefficient(reply):
    coef = reply.content.array_records[SITES]["coef"].numpy().copy()
    coef[0, 3] = np.nan
    return with_arrays(reply, coef=coef)


FAULTS = {
    "no reply": (lambda reply: None, "no reply"),
    "an error": (
        lambda reply: error_instead(reply, "out of disk"),
        "out of disk",
    ),
    "not finite": (nan_coefficient, "some coefficients are NaN or infinite"),
    "a size": (
        lambda r: with_arrays(r, size=np.array([1e12])),
        "it claims 1e+12 rows of 120",
    ),
    "a negative size": (lambda r: with_arrays(r, size=np.array([-5.0])), "it claims -5 rows"),
    "a negative variance": (
        lambda r: with_arrays(r, sigma=np.array([-1.0])),
        "its noise has the standard deviation -1.0",
    ),
    "a variance that is none": (
        lambda r: with_arrays(r, sigma=np.array([np.nan])),
        "its noise has the standard deviation nan",
    ),
    "noise without an end": (
        lambda r: with_arrays(r, sigma=np.array([np.inf])),
        "it knows standard errors, and not its noise",
    ),
    "freedom that is none": (
        lambda r: with_arrays(r, freedom=np.array([0.0])),
        "its noise has 0.0 degrees of freedom",
    ),
    "no standard error": (
        lambda r: with_arrays(r, scale=np.zeros((1, 21))),
        "some standard errors are NaN, 0 or negative",
    ),
    "too few features": (
        lambda r: with_arrays(r, coef=np.zeros((1, 20))),
        "coef: 'float64' of (1, 20) instead of float64 of (1, 21)",
    ),
    "too coarse numbers": (
        lambda r: with_arrays(r, coef=np.zeros((1, 21), dtype=np.float32)),
        "coef: 'float32' of (1, 21) instead of",
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
    # What the others share is for it, too.
    transferred = model.transfer(*table_data(settings()).train[4][:2], task=4)
    np.testing.assert_allclose(kept[4][0, :20], transferred.coef_[-1], rtol=1e-10)


def test_records_that_are_missing_are_no_reason_to_stop(tmp_path):
    def strip(reply):
        del reply.content.array_records[SITES]
        return reply

    grid = odd(lambda client, reply: strip(reply) if client < 2 else reply)
    found, _ = run(tmp_path / "run", grid=grid)
    assert found["left-out"] == dict.fromkeys("01", "its reply lacks 'sites'")


def test_without_enough_sites_nothing_is_shared(tmp_path):
    grid = odd(lambda client, reply: None if client < 3 else reply)
    with pytest.raises(RunStopped, match="9 of 10 sites are usable; client 0: no reply"):
        run(tmp_path / "run", grid=grid, min_clients=10)
    assert RunRecord.open(tmp_path / "run").results is None
    found, _ = run(tmp_path / "again", grid=grid, min_clients=9)
    assert found["sites"] == 9


def test_sites_that_never_come_are_left_out(tmp_path):
    experiment = settings(min_clients=3)
    sites = TableSites(experiment, table_data(experiment), RamStore())
    g = InProcessGrid(sites, [[0], [1], [5]])
    found = exchange(g, experiment, tmp_path / "run", engine="vectorized")
    assert found["sites"] == 3
    assert found["left-out"] == {
        str(c): "no node hosts it" for c in range(SITES_THERE) if c not in (0, 1, 5)
    }


def test_a_node_that_cannot_serve_costs_its_own_clients_alone(tmp_path, caplog):
    grid = odd(
        lambda client, reply: error_instead(reply, "no such file") if client == 3 else reply,
        kind=ROSTER_QUERY,
    )
    caplog.set_level("WARNING", logger="flwr.engram")
    found, _ = run(tmp_path / "run", grid=grid)
    assert found["left-out"] == {"3": "no node hosts it"}
    assert "cannot serve this run: no such file; it takes no part" in caplog.text


def test_what_is_wrong_with_a_nodes_own_table_stays_in_its_log(tmp_path, caplog):
    (tmp_path / "own.csv").write_text("age,days\nMiller,3\n")
    e, own = settings(target_column="days"), f"csv:{tmp_path}/own.csv"
    with pytest.raises(Refused, match="this node's table cannot be used: its log") as caught:
        app._host(e, NodeConfig(2, 12, data=own), RamStore())
    assert "Miller" not in str(caught.value)
    assert "Miller" in caplog.text


class Columns(InProcessGrid):
    """A grid whose nodes host tables of their own."""

    def __init__(self, hosts):
        super().__init__(hosts[0], [[client] for client in range(len(hosts))])
        self._each = hosts

    def push_messages(self, messages):
        names = []
        for message in messages:
            self._host = self._each[message.metadata.dst_node_id - 1]
            names += super().push_messages([message])
        return names


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (
            ["x0", "age", *(f"x{k}" for k in range(2, 20))],
            "column 1 is 'age', and most sites' 'x1'",
        ),
        ([f"x{k}" for k in range(18)], "it has 18 columns, and most sites have 20"),
    ],
)
def test_a_site_with_other_columns_is_left_out_and_named(tmp_path, columns, reason):
    experiment = settings(num_clients=4)
    data = table_data(experiment)
    hosts = [TableSites(experiment, data, RamStore()) for _ in range(4)]
    own = [rows and rows._replace(x=rows.x[:, : len(columns)]) for rows in data.train]
    hosts[0] = TableSites(experiment, TableData(own, own, columns, data.names), RamStore())
    found = exchange(Columns(hosts), experiment, tmp_path / "run", engine="vectorized")
    assert list(found["left-out"]) == ["0"]
    assert reason in found["left-out"]["0"]


def test_rows_that_cannot_be_used_are_their_sites_fault_alone(tmp_path):
    rng = np.random.default_rng(0)
    x, task = rng.normal(size=(500, 3)), np.repeat(np.arange(5), 100)
    y = x @ [1, 2, 3] + rng.normal(size=500)
    x[110:190, 1] = np.nan
    path = write_npz(tmp_path / "mine.npz", x=x, y=y, task=task)
    found, kept = run(tmp_path / "run", dataset=path, num_clients=5)
    assert list(found["left-out"]) == ["1"]
    assert "task 1: column x1 has NaN in row" in found["left-out"]["1"]
    assert sorted(kept) == [0, 2, 3, 4]


def test_reasons_quote_no_values_of_rows(tmp_path):
    rng = np.random.default_rng(0)
    x, task = rng.normal(size=(300, 3)), np.repeat(np.arange(3), 100)
    y = (rng.random(300) < 0.5).astype(float)
    y[100:200] = 0.123456
    path = write_npz(tmp_path / "mine.npz", x=x, y=y, task=task)
    found, _ = run(tmp_path / "run", dataset=path, num_clients=3, family="logistic")
    assert found["left-out"] == {"1": "y must be 0 or 1 in every row"}


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_site_that_cannot_be_used_does_not_take_its_nodes_others_with_it(tmp_path, nodes):
    rng = np.random.default_rng(0)
    x, task = rng.normal(size=(300, 2)), np.repeat(np.arange(3), 100)
    y = x @ [1, 2] + rng.normal(size=300)
    x[250, 1] = np.nan
    path = write_npz(tmp_path / "mine.npz", x=x, y=y, task=task)
    found, kept = run(tmp_path / "run", dataset=path, num_clients=3, nodes=nodes)
    assert list(found["left-out"]) == ["2"]
    assert (sorted(kept), found["clients"]["ids"]) == ([0, 1], [0, 1])


def test_wide_claims_of_one_site_widen_intervals_by_a_bounded_amount(tmp_path):
    special = {"num_clients": 40, "nodes": 40, "site_weights": "equal"}
    honest, _ = run(tmp_path / "honest", **special)

    def lie(client, reply):
        return with_arrays(reply, scale=np.full((1, 21), 1e300)) if client == 4 else reply

    found, _ = run(tmp_path / "lied", grid=odd(lie), **special)
    widths = [
        np.array(f["shared"]["high"], float) - np.array(f["shared"]["low"], float)
        for f in (honest, found)
    ]
    assert np.isfinite(widths[0]).sum() > 15
    assert (np.nan_to_num(widths[1]) < 4 * np.nan_to_num(widths[0], nan=1.0)).all()


def test_one_site_without_noise_does_not_speak_where_it_knows_nothing(tmp_path):
    def lie(client, reply):
        scale = reply.content.array_records[SITES]["scale"].numpy().copy()
        scale[0, 0] = np.inf
        sure = {"sigma": np.zeros(1), "freedom": np.array([np.inf])}
        return with_arrays(reply, scale=scale, **sure) if client == 4 else reply

    found, _ = run(tmp_path / "run", grid=odd(lie))
    assert found["sites"] == SITES_THERE


def test_clients_that_nobody_asked_for_have_no_vote(tmp_path):
    experiment = settings(num_clients=2, min_clients=2)
    data = table_data(settings(num_clients=6))
    honest = TableSites(experiment, data, RamStore())
    other = TableSites(experiment, data._replace(columns=[f"q{k}" for k in range(20)]), RamStore())

    class Both(InProcessGrid):
        def push_messages(self, messages):
            names = []
            for message in messages:
                self._host = other if message.metadata.dst_node_id == 3 else honest
                names += super().push_messages([message])
            return names

    grid = Both(honest, [[0], [1], [2, 3, 4, 5]])
    found = exchange(grid, experiment, tmp_path / "run", engine="vectorized")
    assert (found["sites"], found["left-out"]) == (2, {})
    assert found["shared"]["names"][0] == "x0"


def test_a_run_that_goes_on_keeps_its_columns(tmp_path):
    experiment = settings(num_clients=3)
    data = table_data(experiment)
    backwards = data._replace(columns=data.columns[::-1])
    grids = [
        InProcessGrid(TableSites(experiment, d, RamStore()), [[0], [1], [2]])
        for d in (data, backwards)
    ]
    exchange(grids[0], experiment, tmp_path / "run", engine="vectorized")
    again = settings(num_clients=3, resume=str(tmp_path / "run"))
    with pytest.raises(RunStopped, match="0 of 1 sites can take part; client 0: its column 0 is"):
        exchange(grids[1], again, tmp_path / "run", engine="vectorized")


def test_scores_that_are_no_numbers_leave_the_means_of_the_others(tmp_path):
    def change(client, reply):
        if client == 1:
            reply.content.config_records["clients"]["own"] = [float("nan")]
        if client == 2:
            reply.content.config_records["clients"]["personal"] = [float("inf")]
        if client == 3:
            reply.content.config_records["clients"]["rows"] = [2**63 - 1]
        return reply

    found, _ = run(tmp_path / "run", grid=odd(change, kind=MessageType.EVALUATE))
    assert found["scored"] == SITES_THERE - 3
    assert found["loss-personal"] > 0
    assert "held-out loss" in in_words(found)


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


def test_claims_of_precision_are_named_and_buy_nothing_where_all_count_alike(tmp_path, caplog):
    def lie(client, reply):
        coef, tiny, sure = np.full((1, 21), 7.0), np.array([1e-9]), np.array([np.inf])
        return with_arrays(reply, coef=coef, sigma=tiny, freedom=sure)

    grid = odd(lambda client, reply: lie(client, reply) if client == 2 else reply)
    caplog.set_level("WARNING", logger="flwr.engram")
    found, _ = run(tmp_path / "taken-in", grid=grid)
    assert set(found["shared"]["coef"]) == {7.0}
    # Its 99 degrees of freedom, which are all that it can have, are set beside 4 of what is usual.
    assert "client 2 has 74 % of the median's weight" in caplog.text
    found, _ = run(tmp_path / "not", grid=grid, site_weights="equal")
    assert max(np.abs(found["shared"]["coef"])) < 1


def test_nothing_that_leaves_a_site_has_rows_in_it(tmp_path):
    shapes = set()

    def look(client, reply):
        for name, record in reply.content.array_records.items():
            shapes.update((name, array, record[array].shape) for array in record)
        return reply

    run(tmp_path / "run", grid=odd(look))
    assert shapes == {
        (SITES, "coef", (1, 21)),
        (SITES, "scale", (1, 21)),
        (SITES, "size", (1,)),
        (SITES, "sigma", (1,)),
        (SITES, "freedom", (1,)),
    }
    found = set()

    def look_again(client, reply):
        found.update(reply.content.array_records, reply.content.config_records["clients"])
        return reply

    run(tmp_path / "again", grid=odd(look_again, kind=MessageType.EVALUATE))
    about = {"server-round", "ids", "failed", "reasons", "noted", "notes"}
    assert found == about | {"rows", "own", "shared", "personal"}


def test_scores_that_are_nonsense_are_left_out(tmp_path, caplog):
    def change(client, reply):
        if client == 1:
            reply.content.config_records["clients"]["own"] = [1.0, 2.0]
        if client == 3:
            del reply.content.config_records["clients"]["rows"]
        return reply if client != 5 else error_instead(reply, "no room")

    caplog.set_level("WARNING", logger="flwr.engram")
    found, _ = run(tmp_path / "run", grid=odd(change, kind=MessageType.EVALUATE))
    assert found["clients"]["ids"] == [c for c in range(SITES_THERE) if c not in (1, 3, 5)]
    assert "client 5 lacks scores: no room" in caplog.text
