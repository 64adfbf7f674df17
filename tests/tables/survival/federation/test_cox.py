"""Cox's model between sites: R's figures from a few exchanges, curves to take home, refusals."""

import numpy as np
import pandas as pd
import pytest

import engram
from engram.client.hosts import host_of
from engram.client.memory import RamStore
from engram.compare.reports.base import plots_of
from engram.data.tables.tables import table_data
from engram.guards.secure.quantize import narrow
from engram.guards.secure.secure_sum import MASKED
from engram.home.predicting import predict
from engram.runs.run import Run
from engram.server.run import run as run_on
from engram.settings.errors import DataError, Refused, RunStopped
from engram.simulations.engine import simulate
from engram.simulations.grid import InProcessGrid
from engram.tables import CoxRegressor, survival_target
from engram.tables.site import Rows
from engram.tables.survival.baseline import baseline_hazard
from engram.tables.survival.federation.host import CoxSites
from engram.tables.survival.federation.report import site_table
from engram.tables.survival.newton import fit
from tests.guards.secure.test_secure import Between
from tests.support import small
from tests.tables.federation.sites import odd, with_arrays
from tests.tables.survival.figures import HERE, figures, rows_of
from tests.tables.survival.sites import COEF, draw_sites

ROLES = {name: name for name in ("event", "time", "entry", "weight")}


def schema_of(figure, **more):
    """Names the roles of a figure's columns; a weight that R had not is ignored."""
    rows = rows_of(figure)[1]
    roles = {name: f'role = "{name}"' for name in ROLES if name in rows}
    roles |= {} if figure["weighted"] or "weight" not in rows else {"weight": 'kind = "ignored"'}
    return "\n".join(f"columns.{name} = {{{text}}}" for name, text in (roles | more).items())


def settings(figure, **special):
    given = {"method": "cox", "dataset": f"csv:{HERE / figure['rows']}.csv", "timeout": 1.0}
    given |= {"task_column": "site", "test_fraction": 0, "ties": figure["ties"]}
    given |= {"num_clients": rows_of(figure)[1]["site"].nunique(), "schema": schema_of(figure)}
    return small(**given | special)


def run(folder, e, *, grid=InProcessGrid, least=1):
    """Runs sites on a grid that may change their replies; returns results and memories."""
    store = RamStore()
    sites = CoxSites(e, table_data(e), store, least=least)
    g = grid(sites, [[client] for client in range(e.num_clients)])
    return run_on(g, e, folder, engine="vectorized", memories=store), store


def test_exchanges_give_the_figures_of_r(tmp_path):
    wanted = [("cgd", "efron", True), ("sites3", "breslow", True), ("sites20", "efron", False)]
    for figure in figures():
        if (figure["rows"], figure["ties"], figure["weighted"]) not in wanted:
            continue
        e, folder = settings(figure), tmp_path / figure["rows"]
        found, store = run(folder, e)
        assert 3 <= found["exchanges"] <= 6
        assert found["settled"]
        assert found["events"] == figure["events"]
        np.testing.assert_allclose(found["shared"]["coef"], figure["coef"], rtol=0, atol=1e-6)
        errors = np.sqrt(np.diag(np.reshape(figure["variance"], (3, 3))))
        np.testing.assert_allclose(found["shared"]["error"], errors, rtol=1e-6)
        logliks = found["null-loglik"], found["loglik"]
        np.testing.assert_allclose(logliks, figure["loglik"], atol=1e-6)
        x, rows, weights, site = rows_of(figure)
        y = survival_target(rows.event, rows.time, rows.entry)
        model = CoxRegressor(ties=figure["ties"]).fit(x, y, site, weights)
        for client, baseline in enumerate(model.baselines_):
            time, hazard = store.load(client, before=10)["baseline"].numpy()
            np.testing.assert_array_equal(time, baseline.time)
            np.testing.assert_allclose(hazard, baseline.hazard, rtol=1e-6)
        (folder / "results.json").unlink()  # as if it had been killed
        again, _ = run(folder, e.model_copy(update={"resume": str(folder)}))
        np.testing.assert_allclose(again["shared"]["coef"], figure["coef"], rtol=0, atol=1e-6)


