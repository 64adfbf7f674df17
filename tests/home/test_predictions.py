"""Predictions of rows: the same as the model's, and refusals of rows that it does not know."""

import csv
import hashlib
import io
import json
import re
import stat

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset

import engram
from engram.cli.__main__ import main
from engram.home.exported import load_model
from engram.home.predicting import predict
from engram.settings.errors import DataError, Refused
from engram.wire.checksums import summed
from tests.home.test_newcomers import QUICK, hospitals, run_on
from tests.samples import entry


@pytest.fixture
def model(tmp_path):
    """A model of a table with numbers, text and missing values."""
    frame = hospitals()
    frame.loc[::7, "age"] = np.nan
    frame.loc[3::11, "sex"] = None
    return run_on(frame, tmp_path, method="fedavg", missing="median").export("s1", out="model")


@pytest.mark.parametrize(
    ("kind", "missing"),
    [
        *(("csv", missing) for missing in ("median", "indicator", "refuse")),
        *(("parquet", "indicator"), ("arrow", "median"), ("parquet of numbers", "refuse")),
    ],
)
def test_rows_of_the_run_are_predicted_as_it_saw_them(tmp_path, kind, missing):
    frame = hospitals()
    if missing != "refuse":
        frame.loc[::7, "age"] = np.nan
        frame.loc[3::11, "sex"] = None
    if kind == "parquet of numbers":
        frame = frame.drop(columns="sex")
    format_, path = kind.partition(" ")[0], tmp_path / f"rows.{kind}"
    if format_ != "csv":
        rows = Dataset.from_pandas(frame, preserve_index=False)
        rows.to_parquet(path) if format_ == "parquet" else rows.save_to_disk(path)
    data = {} if format_ == "csv" else {"dataset": f"{format_}:{path}", "data_dir": str(tmp_path)}
    run = run_on(frame, tmp_path, method="fedavg", missing=missing, **data)
    model = run.export("s2", out=tmp_path / "model")
    own = frame[frame["site"] == "s2"]
    own[[*reversed(own.columns)]].to_csv("rows.csv", index=False)  # by name, in another order
    found = predict(model, tmp_path / "rows.csv", tmp_path / "found.csv").table
    assert found["site"].tolist() == ["s2"] * 40
    assert set(found["predicted"]) <= {"ill", "well"}
    both = found["probability ill"] + found["probability well"]
    assert both.tolist() == pytest.approx([1.0] * 40)
    read = pd.read_csv(tmp_path / "found.csv")
    pd.testing.assert_frame_equal(read, found, check_dtype=False)
    data, client = run.learned.data, run.learned.number("s2")
    parts = [(part, part.rows[client]) for part in (data.train, data.validation, data.test)]
    assert sum(len(rows) for _, rows in parts) == 40
    for split, rows in parts:
        x, _ = split.take(torch.from_numpy(rows))
        shares = load_model(model)(x).softmax(-1).double().detach().numpy()
        # The run's rows are in another order: their probabilities are all among those of the file.
        gaps = np.abs(found["probability ill"].to_numpy()[:, None] - shares[:, 0])
        assert gaps.min(axis=0).max() < 1e-6


