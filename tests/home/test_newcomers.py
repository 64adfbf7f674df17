"""Models for clients that never took part: what the protocol says of unseen ones, and honestly."""

import shutil
from itertools import cycle, product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

import engram
from engram.api import load_run
from engram.data.tables.tables import table_data
from engram.home.exported import load_model
from engram.home.exporting import adapted_into
from engram.home.network_package import adapted, cross_validated, newcomer_of
from engram.home.predicting import predict
from engram.scoring.query_rows import query_rows
from engram.settings.errors import DataError, Refused
from engram.tables import MolarRegressor
from tests.samples import EIGHT, entry, sampled

QUICK = {"num_rounds": 3, "local_steps": 2, "hidden": "6", "progress": False, "adapt_steps": 4}


def hospitals(count=6, rows=40, seed=0):
    """Two kinds of hospitals, which call the same thing by other names."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count * rows, 3)).astype(np.float32)
    site = np.repeat(np.arange(count), rows)
    y = np.where(np.where(site % 2, x[:, 0], x[:, 1]) > 0, "ill", "well")
    frame = pd.DataFrame(x, columns=["age", "dose", "weight"])
    return frame.assign(sex=rng.choice(["f", "m"], len(y)), site=[f"s{s}" for s in site], state=y)


def run_on(frame, folder, **settings):
    frame.to_csv(folder / "hospitals.csv", index=False)
    columns = {"task_column": "site", "target_column": "state"}
    data = {"dataset": f"csv:{folder / 'hospitals.csv'}", "partition": "natural", "num_clients": 6}
    return engram.simulate(
        out=folder / "run", **QUICK | data | columns | {"clients_per_round": 3} | settings
    )


ADAPTING = ["fedavg", "fedper", "knn-per", "ifca", "fedem", "pfedhn", "ditto", "local-moml"]
ADAPTING += ["fedpac", "feddbe", "gpfl", "local", "scaffold", "fedproto"]


PROTOCOLS = ("standard", "few-shot")


@pytest.mark.parametrize(
    ("method", "protocol"),
    sampled(product(ADAPTING, PROTOCOLS), list(zip(EIGHT, cycle(PROTOCOLS), strict=False))),
)
def test_a_newcomer_is_served_as_the_protocol_scores_unseen_clients(method, protocol, tmp_path):
    own = {"initial_batch_size": 3} if method == "local-moml" else {}
    run = run_on(hospitals(), tmp_path, method=method, unseen_clients=1, protocol=protocol, **own)
    (client,) = run.results["unseen"]
    data, frame = run.learned.data, hospitals()
    queries = query_rows(run.experiment, data.test, client)
    # Its rows, in a file that nobody else is in, in the order in which they are drawn from.
    votes = run.learned.newcomers().neighbors is not None  # of them all
    few = protocol == "few-shot" and not votes
    support = np.setdiff1d(data.test.rows[client], queries)
    learned = support if few else data.train.rows[client]
    split = data.test if few else data.train
    x, _ = split.take(torch.from_numpy(learned), exact=True)
    order = [row_of(frame, row) for row in x[:, :3].numpy()]
    frame.iloc[order].drop(columns="site").to_csv("new.csv", index=False)
    newcomer = newcomer_of(run.learned, (tmp_path / "new.csv").relative_to(tmp_path))
    torch.testing.assert_close(newcomer.x, x)
    module = adapted(run.learned, newcomer, np.arange(newcomer.size), client)
    x, y = data.test.take(torch.from_numpy(queries))
    loss = float(nn.functional.cross_entropy(module(x), y))
    assert loss == pytest.approx(run.results["clients"]["loss"][client], abs=1e-5)


def row_of(frame, x):
    return int(np.argmin(np.abs(frame[["age", "dose", "weight"]].to_numpy() - x).sum(1)))


def test_folds_are_of_other_rows_and_every_row_is_predicted_once(tmp_path):
    run = run_on(hospitals(), tmp_path, method="fedavg")
    hospitals().iloc[:12].to_csv("new.csv", index=False)
    newcomer = newcomer_of(run.learned, tmp_path / "new.csv")
    seen = []

    def fit(rows):
        seen.append(set(rows.tolist()))
        held_out = set(range(12)) - seen[-1]
        return lambda x: torch.full((len(x), 2), float(min(held_out)))

    outputs = cross_validated(newcomer, fit, seed=0)
    assert [len(rows) for rows in seen] == [9, 9, 10, 10, 10]
    left_out = [set(range(12)) - rows for rows in seen]
    assert set().union(*left_out) == set(range(12))
    for fold in left_out:
        assert outputs[sorted(fold), 0].tolist() == [min(fold)] * len(fold)


def test_a_newcomers_model_stands_beside_what_else_it_could_have(tmp_path):
    run = run_on(hospitals(), tmp_path, method="fedavg", eta=0.3, num_rounds=30)
    hospitals(seed=3).iloc[40:80].to_csv("elm.csv", index=False)
    folder, package = adapted_into(run.learned, "elm.csv", None, "safetensors")
    assert folder.name == "elm-model"
    told = {(rows, metric): float(value) for rows, metric, value, _ in package.scores}
    named = ["adapted, cross-validated", "these rows alone, cross-validated", "the common model"]
    assert [rows for rows, metric in told if metric == "accuracy"] == named
    # A network of forty rows alone, trained for thirty rounds, tells them apart.
    assert told[named[1], "accuracy"] > 0.7
    text = (folder / "card.md").read_text()
    for rows, metric, value, ends in package.scores:
        assert f"| {rows} | {metric} | {value} | {ends} |" in text
    x = newcomer_of(run.learned, tmp_path / "elm.csv").x
    assert load_model(folder)(x).shape == (40, 2)


def test_a_newcomer_without_targets_gets_the_common_model(tmp_path):
    run = run_on(hospitals(), tmp_path, method="local-moml", initial_batch_size=3)
    hospitals().iloc[:9].drop(columns=["site", "state"]).to_csv("new.csv", index=False)
    folder = run.adapt("new.csv")
    state = load_model(folder).network.state_dict()
    assert all(torch.equal(leaf, run.model[name]) for name, leaf in state.items())
    assert "The rows have no targets: it is the common model" in (folder / "card.md").read_text()


def test_arrays_and_images_are_rows_of_newcomers_too(tmp_path):
    rng = np.random.default_rng(0)
    for site, kind, number in np.ndindex(3, 2, 10):
        place = tmp_path / "photos" / f"site{site}" / ("lying", "standing")[kind]
        place.mkdir(parents=True, exist_ok=True)
        photo = rng.integers(0, 200, (6, 6), dtype=np.uint8)
        photo[:: 2 if kind else 1] //= 2
        Image.fromarray(photo).save(place / f"{number}.png")
    given = {"dataset": "images:photos", "method": "fedavg", "partition": "natural", "out": "run"}
    run = engram.simulate(num_clients=3, clients_per_round=3, **given | QUICK)
    newcomer = newcomer_of(run.learned, tmp_path / "photos" / "site1")
    assert newcomer.size == 20
    assert newcomer.y.tolist() == [0] * 10 + [1] * 10
    assert newcomer_of(run.learned, tmp_path / "photos" / "site1" / "lying").y is None
    np.savez("new.npz", x=(newcomer.x[:, 0] * 255).round().to(torch.uint8), y=newcomer.y)
    again = newcomer_of(run.learned, tmp_path / "new.npz")
    torch.testing.assert_close(again.x, newcomer.x)
    assert again.y.tolist() == newcomer.y.tolist()
    odd = shutil.copytree(tmp_path / "photos" / "site1", tmp_path / "odd")
    (odd / "lying").rename(odd / "tilted")
    with pytest.raises(DataError, match=r"class must be one of lying, standing .*, got 'tilted'"):
        newcomer_of(run.learned, odd)


# --- Tables -------------------------------------------------------------------------------------


@pytest.fixture
def tables(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 2))
    site = np.repeat(["park", "lake", "hill"], 100)
    y = x @ [1.0, -2.0] + 3 + 2 * (site == "lake") * x[:, 0] + 0.3 * rng.normal(size=300)
    frame = pd.DataFrame(x, columns=["age", "dose"]).assign(site=site, pressure=y)
    frame.to_csv("tables.csv", index=False)
    return frame


def regress(**settings):
    columns = {"task_column": "site", "target_column": "pressure", "num_clients": 3}
    given = {"dataset": "csv:tables.csv", "method": "molar", "out": "run", "progress": False}
    return engram.simulate(**given | columns | settings)


def test_a_site_that_comes_later_has_the_coefficients_of_a_transfer(tables):
    run = regress()
    new = tables.iloc[100:130]
    new.drop(columns="site").to_csv("new.csv", index=False)
    module = load_model(run.adapt("new.csv"))
    data = [(rows.x, rows.y) for rows in table_data(run.experiment).train]
    x, y = (np.concatenate(part) for part in zip(*data, strict=True))
    task = np.repeat(["hill", "lake", "park"], [len(own) for _, own in data])
    whole = MolarRegressor().fit(x, y, task)
    more = whole.transfer(new[["age", "dose"]].to_numpy(), new["pressure"], "elm")
    np.testing.assert_allclose(module.layer0.weight[0].tolist(), more.coef_[-1], rtol=1e-9)
    np.testing.assert_allclose(module.layer0.bias.tolist(), more.intercept_[-1], rtol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"sharing": "adaptive"}], ids=["median", "adaptive"])
def test_a_table_of_a_newcomer_is_cross_validated(tables, settings):
    run = regress(**settings)
    tables.iloc[:30].drop(columns="site").to_csv("new.csv", index=False)
    _, package = adapted_into(run.learned, "new.csv", None, "safetensors")
    losses = [float(value) for _, _, value, _ in package.scores]
    assert len(losses) == 3
    assert all(0.03 < loss < 0.3 for loss in losses)  # the noise's variance is 0.09
    tables.iloc[:5].drop(columns=["site", "pressure"]).to_csv("bare.csv", index=False)
    _, bare = adapted_into(run.learned, "bare.csv", None, "safetensors")
    coef = bare.module.layer0.weight[0].tolist()
    assert coef == run.results["shared"]["coef"][:2]


def test_a_newcomers_table_comes_in_any_format(tables):
    run = regress()
    new = tables.iloc[100:130]
    x, y = new[["age", "dose"]].to_numpy(), new["pressure"].to_numpy()
    new[["site", "pressure", "dose", "age"]].to_csv("mixed.csv", index=False)  # by name
    np.savez("plain.npz", x=x, y=y)
    wide = {"x_names": ["age", "dose"], "y_names": ["pulse", "pressure"]}
    np.savez("named.npz", x=x, y=np.stack([0 * y, y], axis=1), **wide)
    Path("folder").mkdir()
    np.save("folder/x.npy", x)
    np.save("folder/y.npy", y)
    found = []
    for name in ("mixed.csv", "plain.npz", "named.npz", "folder"):
        model = run.adapt(name, out=f"of-{name}")
        rows = predict(model, Path(name), Path(f"{name}-predictions.csv")).table
        found.append((load_model(model).layer0.weight[0].tolist(), rows["predicted"].tolist()))
    for weights, values in found:
        np.testing.assert_allclose(weights, found[0][0], rtol=1e-9)
        np.testing.assert_allclose(values, found[0][1], rtol=1e-9)
    (Path("folder") / "y.npy").unlink()
    _, bare = adapted_into(run.learned, "folder", None, "safetensors")
    assert bare.module.layer0.weight[0].tolist() == run.results["shared"]["coef"][:2]


# --- Refusals -----------------------------------------------------------------------------------


def test_rows_that_are_others_are_refused_in_one_line(tmp_path, tables):
    run = run_on(hospitals(), tmp_path, method="fedavg")
    odd = hospitals().iloc[:8].rename(columns={"age": "years"})
    odd.to_csv("odd.csv", index=False)
    with pytest.raises(DataError, match="has no column 'age'; it has years, site, state"):
        run.adapt("odd.csv")
    hospitals().iloc[:8].assign(state="dead").to_csv("odd.csv", index=False)
    with pytest.raises(DataError, match=r"state must be one of ill, well .*, got 'dead' in row 0"):
        run.adapt("odd.csv")
    np.savez("odd.npz", x=np.zeros((4, 9)), y=np.zeros(4, int))
    with pytest.raises(DataError, match=r"must hold rows of float32\[5\], got float32\[9\]"):
        run.adapt("odd.npz")
    with pytest.raises(DataError, match=r"none\.csv cannot be read: No such file"):
        run.adapt("none.csv")
    (tmp_path / "run" / "results.json").unlink()
    with pytest.raises(Refused, match="run is not finished: resume it first"):
        load_run(tmp_path / "run").adapt("odd.csv")


def test_a_client_that_has_a_name_is_not_found_by_its_number(tmp_path):
    learned = run_on(hospitals(), tmp_path, method="fedavg").learned
    assert learned.number("s2") == learned.number(" s2\n") == 2
    for stranger in ("s6", "2", 2):
        with pytest.raises(Refused, match=rf"client must be one of s0, s1, .*, got {stranger!r}"):
            learned.number(stranger)


@pytest.mark.usefixtures("tables")
def test_arrays_that_are_other_tables_are_refused():
    run = regress()
    for arrays, message in [
        ({"x_names": ["Dose", "age"]}, "has no column 'dose'; it has Dose, age"),
        ({"x": np.zeros((4, 3))}, "x_names must name 3 columns, got age, dose"),
        ({"x": np.full((4, 2), np.nan)}, "age is missing in row 0, dose is missing in row 0: the"),
        ({"x": np.full((4, 2), np.inf)}, "age is infinite in row 0"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "must hold some rows"),
        ({"y": np.zeros(3)}, "y must have 4 rows, as x has, got 3"),
        ({"y": np.array(["a"] * 4)}, "y must be one number a row, got <U1"),
    ]:
        np.savez("odd.npz", **({"x": np.zeros((4, 2)), "y": np.zeros(4)} | arrays))
        with entry(message), pytest.raises(DataError, match=message):
            run.adapt("odd.npz")
    Path("empty").mkdir()
    with pytest.raises(DataError, match="empty must hold x; it holds no arrays"):
        run.adapt("empty")


@pytest.mark.parametrize("rows", [9, 20])
def test_intervals_of_newcomers_with_few_rows_hold_new_ones(rows, tmp_path):
    rng, count = np.random.default_rng(rows), 25
    center = rng.normal(size=4)

    def drawn(size):
        x = rng.normal(size=(size, 4))
        return x, x @ (center + rng.normal(size=4) / 2) + rng.standard_t(4, size)

    run = engram.simulate([drawn(80) for _ in range(10)], method="molar", progress=False)
    held = []
    for newcomer in range(count):
        x, y = drawn(rows + 200)
        np.savez("new.npz", x=x[:rows], y=y[:rows])
        np.savez("rows.npz", x=x[rows:])
        model = run.adapt("new.npz", out=f"new-{newcomer}")
        found = predict(model, tmp_path / "rows.npz", tmp_path / f"{newcomer}.csv", 0.9).table
        held.append(((found["low"] <= y[rows:]) & (y[rows:] <= found["high"])).mean())
    # A calibration by n rows that are new to one model holds Beta(k, n + 1 - k), k = ceil((n + 1)
    # 0.9): 0.9 and 0.905 in the mean. By cross-validation it is about that, and some more.
    k = np.ceil((rows + 1) * 0.9)
    share, spread = k / (rows + 1), np.sqrt(k * (rows + 1 - k) / (rows + 2)) / (rows + 1)
    assert share - 3 * spread / np.sqrt(count) < np.mean(held) < share + 0.05
