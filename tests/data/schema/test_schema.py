"""The schema of a table: fitted once, and every later row is read by it."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import engram
from engram.data.image_axes import say_once
from engram.data.schema.columns import File, Schema
from engram.data.schema.declared import Declared
from engram.data.schema.encoding import encode, filled, read_cells, usual
from engram.data.tables.raw_tables import of_frame
from engram.data.tables.tables import table_data
from engram.home.predicting import predict
from engram.settings.errors import DataError
from engram.settings.experiment import Experiment
from tests.samples import entry
from tests.support import small

HERE = Path("rows.csv")


def wards(rows=24):
    rng = np.random.default_rng(2)
    age = rng.integers(20, 90, rows).astype(float)
    frame = pd.DataFrame({"age": age, "sex": rng.choice(["f", "m"], rows)})
    frame["dose"] = rng.normal(size=rows)
    frame.loc[::5, "age"] = np.nan
    frame.loc[3::7, "sex"] = None
    return frame


def by_hand(frame, ages, sexes):
    """Returns age, sex=f, sex=m, dose, with these values for what is missing in each row."""
    age = np.where(frame["age"].isna(), ages, frame["age"])
    sex = np.where(frame["sex"].isna(), sexes, frame["sex"])
    return np.column_stack([age, sex == "f", sex == "m", frame["dose"]]).astype(float)


def fitted(frame, missing="median", missing_values=(), **declared):
    schema = Schema(missing=missing, file=File(missing=missing_values))
    return of_frame(HERE, frame, Declared(schema, **declared), y=np.zeros(len(frame)))["schema"]


def encoded(schema, frame, fills=None):
    return encode(schema, HERE, read_cells(schema, HERE, frame), fills)


def test_columns_are_found_by_name_in_any_order():
    frame = wards()
    schema = fitted(frame, "indicator")
    x = encoded(schema, frame)
    other = frame.assign(patient=range(len(frame)))[["patient", "dose", "sex", "age"]]
    np.testing.assert_array_equal(encoded(schema, other), x)
    sexes = ("sex=f", "sex=m", "sex is missing")
    assert schema.inputs == ("age", "age is missing", *sexes, "dose", "dose is missing")
    assert schema.numeric == (True, False, False, False, False, True, False)
    plain = by_hand(frame, 0.0, "")
    np.testing.assert_array_equal(x[:, [0, 2, 3, 5]], plain)
    np.testing.assert_array_equal(x[:, 1], frame["age"].isna())
    np.testing.assert_array_equal(x[:, 4], frame["sex"].isna())


def test_medians_are_each_owners_or_else_everybodys():
    frame, owner = wards(), np.arange(24) % 3
    frame.loc[owner == 2, "age"] = np.nan
    schema = fitted(frame)
    ages, sexes, doses = usual(schema, read_cells(schema, HERE, frame), owner, 3)
    for k in range(3):
        own = frame[owner == k]
        np.testing.assert_equal((ages[k], doses[k]), (own["age"].median(), own["dose"].median()))
        counts = own["sex"].value_counts()
        assert counts[sexes[k]] == counts.max()
    everybody = filled(schema, read_cells(schema, HERE, frame))
    expected = by_hand(frame, frame["age"].median(), frame["sex"].mode()[0])
    np.testing.assert_array_equal(encoded(everybody, frame), expected)
    nobody = filled(everybody, read_cells(everybody, HERE, frame[owner == 2]))
    fills = [column.fill for column in nobody.columns]
    assert (fills[0], fills[2]) == (frame["age"].median(), doses[2])


def test_all_that_is_wrong_is_told_at_once():
    frame = wards()
    schema = fitted(frame.dropna(), "refuse")
    with pytest.raises(DataError, match=r"rows\.csv has no column 'age', 'dose'; it has Age, sex"):
        encoded(schema, frame[["sex"]].assign(Age=1))
    odd = frame.assign(dose=np.where(np.arange(24) == 2, np.inf, 1.0))
    odd["sex"] = odd["sex"].fillna("x")
    with pytest.raises(DataError) as caught:
        encoded(schema, odd)
    assert [fault.text for fault in caught.value.faults] == [
        "rows.csv: age is missing in row 0: the model has learned from rows where none is missing",
        "rows.csv: column sex must hold f, m, got 'x' in row 3 and 2 more rows",
        "rows.csv: dose is infinite in row 2: leave it empty",
    ]


def test_every_column_that_a_node_must_declare_is_named():
    frame = wards().assign(color="red").dropna()
    with pytest.raises(DataError) as caught:
        fitted(frame, alone=True)
    told = [fault.text.partition(" is text")[0] for fault in caught.value.faults]
    assert told == ["rows.csv: color", "rows.csv: sex"]


def test_it_is_read_back_as_it_was_written():
    schema = fitted(wards(), missing_values=("?", "-9"))
    schema = filled(schema, read_cells(schema, HERE, wards()))
    again = Schema.from_json(json.dumps(schema.to_json()))
    assert (again, again.file) == (schema, schema.file)
    assert [c.fill for c in again.columns] == [c.fill for c in schema.columns]
    assert None not in [c.fill for c in schema.columns]
    assert [c.fill for c in Schema.from_json(schema.told()).columns] == [None] * 3
    plain = Schema.of_numbers(["a", "b"], of_arrays=True)
    assert plain.to_json() == {"columns": [{"name": "a"}, {"name": "b"}], "of_arrays": True}
    assert Schema.from_json(plain.to_json()).of_arrays


def test_schemas_that_were_stored_without_kinds_read_numbers_and_values():
    columns = [{"name": "age"}, {"name": "sex", "values": ["f", "m"]}]
    columns += [{"name": "dose", "fill": 2.0}]
    stored = {"columns": columns, "missing": "median", "missing_values": ["?"]}
    schema = Schema.from_json(stored)
    rows = {"sex": ["f", "m", "?"], "dose": ["1.5", "?", "3"], "age": ["61", "72", "?"]}
    wanted = [[61, 1, 0, 1.5], [72, 0, 1, 2], [0, 0, 0, 3]]
    np.testing.assert_array_equal(encoded(schema, pd.DataFrame(rows)), wanted)


NO_SCHEMAS = [
    *("[]", "{}", "7", "null", "[" * 10**5, '{"columns": 3}', '{"columns": ["age"]}'),
    '{"columns": [{"name": 3}]}',
    '{"columns": [{"name": "age", "values": "fm"}]}',
    '{"columns": [{"name": "age", "values": [1]}]}',
    '{"columns": [{"name": "age", "fill": []}]}',
    *('{"columns": [], "missing": "guess"}', '{"columns": [], "missing": []}'),
    '{"columns": [], "missing_values": [3]}',
]


def test_another_text_is_no_schema():
    words = r"^schema must be columns with names, got .{,90}$"
    for text in NO_SCHEMAS:
        with entry(text), pytest.raises(ValueError, match=words):
            Schema.from_json(text)


def test_named_arrays_are_predicted_by_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    x, task, names = rng.normal(size=(60, 2)), np.repeat([0, 1, 2], 20), np.array(["age", "dose"])
    np.savez("rows.npz", x=x, y=x @ [1.0, -2.0] > 0, task=task, x_names=names)
    given = {"dataset": "npz:rows.npz", "num_clients": 3, "partition": "natural", "model": "linear"}
    given |= {"method": "fedavg", "num_rounds": 2, "local_steps": 2, "clients_per_round": 3}
    model = engram.simulate(out="run", progress=False, **given).export(1, out="model")
    np.savez("new.npz", x=x[:4], x_names=names)
    np.savez("turned.npz", x=x[:4, ::-1], x_names=names[::-1])
    pd.DataFrame(x[:4, ::-1], columns=names[::-1]).to_csv("new.csv", index=False)
    files = ("new.npz", "turned.npz", "new.csv")
    one, *others = (predict(model, Path(f), Path(f"{f}.csv")).table for f in files)
    for other in others:
        pd.testing.assert_frame_equal(other, one, rtol=1e-6)
    np.savez("odd.npz", x=x[:4], x_names=["age", "weight"])
    with pytest.raises(DataError, match=r"odd\.npz has no column 'dose'; it has weight"):
        predict(model, Path("odd.npz"), Path("odd.csv"))


def test_methods_of_tables_take_the_columns_that_are_named(tmp_path):
    frame = wards().assign(age=1.0, task=np.arange(24) % 2, y=np.arange(24.0))
    frame.to_csv(tmp_path / "a.csv", index=False)
    e = small(method="molar", dataset=f"csv:{tmp_path}/a.csv", num_clients=2)
    assert table_data(e).columns == ["sex=m", "dose"]  # the ages are all one
    some = table_data(e.model_copy(update={"input_columns": "dose,age"}))
    assert some.columns == ["dose", "age"]
    own = frame[frame["task"] == 0]
    assert sorted(np.r_[some.train[0].x[:, 0], some.test[0].x[:, 0]]) == sorted(own["dose"])


def test_regressions_encode_text_and_predict_it(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    say_once("a line")
    rng = np.random.default_rng(5)
    frame = wards(120).assign(task=np.repeat(["north", "south"], 60))
    level = frame["sex"].map({"f": 0.0, "m": 2.0}).fillna(1.0)
    frame["y"] = 3 * frame["dose"] + level + frame["age"].fillna(50) / 10 + rng.normal(size=120) / 9
    frame.to_csv("rows.csv", index=False)
    given = {"method": "molar", "dataset": "csv:rows.csv", "missing": "median", "num_clients": 2}
    run = engram.simulate(**given, out="run", progress=False)
    say_once("a line")
    assert caplog.messages.count("a line") == 2  # each run says its own
    data = table_data(Experiment(**given, test_fraction=0.4))
    for client, task in enumerate(("north", "south")):
        own = frame[frame["task"] == task].reset_index(drop=True)
        x, y = data.train[client]._replace(weights=None)[:2]
        learned = own[own["y"].isin(y)]
        age, sex = learned["age"].median(), learned["sex"].mode()[0]
        np.testing.assert_allclose(x, by_hand(learned, age, sex)[:, [0, 2, 3]])
        ones = np.column_stack([x, np.ones(len(x))])
        expected = np.linalg.lstsq(ones, y)[0]
        model = run.export(task, out=task)
        table = pd.read_csv(model / "coefficients.csv")
        assert table["name"].tolist() == ["age", "sex=m", "dose", "intercept"]
        np.testing.assert_allclose(table["own"], expected, rtol=1e-6)
        rows = own.drop(columns=["task", "y"])[["sex", "dose", "age"]]
        rows.to_csv("new.csv", index=False)
        found = predict(model, Path("new.csv"), Path(f"{task}.csv")).table
        design = np.column_stack([by_hand(own, age, sex)[:, [0, 2, 3]], np.ones(60)])
        np.testing.assert_allclose(found["predicted"], design @ table["coef"], rtol=1e-5)