def test_what_is_wrong_with_rows_is_told_at_once(model, tmp_path):
    rows = hospitals().iloc[:4].drop(columns=["site", "state"])
    rows.rename(columns={"age": "Age", "dose": "Dose"}).to_csv("rows.csv", index=False)
    message = "has no column 'age', 'dose'; it has Age, Dose, weight"
    with pytest.raises(DataError, match=message):
        predict(model, tmp_path / "rows.csv", tmp_path / "out.csv")
    rows.assign(age=["1", "2", "old", "4"], sex="x").to_csv("rows.csv", index=False)
    both = r"column age must hold numbers, got 'old' in row 4; .*sex must hold f, m"
    with pytest.raises(DataError, match=both):
        predict(model, tmp_path / "rows.csv", tmp_path / "out.csv")
    np.savez("rows.npz", x=np.zeros((3, 2)))
    with pytest.raises(DataError, match=r"must hold rows of float32\[5\], got float32\[2\]"):
        predict(model, tmp_path / "rows.npz", tmp_path / "out.csv")
    np.savez("rows.npz", y=np.zeros(3))
    with pytest.raises(DataError, match=r"rows\.npz must hold x; it holds y"):
        predict(model, tmp_path / "rows.npz", tmp_path / "out.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"must hold images, or a file x\.npy, and holds neither"):
        predict(model, tmp_path / "empty", tmp_path / "out.csv")
    with pytest.raises(Refused, match="must be the folder of an exported model"):
        predict(tmp_path / "empty", tmp_path / "rows.csv", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("task", "targets", "columns"),
    [
        ("regression", lambda x: x[:, 0], ["predicted"]),
        ("regression", lambda x: x[:, :2], ["predicted 0", "predicted 1"]),
        ("multi-label", lambda x: (x[:, :2] > 0).astype(int), ["probability 0", "probability 1"]),
    ],
)
def test_what_is_not_a_class_is_predicted_too(task, targets, columns, tmp_path):
    rng = np.random.default_rng(0)
    rows = [(x, targets(x)) for x in rng.normal(size=(3, 30, 4)).astype(np.float32)]
    settings = QUICK | {"task": task, "method": "fedavg", "clients_per_round": 3}
    model = engram.simulate(rows, out="run", **settings).export(1, out="model")
    x = rows[1][0]
    np.save("x.npy", x)
    (tmp_path / "rows").mkdir()
    (tmp_path / "x.npy").rename(tmp_path / "rows" / "x.npy")
    np.savez("rows.npz", x=x)
    found = predict(model, tmp_path / "rows", tmp_path / "one.csv").table
    pd.testing.assert_frame_equal(
        found, predict(model, tmp_path / "rows.npz", tmp_path / "two.csv").table
    )
    assert [name for name in found if name.partition(" ")[0] not in ("low", "high")] == columns
    found = found[columns]
    outputs = load_model(model)(torch.from_numpy(x)).detach().reshape(30, -1)
    outputs = outputs.sigmoid() if task == "multi-label" else outputs
    np.testing.assert_allclose(found.to_numpy(), outputs, rtol=1e-5)


def test_from_a_run_to_a_prediction_by_commands_alone(tmp_path, monkeypatch, capsys):
    hospitals().to_csv("hospitals.csv", index=False)
    pd.DataFrame({"age": [0.1], "dose": [1.5], "weight": [-1.0], "sex": ["f"]}).to_csv(
        "patient.csv", index=False
    )

    def engram_(words):
        monkeypatch.setattr("sys.argv", ["engram", *words.split()])
        main()
        return capsys.readouterr().out.splitlines()

    data = "dataset=csv:hospitals.csv num-clients=6 partition=natural target-column=state"
    quick = "task-column=site num-rounds=2 clients-per-round=3 hidden=6 batch-size=4"
    sets = " ".join(f"--set {word}" for word in f"{data} {quick}".split())
    engram_(f"run fedavg {sets} --out runs/mine")
    last = engram_("export mine --client s3")[-1]
    assert last == "next: engram predict s3-model rows.csv"
    told = engram_("predict s3-model patient.csv")
    assert told == ["predictions.csv: 1 rows of predicted, probability ill, probability well"]
    x = torch.tensor([[0.1, 1.5, -1.0, 1.0, 0.0]])  # sex is one input for each value
    expected = load_model("s3-model")(x).softmax(-1)[0].tolist()
    row = pd.read_csv("predictions.csv").iloc[0]
    assert [row["probability ill"], row["probability well"]] == pytest.approx(expected, rel=1e-6)
    with pytest.raises(SystemExit):
        engram_("predict s3-model patient.csv")  # which is there
    with pytest.raises(SystemExit):
        engram_("export mine")
    hospitals().iloc[:20].to_csv("elm.csv", index=False)
    last = engram_("adapt mine --data elm.csv")[-1]
    assert last == "next: engram predict elm-model rows.csv"
    engram_("predict elm-model patient.csv --out other.csv")


def test_clients_whose_values_all_lack_are_exported(tmp_path):
    frame = hospitals()
    frame.loc[frame["site"] == "s1", ["age", "sex"]] = None
    run = run_on(frame, tmp_path, method="fedavg", missing="median")
    model = run.export("s1", out="model")
    frame[frame["site"] == "s1"].to_csv("rows.csv", index=False)
    found = predict(model, tmp_path / "rows.csv", tmp_path / "out.csv").table
    assert np.isfinite(found["probability ill"]).all()
    adapted = run.adapt(tmp_path / "rows.csv", out="new")
    assert len(predict(adapted, tmp_path / "rows.csv", tmp_path / "other.csv").table) == len(found)


def test_predictions_take_no_columns_place_and_may_be_read_by_others(model, tmp_path):
    rows = hospitals().iloc[:4].drop(columns=["site", "state"])
    rows.assign(predicted=1).to_csv("rows.csv", index=False)
    with pytest.raises(Refused, match=r"rows\.csv has the columns predicted, which predictions"):
        predict(model, tmp_path / "rows.csv", tmp_path / "out.csv")
    rows.to_csv("rows.csv", index=False)
    predict(model, tmp_path / "rows.csv", tmp_path / "out.csv")
    assert stat.S_IMODE((tmp_path / "out.csv").stat().st_mode) == 0o600


def test_a_file_of_something_else_is_refused_in_one_line(model):
    about = json.loads((model / "model.json").read_text())
    about.pop("crc32", None)
    for data in (b"", b"junk"):
        (model / "model.safetensors").write_bytes(data)
        about["sha256"] = hashlib.sha256(data).hexdigest()
        (model / "model.json").write_text(json.dumps(summed(about)))
        with pytest.raises(Refused, match=r"^[^\n]*model\.safetensors: [^\n]*$"):
            load_model(model)


def test_rows_in_other_units_are_predicted_with_a_note(tmp_path):
    frame = hospitals()
    frame["age"] = 50 + 10 * frame["age"]
    frame.loc[::9, "dose"] = None
    run = run_on(frame, tmp_path, method="fedavg", missing="indicator")
    ours = frame[frame["site"] == "s1"]
    ours.to_csv("rows.csv", index=False)
    months = ours.assign(age=12 * ours["age"], dose=None)
    months.to_csv("months.csv", index=False)
    for number, model in enumerate([run.export("s1"), run.export(), run.adapt("rows.csv")]):
        assert predict(model, tmp_path / "rows.csv", tmp_path / f"{number}.csv").notes == []
        table, (note,) = predict(model, tmp_path / "months.csv", tmp_path / f"{number}m.csv")
        assert len(table) == 40
        assert re.search(r"months\.csv lies far from .*\(age: \d+ against \d\d to \d\d\): ", note)
        assert "`model.json` has for each input the range" in (model / "card.md").read_text()


def test_models_of_earlier_versions_predict_without_a_note(model, tmp_path):
    about = json.loads((model / "model.json").read_text())
    about.pop("crc32", None)
    assert about.pop("ranges")
    (model / "model.json").write_text(json.dumps(summed(about)))
    hospitals().assign(age=1e6).to_csv("rows.csv", index=False)
    assert predict(model, tmp_path / "rows.csv", tmp_path / "out.csv").notes == []


def test_sites_columns_have_ranges_too(tmp_path):
    settings = {"dataset": "sparse-linear", "num_clients": 4, "progress": False}
    run = engram.simulate(method="molar", out="run", **settings)
    np.savez("rows.npz", x=np.full((3, 20), 99.0))
    for model in (run.export(1), run.export()):
        (note,) = predict(model, tmp_path / "rows.npz", tmp_path / f"{model.name}.csv").notes
        assert "(x0: 99 against -1." in note


def test_intervals_hold_the_targets_of_new_rows(tmp_path):
    # The simulated sites' rows of other seeds of noise would have other coefficients: so the data
    # are our own, of which most rows are new.
    rng = np.random.default_rng(0)
    sites, truth = {}, rng.normal(size=(4, 3))
    for site, beta in enumerate(truth):
        x = rng.normal(size=(2000, 3))
        sites[f"s{site}"] = (x, x @ beta + rng.standard_t(3, size=2000))
    few = {name: (x[:100], y[:100]) for name, (x, y) in sites.items()}
    settings = {"test_fraction": 0.4, "progress": False}
    run = engram.simulate(few, method="molar", out="run", **settings)
    held = []
    for name, (x, y) in sites.items():
        model = run.export(name)
        np.savez("rows.npz", x=x[100:])
        out = tmp_path / f"{name}.csv"
        found = predict(model, tmp_path / "rows.npz", out, 0.8).table
        assert found.columns.tolist() == ["predicted", "low", "high"]
        inside = (found["low"] <= y[100:]) & (y[100:] <= found["high"])
        held.append(inside.mean())
        assert "| 80% | " in (model / "card.md").read_text()
    # The share that a calibration of 40 rows holds is Beta(33, 8): 0.80, give or take 0.06.
    assert np.mean(held) == pytest.approx(33 / 41, abs=4 * 0.06 / 2)
    with pytest.raises(Refused, match=r"interval must be one of 0.5, 0.8, 0.9, 0.95, got 0.97"):
        predict(model, tmp_path / "rows.npz", tmp_path / "out.csv", 0.97)
    with pytest.raises(Refused, match="has no intervals: they need a client's model that"):
        predict(run.export(), tmp_path / "rows.npz", tmp_path / "out.csv", 0.9)
    assert not (tmp_path / "out.csv").exists()


def test_intervals_of_counts_are_cut_at_zero(tmp_path):
    rng = np.random.default_rng(0)
    sites = {}
    for name in "abc":
        x = rng.normal(size=(80, 2))
        sites[name] = (x, rng.poisson(np.exp(0.5 * x[:, 0])))
    settings = {"test_fraction": 0.4, "progress": False, "family": "poisson"}
    run = engram.simulate(sites, method="molar", out="run", **settings)
    model = run.export("a")
    np.savez("rows.npz", x=sites["b"][0])
    found = predict(model, tmp_path / "rows.npz", tmp_path / "out.csv").table
    about = json.loads((model / "model.json").read_text())
    (radius,) = next(i["radii"] for i in about["intervals"] if i["level"] == 0.9)
    below = found["predicted"] - radius
    assert below.min() < 0
    np.testing.assert_allclose(found["low"], np.maximum(below, 0), atol=1e-12)
    np.testing.assert_allclose(found["high"], found["predicted"] + radius)


def test_intervals_of_networks_are_by_validation_rows_and_hold_new_rows(tmp_path):
    rng, clients, each = np.random.default_rng(4), 12, 200
    truth = rng.normal(size=(clients, 3))
    x = rng.normal(size=(clients, 1000 + each, 3)).astype(np.float32)
    y = np.einsum("cnd,cd->cn", x, truth) + rng.standard_t(3, size=x.shape[:2])
    rows = [(x[c, :each], y[c, :each].astype(np.float32)) for c in range(clients)]
    settings = QUICK | {"task": "regression", "method": "local", "model": "linear"}
    settings |= {"test_fraction": 0.4, "validation_fraction": 0.2, "clients_per_round": clients}
    run = engram.simulate(rows, out="run", **settings)
    data, held = run.learned.data, []
    for client in range(clients):
        model = run.export(client, out=f"m{client}")
        about = json.loads((model / "model.json").read_text())
        (radius,) = next(i["radii"] for i in about["intervals"] if i["level"] == 0.9)
        module = load_model(model)

        def away(x, y, module=module):
            with torch.no_grad():
                return (module(x)[:, 0] - y.reshape(-1)).abs().numpy()

        split = data.validation
        errors = np.sort(away(*split.take(torch.from_numpy(split.rows[client]))))
        # Of 24 rows, the ceil(25 * 0.9)-th smallest error.
        assert (len(errors), radius) == (24, pytest.approx(errors[22], rel=1e-5))
        tested = away(*data.test.take(torch.from_numpy(data.test.rows[client])))
        new = away(torch.from_numpy(x[client, each:]), torch.from_numpy(y[client, each:]))
        held.append(((tested <= radius).mean(), (new <= radius).mean()))
        line = f"| its intervals of 0.9, by its 24 validation rows, on its {len(tested)} test rows"
        assert line in (model / "card.md").read_text()
    # The share that a calibration of 24 rows holds is Beta(23, 2): 0.92, give or take 0.053.
    for shares in np.transpose(held):
        assert shares.mean() == pytest.approx(0.92, abs=4 * 0.053 / np.sqrt(clients) + 0.01)


def test_networks_that_predict_values_have_intervals(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(x, x[:, :2]) for x in rng.normal(size=(3, 60, 4)).astype(np.float32)]
    settings = QUICK | {"task": "regression", "method": "fedavg", "clients_per_round": 3}
    run = engram.simulate(rows, out="run", **settings)
    np.savez("new.npz", x=rows[1][0], y=rows[1][1])
    for model in (run.export(1), run.adapt("new.npz")):
        found = predict(model, tmp_path / "new.npz", tmp_path / f"{model.name}.csv").table
        about = json.loads((model / "model.json").read_text())
        radius = next(i["radii"] for i in about["intervals"] if i["level"] == 0.9)
        for k in range(2):  # of a single value, see the intervals of counts
            middle = found[f"predicted {k}"]
            np.testing.assert_allclose(found[f"high {k}"] - middle, radius[k])
            np.testing.assert_allclose(middle - found[f"low {k}"], radius[k])


def test_models_of_classes_have_none(model, tmp_path):
    about = json.loads((model / "model.json").read_text())
    assert about["intervals"] == []
    settings = {"dataset": "sparse-logistic", "num_clients": 4, "progress": False}
    run = engram.simulate(method="molar", family="logistic", out="other", **settings)
    assert "## Intervals" not in (run.export(1) / "card.md").read_text()


def test_what_is_only_copied_is_written_byte_for_byte(model, tmp_path):
    """Cells are cut here by csv, whose rows are compared with bytes that are written by hand."""
    copied = ["0012", '"12E4"', "1_000", "007", "1.10", '"1,5"', "NA", "", "nan", " x "]
    copied += ["01.03.2025", '"he said ""no"""', '"two\r\nlines"', "123456789012345678"]
    copied += ['5" pipe', "Gyn\xe4"]
    cells = [text.encode() for text in copied]
    rows = [b"%b,0.1,0.%d,-1,f,%b" % (cell, k, cell) for k, cell in enumerate(cells)]
    start, header = b"\xef\xbb\xbf", b'id,age,dose,weight,sex,"the, note"'
    (tmp_path / "rows.csv").write_bytes(start + b"\r\n".join([header, *rows, b"", b""]))
    found = predict(model, tmp_path / "rows.csv", tmp_path / "out.csv").table
    data = (tmp_path / "out.csv").read_bytes()
    added = b",predicted,probability ill,probability well\r\n"
    assert data.startswith(start + b'id,"the, note"' + added)
    at = 0
    for cell in cells:
        at = data.index(b"\r\n%b,%b," % (cell, cell), at) + 1
    written = [*csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""))]
    assert len(written) == len(cells) == len(found)
    shares = [float(row["probability ill"]) for row in written]
    assert shares == found["probability ill"].tolist()
    x = np.array([[0.1, float(f"0.{k}"), -1, 1, 0] for k in range(len(cells))], dtype=np.float32)
    expected = load_model(model)(torch.from_numpy(x)).softmax(-1)[:, 0]
    assert shares == pytest.approx(expected.tolist(), abs=1e-6)