def test_a_site_takes_curves_home_and_a_newcomer_has_its_own(tmp_path):
    figure = next(f for f in figures() if f["rows"] == "veteran" and f["weighted"])
    rows = rows_of(figure)[1].assign(died=lambda r: r.event.map({0: "no", 1: "yes"}))
    rows.drop(columns="event").to_csv(tmp_path / "rows.csv", index=False)
    died = {"event": "", "died": 'role = "event", values = ["no", "yes"]'}
    lines = schema_of(figure, **died).replace("columns.event = {}\n", "")
    table = {"dataset": f"csv:{tmp_path / 'rows.csv'}", "task_column": "site", "schema": lines}
    found = engram.simulate(**table, method="cox", out=tmp_path / "run", progress=False)
    assert 0.5 < found.results["concordance-shared"] < 1
    data = table_data(found.learned.experiment)
    strata = [(own.x, survival_target(own.event, own.y), own.weights) for own in data.train]
    x, y, weights = (np.concatenate(part) for part in zip(*strata, strict=True))
    site = np.repeat(range(4), [len(own) for own, *_ in strata])
    model = CoxRegressor().fit(x, y, site, weights)
    np.testing.assert_allclose(found.results["shared"]["coef"], model.coef_, rtol=1e-9)
    test = data.test[1]
    right = model.score(
        test.x, survival_target(test.event, test.y), np.ones(len(test.y), int), test.weights
    )
    assert found.results["clients"]["concordance-shared"][1] == pytest.approx(right, rel=1e-12)
    for form in ("safetensors", "onnx"):
        found.export(3, out=tmp_path / form, format=form)
        new = rows[rows.site == 3].head(5)[["trt", "karno", "age"]]
        new.to_csv(tmp_path / "new.csv", index=False)
        out = predict(tmp_path / form, tmp_path / "new.csv", tmp_path / f"{form}.csv").table
        curves = model.predict_survival_function(new.to_numpy(), np.full(5, 3))
        names = [name for name in out if "survival at" in name]
        times = [float(name.rpartition(" ")[2]) for name in names]
        assert 10 <= len(times) <= 25
        expected = [curve(np.array(times)) for curve in curves]
        np.testing.assert_allclose(out[names], expected, rtol=1e-6)
    assert "hazard ratio" in (tmp_path / "onnx" / "coefficients.csv").read_text().splitlines()[0]
    own = rows[rows.site == 2]
    own.drop(columns=["event", "site"]).to_csv(tmp_path / "newcomer.csv", index=False)
    found.adapt(tmp_path / "newcomer.csv", out=tmp_path / "adapted")
    out = predict(tmp_path / "adapted", tmp_path / "new.csv", tmp_path / "adapted.csv").table
    x, died = own[["trt", "karno", "age"]].to_numpy(float), (own.died == "yes").to_numpy()
    new_rows = Rows(x, own.time.to_numpy(), own.weight.to_numpy(), died)
    baseline = baseline_hazard(new_rows, model.coef_)
    for name in (name for name in out if "survival at" in name):
        at = float(name.rpartition(" ")[2])
        curves = [baseline.survival(eta)(at) for eta in model.predict(new.to_numpy())]
        np.testing.assert_allclose(out[name], curves, rtol=1e-6)


def test_small_and_lying_sites_are_left_out_by_name(tmp_path):
    figure = next(f for f in figures() if f["rows"] == "lung" and f["ties"] == "efron")
    rows, e = rows_of(figure)[1], settings(figure)
    found, _ = run(tmp_path / "plain", e, least=5)
    events = rows.groupby("site").event.sum().reset_index(drop=True)
    assert {*map(int, found["left-out"])} == {*events.index[events < 5]}
    assert "it has fewer than 5 events (least-count)" in found["left-out"]["1"]
    large = rows[rows.site.map(rows.groupby("site").event.sum()) >= 5]
    y = survival_target(large.event, large.time)
    model = CoxRegressor().fit(large[figure["columns"]], y, large.site)
    np.testing.assert_allclose(found["shared"]["coef"], model.coef_, rtol=1e-8)

    def lies(client, reply):
        sums, dim = reply.content["sites"]["sums"].numpy().copy(), len(figure["columns"])
        sums[:, 1] *= 1e6 if client == 4 else 1  # events
        sums[:, 2 + dim :] *= -1 if client == 3 else 1  # information
        return None if client == 5 else with_arrays(reply, sums=sums)

    found, _ = run(tmp_path / "lies", e, grid=odd(lies), least=1)
    assert found["left-out"]["3"] == "its information is none of a likelihood"
    assert "events of" in found["left-out"]["4"]
    assert found["left-out"]["5"] == "no reply"


class Leaves(Between):
    """A host of whose sites the first is gone after an exchange."""

    def train(self, requests):
        found = super().train(requests)
        self._out = {0}
        return found