DIALECTS = {
    "tabs": {"separator": "\t", "encoding": "utf-16"},
    "all at once": {"separator": ";", "encoding": "cp1252", "decimal": ",", "skip": 3}
    | {"names": ["id", 'a "note"; quoted', "age", "dose", "weight", "sex"]},
}


@pytest.mark.parametrize(
    ("name", "quoting"), [("tabs", csv.QUOTE_ALL), ("all at once", csv.QUOTE_MINIMAL)]
)
def test_copies_are_written_as_the_file_is(tmp_path, name, quoting):
    """pandas writes the copied columns alone, which begin the rows of the predictions."""
    dialect = DIALECTS[name]
    notes = ["M\xe4dchen", "1,5", "1;5", 'so "so"', "two\nlines", "", "x|y", "a\tb", "NA", " c "]
    frame = hospitals()
    frame.insert(0, "id", [f"{k:04}" for k in range(len(frame))])
    frame.insert(1, dialect.get("names", ["", "note"])[1], np.resize(notes, len(frame)))
    sep, encoding = dialect.get("separator", ","), dialect.get("encoding", "utf-8")
    how = {"sep": sep, "decimal": dialect.get("decimal", "."), "index": False}
    titles = "".join(f'Report "{k};\n' for k in range(dialect.get("skip", 0)))

    def written(some, quoting=quoting, **more):
        return some.to_csv(quoting=quoting, **how, **more)

    text = titles + written(frame, header="names" not in dialect)
    (tmp_path / "run.csv").write_bytes(text.encode(encoding))
    names = [*frame.columns] if "names" in dialect else []
    entries = dialect | ({"names": names} if names else {})
    lines = [f"file.{key} = {json.dumps(value)}" for key, value in entries.items()]
    kinds = {frame.columns[0]: "identifier", frame.columns[1]: "ignored"}
    lines += [f'columns.{json.dumps(n)} = {{kind = "{kind}"}}' for n, kind in kinds.items()]
    columns = {"task_column": "site", "target_column": "state", "method": "fedavg"}
    run = engram.simulate(
        dataset=f"csv:{tmp_path}/run.csv", schema="\n".join(lines), **QUICK | columns
    )
    model = run.export("s1")
    found = predict(model, tmp_path / "run.csv", tmp_path / "out.csv").table
    text = (tmp_path / "out.csv").read_bytes().decode(encoding)
    kept = frame[[*kinds, "site", "state"]]
    at, head = 0, written(kept.iloc[:0], quoting=csv.QUOTE_MINIMAL) if names else written(kept[:0])
    for row in [head, *(written(kept.iloc[[k]], header=False) for k in range(len(kept)))]:
        assert text[at:].startswith(row.removesuffix("\n") + sep)
        at += len(row.removesuffix("\n") + sep)
        at = text.index("\n", at) + 1
    assert at == len(text)
    read = pd.read_csv(io.StringIO(text), sep=sep, decimal=how["decimal"])
    np.testing.assert_allclose(read["probability ill"], found["probability ill"])
    assert read["predicted"].tolist() == found["predicted"].tolist()
    x = torch.from_numpy(frame[["age", "dose", "weight"]].to_numpy(np.float32))
    sex = torch.from_numpy(np.stack([frame.sex == "f", frame.sex == "m"], axis=1)).float()
    shares = load_model(model)(torch.cat([x, sex], dim=1)).softmax(-1)[:, 0]
    np.testing.assert_allclose(read["probability ill"], shares.detach().numpy(), atol=1e-6)


def test_cells_are_read_as_the_schema_of_the_run_says(tmp_path):
    """Another run has the same table with nothing to be taken off."""
    plain = hospitals().round(2)
    plain.loc[::9, "dose"] = np.nan
    age = plain.age.map("{:.2f} kg".format).str.replace(".", ",")
    written = plain.assign(
        age=age, dose=plain.dose.fillna(-99), sex=plain.sex.map({"f": "1", "m": "2"})
    )
    lines = 'columns.age = {kind = "number", unit = "kg", decimal = ",", factor = 1.0}\n'
    lines += 'columns.dose = {kind = "number", missing = ["-99", "-99.0"]}\n'
    lines += 'columns.sex = {values = {"1" = "f", "2" = "m"}}'
    shares = []
    for name, frame, schema in (("plain", plain, ""), ("written", written, lines)):
        (folder := tmp_path / name).mkdir()
        run = run_on(frame, folder, method="fedavg", missing="median", schema=schema)
        frame.to_csv(folder / "rows.csv", index=False)
        model = run.export("s1", out=folder / "model")
        found = predict(model, folder / "rows.csv", folder / "out.csv").table
        shares.append(found["probability ill"])
        assert found["imputed"].eq("dose").sum() == plain.dose.isna().sum()
    np.testing.assert_allclose(*shares, atol=1e-6)