def test_a_site_with_four_events_takes_part_in_secure_sums_alone(tmp_path):
    sites = draw_sites([COEF] * 4, 80)
    four = sites[3].event & (np.cumsum(sites[3].event) <= 4)
    sites[3] = sites[3]._replace(event=four)
    parts = [pd.DataFrame({"a": s.x[:, 0], "b": s.x[:, 1], "time": s.y, "event": s.event * 1,
                           "site": f"s{m}"}) for m, s in enumerate(sites)]  # fmt: skip
    pd.concat(parts).to_csv(tmp_path / "rows.csv", index=False)
    schema = 'columns.time = {role = "time"}\ncolumns.event = {role = "event"}'
    given = {"method": "cox", "dataset": f"csv:{tmp_path / 'rows.csv'}", "task_column": "site",
             "test_fraction": 0, "num_clients": 4, "schema": schema}  # fmt: skip
    asked, between = given | {"aggregation": "secure"}, []

    def run_here(e, folder, stands=Between):
        def through(host):
            between.append(stands(host))
            return between[-1]

        def opens(opening):
            return host_of(opening._replace(least_scored=5))

        return simulate(e, folder, through=through, opens=opens)

    words = "it has fewer than 5 events (least-count), whose sums would tell of each: "
    words += "set aggregation=secure, for the sum over sites alone"
    plain = run_here(small(**given), tmp_path / "plain")
    assert plain["left-out"] == {"3": words}
    for firth in (True, False):
        found = run_here(small(**asked, firth=firth), tmp_path / f"secure-{firth}")
        wanted = fit(sites, penalized=firth)
        assert (found["sites"], found["left-out"], found["settled"]) == (4, {}, True)
        assert found["events"] == wanted.sums.events == sum(s.event.sum() for s in sites)
        np.testing.assert_allclose(found["shared"]["coef"], wanted.coef, rtol=1e-12)
        np.testing.assert_allclose(found["shared"]["error"], wanted.standard_error, rtol=1e-12)
        assert found["loglik"] == pytest.approx(wanted.sums.loglik, rel=1e-13)
    sent = [reply.content["sites"] for stage, reply in between[-1].replies if stage == "train"]
    assert all({*each} == {MASKED} for each in sent)
    masked = narrow(sent[3][MASKED].numpy().view(np.uint32))
    assert (np.abs(masked) > 1e30).all()  # of uniform words, and not of a log-likelihood
    other = tmp_path / "other"
    with pytest.raises(RunStopped, match="sites of a sum must be those of the first sum of"):
        run_here(small(**asked), other, stands=Leaves)
    found = run_here(small(**asked, resume=str(other)), other)
    np.testing.assert_allclose(found["shared"]["coef"], wanted.coef, rtol=1e-12)
    with pytest.raises(Refused, match="needs that the server takes the mean of updates alone"):
        small(**asked, sharing="adaptive")


def test_sharing_and_naming_between_nodes_are_those_of_all_rows(tmp_path):
    sites = draw_sites([COEF, np.add(COEF, [2.0, 0]), COEF, COEF, np.subtract(COEF, [0, 0.3])], 90)
    parts = [pd.DataFrame({"a": s.x[:, 0], "b": s.x[:, 1], "time": s.y, "event": s.event * 1,
                           "site": f"s{m}"}) for m, s in enumerate(sites)]  # fmt: skip
    rows = pd.concat(parts)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    schema = 'columns.time = {role = "time"}\ncolumns.event = {role = "event"}'
    e = small(method="cox", dataset=f"csv:{tmp_path / 'rows.csv'}", task_column="site", timeout=1.0,
              test_fraction=0.1, num_clients=5, schema=schema, sharing="adaptive")  # fmt: skip
    strata = table_data(e).train
    x, time, event = (np.concatenate([one[i] for one in strata]) for i in (0, 1, 3))
    site = np.repeat([f"s{m}" for m in range(5)], [len(one.y) for one in strata])
    y = survival_target(event, time)
    model = CoxRegressor(sharing="adaptive").fit(x, y, site)
    wanted = model.compare_sites(x, y, site)
    asked = []

    def drops(client, reply):
        asked.append(client)
        return None if client == 3 and asked.count(3) == 7 else reply

    for n, grid in enumerate((odd(drops), InProcessGrid)):  # a site is silent once, in the search
        found, store = run(tmp_path / f"run-{n}", e, grid=grid)
        assert found["settled"]
        assert found["exchanges"] < 40
        hull = wanted.shared.all_but_one
        np.testing.assert_allclose(found["all-but-one"], hull, rtol=1e-9)
        named = [(d["site"], d["column"]) for d in found["differences"]]
        assert named[0] == ("s1", "a")
        assert named == [(f"s{d.site}", "ab"[d.column]) for d in wanted.naming.differences]
        for mine, one in zip(found["differences"], wanted.naming.differences, strict=True):
            figures = [mine[key] for key in ("score", "ratio", "p_value")]
            np.testing.assert_allclose(figures, one[2:], rtol=1e-9)
        for client, (coef, own) in enumerate(zip(model.task_coef_, wanted.own, strict=True)):
            memory = store.load(client, before=99)["coefficients"].numpy()
            np.testing.assert_allclose(memory[:, -1], coef, rtol=1e-9)
            np.testing.assert_allclose(memory[:, 3:6].T, [own.coef, *own.limits], rtol=1e-9)
            assert found["estimates"]["low"][client] == memory[:, 4].tolist()
    assert asked.count(3) > 7
    assert set(plots_of(Run.open(tmp_path / "run-1"))) == {"forest"}
    marks = site_table(found, {"method": "cox", "cox.level": 0.95}).columns[4].cells
    places = [(f"s{m}", name) for name in "ab" for m in range(5)]
    assert [bool(mark) for mark in marks] == [place in named for place in places]
    (tmp_path / "run-1" / "results.json").unlink()  # as if it had been killed
    again, _ = run(tmp_path / "run-1", e.model_copy(update={"resume": str(tmp_path / "run-1")}))
    assert again["differences"] == found["differences"]