def test_rows_are_called_by_the_lines_of_an_editor(model, tmp_path):
    lines = ["note,age,dose,weight,sex", '"a', "", 'b",1,2,3,f', "", "c,1,2,3,f", "d,old,2,3,f"]
    says = rf"column age must hold numbers, got 'old' in row {1 + lines.index('d,old,2,3,f')}$"
    for end in ("\n", "\r\n", "\r"):
        (tmp_path / "rows.csv").write_bytes(end.join(lines).encode())
        with entry(end), pytest.raises(DataError, match=says):
            predict(model, tmp_path / "rows.csv", tmp_path / "out.csv")


def test_imputed_and_far_values_are_marked_by_row(model, tmp_path, engram):
    ranges = {
        each["name"]: each for each in json.loads((model / "model.json").read_text())["ranges"]
    }
    age = ranges["age"]
    most = age["high"] + 3 * (age["high"] - age["low"])
    rows = hospitals().iloc[:4].assign(age=[None, most + 1, most - 1, 0], sex=["f", None, "m", "f"])
    rows.loc[0, "sex"] = None
    rows.to_csv("rows.csv", index=False)
    status, out, _ = engram("predict", model, "rows.csv", "--strict")
    assert (status, out.split()[-1]) == (3, "outside")
    found = pd.read_csv("predictions.csv", keep_default_na=False)
    assert found["imputed"].tolist() == ["age; sex", "sex", "", ""]
    assert found["outside"].tolist() == ["", "age", "", ""]
    assert engram("predict", model, "rows.csv", "--out", "again.csv")[0] == 0
    rows.iloc[2:].to_csv("usual.csv", index=False)
    assert engram("predict", model, "usual.csv", "--out", "usual-out.csv", "--strict")[0] == 0
    assert not {"imputed", "outside"} & {*pd.read_csv("usual-out.csv")}
    rows.assign(age=100 * most).to_csv("far.csv", index=False)
    assert engram("predict", model, "far.csv", "--out", "far-out.csv", "--strict")[0] == 3
    assert pd.read_csv("far-out.csv")["outside"].tolist() == ["age"] * 4