def test_a_single_exchange_is_approximate_and_takes_large_sites(tmp_path):
    figure = next(f for f in figures() if f["rows"] == "sites3" and not f["weighted"])
    found, _ = run(tmp_path / "one", settings(figure, exchanges=1))
    assert found["approximate"]
    x, rows, _, site = rows_of(figure)
    y = survival_target(rows.event, rows.time, rows.entry)
    alone = [CoxRegressor().fit(x[site == k], y[site == k]) for k in (1, 2, 3)]
    weights = [np.linalg.inv(one.covariance_) for one in alone]
    mean = np.linalg.solve(
        sum(weights), sum(w @ m.coef_ for w, m in zip(weights, alone, strict=True))
    )
    np.testing.assert_allclose(found["shared"]["coef"], mean, rtol=1e-8)
    assert np.abs(found["shared"]["coef"] - np.array(figure["coef"])).max() > 1e-4
    few = next(f for f in figures() if f["rows"] == "cgd" and not f["weighted"])
    with pytest.raises(RunStopped, match="fewer than 30 events, which are too few for a single"):
        run(tmp_path / "few", settings(few, exchanges=1))


def test_a_group_without_an_event_takes_firths_penalty(tmp_path):
    figure = next(f for f in figures() if f["rows"] == "cgd" and f["weighted"])
    x, rows, weights, site = rows_of(figure)
    rows = rows.assign(event=rows.event * (rows.treat == 0))
    rows.to_csv(tmp_path / "apart.csv", index=False)
    apart = {"dataset": f"csv:{tmp_path / 'apart.csv'}"}
    words = r"no maximum: .* coefficient of treat \(down\).* penalty.*cox.firth=true"
    with pytest.raises(RunStopped, match=words):
        run(tmp_path / "none", settings(figure, **apart))
    found, _ = run(tmp_path / "firth", settings(figure, **apart, firth=True))
    y = survival_target(rows.event, rows.time, rows.entry)
    model = CoxRegressor(firth=True, ties=figure["ties"]).fit(x, y, site, weights)
    np.testing.assert_allclose(found["shared"]["coef"], model.coef_, rtol=1e-9)
    assert -10 < model.coef_[0] < -2


def test_settings_and_schemas_that_name_no_survival_are_refused(tmp_path):
    figure = figures()[0]
    lines = schema_of(figure)
    faults = {
        "schema must name the column of the event: write columns.NAME": lines.replace(
            'columns.event = {role = "event"}', ""
        ),
        "schema must name the column of the time": lines.replace(
            'role = "time"', 'kind = "number"'
        ),
        "column sex must hold 0 .censored. and 1 .event., or two": lines.replace(
            "columns.event", 'columns.event = {kind = "ignored"}\ncolumns.sex'
        ),
    }
    for words, schema in faults.items():
        with pytest.raises(DataError, match=words):
            table_data(settings(figure, schema=schema))
    given = {"method": "molar", "dataset": f"csv:{HERE / 'lung.csv'}", "task_column": "site"}
    with pytest.raises(DataError, match=r"time is a time of events .* a method of survival"):
        table_data(small(**given, num_clients=18, schema=lines))
