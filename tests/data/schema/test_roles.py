"""Roles of columns: parts of rows, clients, events and weights."""

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from PIL import Image

from engram.data.load_federation import federated_data
from engram.data.loading import count_clients
from engram.data.readers.in_memory import arrays_of, hold
from engram.data.schema.columns import Column, File, Schema
from engram.data.source import Source
from engram.data.tables.tables import table_data
from engram.settings.errors import DataError, Refused
from engram.settings.experiment import Experiment
from tests.samples import entry

N = 60
PARTS = np.array(["train", "train", "validation", "test", "train"])[np.arange(N) % 5]
TABLE = pd.DataFrame({"a": np.arange(N) + 0.25, "b": np.random.default_rng(0).normal(size=N)})
TABLE = TABLE.assign(died=np.arange(N) // 2 % 2, ward=np.where(np.arange(N) % 3, "east", "west"))
TABLE["part"] = PARTS
TABLE["stay"] = pd.date_range("2024-01-01", periods=N).strftime("%Y-%m-%d")  # would be asked about
SCHEMA = """columns.part = {role = "part"}
columns.ward = {role = "client"}
columns.died = {role = "target"}
columns.stay = {role = "event"}"""
GIVEN = {"method": "fedavg", "partition": "natural", "num_clients": 2, "clients_per_round": 2}
GIVEN |= {"standardize": "none", "batch_size": 4}


def source(kind, folder, table=TABLE):
    if kind == "frame":
        return hold(arrays_of((table.drop(columns="died"), table["died"])))
    path = folder / f"t.{kind}"
    table.to_csv(path, index=False) if kind == "csv" else Dataset.from_pandas(table).to_parquet(
        path
    )
    return Source(f"{kind}:{path}")


def rows_in(split, client):
    return sorted(split.take(torch.as_tensor(split.rows[client]))[0][:, 0].tolist())


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_a_column_tells_rows_for_training_validation_and_testing(kind, tmp_path):
    given = source(kind, tmp_path, TABLE.assign(part=TABLE.part.str.title()))
    data = federated_data(Experiment(**GIVEN, dataset=given, schema=SCHEMA))
    assert data.schema.names == ("a", "b")
    assert data.names == {0: "east", 1: "west"}
    for client, ward in data.names.items():
        splits = {"train": data.train, "validation": data.validation, "test": data.test}
        for part, split in splits.items():
            here = TABLE[(TABLE.ward == ward) & (TABLE.part == part)]
            assert rows_in(split, client) == here.a.tolist()


def test_medians_are_those_of_the_rows_to_learn_from(tmp_path):
    table = TABLE.assign(b=TABLE.b.where(np.arange(N) % 7 > 0))
    e = Experiment(**GIVEN, dataset=source("csv", tmp_path, table), schema=SCHEMA, missing="median")
    data = federated_data(e)
    for client, ward in data.names.items():
        learned = table[(table.ward == ward) & (table.part == "train")]
        assert data.fills[1][client] == pytest.approx(learned.b.median())


def test_methods_of_tables_test_on_the_rows_for_it_and_learn_from_the_others(tmp_path):
    table = TABLE.assign(died=TABLE.b * 2.5)
    given = {"method": "molar", "num_clients": 2, "dataset": source("csv", tmp_path, table)}
    data = table_data(Experiment(**given, schema=SCHEMA))
    for client, name in data.names.items():
        here = table[table.ward == name]
        tested = here[here.part == "test"].a.tolist()
        assert data.test[client].x[:, 0].tolist() == tested
        learned = here[here.part != "test"].a.tolist()
        assert data.train[client].x[:, 0].tolist() == learned


def test_images_of_parquet_have_parts_as_well(tmp_path):
    from datasets import Features, Value
    from datasets import Image as Pictures

    pixels = np.random.default_rng(0).integers(0, 256, (N, 5, 4), dtype=np.uint8)
    columns = {"image": [*map(Image.fromarray, pixels)], "died": TABLE.died, "ward": TABLE.ward}
    kinds = {"image": Pictures(), "died": Value("int64"), "ward": Value("string")}
    kinds |= {"part": Value("string"), "stay": Value("string")}
    columns |= {"part": PARTS, "stay": TABLE.stay}
    Dataset.from_dict(columns, features=Features(kinds)).to_parquet(tmp_path / "t.parquet")
    e = Experiment(**GIVEN, model="cnn", dataset=f"parquet:{tmp_path}/t.parquet", schema=SCHEMA)
    data = federated_data(e)
    splits = {"train": data.train, "validation": data.validation, "test": data.test}
    for part, split in splits.items():
        for client, ward in data.names.items():
            found = split.take(torch.as_tensor(split.rows[client]).sort().values)[0]
            right = pixels[(TABLE.ward == ward) & (part == PARTS)][:, None] / 255
            np.testing.assert_allclose(found.numpy(), right, rtol=1e-6)


def test_clients_are_those_that_cells_mean_and_no_others(tmp_path):
    wards = np.array(["007", "07", "07 ", "A", "a"])[np.arange(N) // 12]
    names = dict(enumerate(sorted({*map(str.strip, wards)})))
    data = source("csv", tmp_path, TABLE.assign(ward=wards))
    assert count_clients(data, "ward", tmp_path) == len(names)
    four = {**GIVEN, "num_clients": 4, "dataset": data}
    assert federated_data(Experiment(**four, schema=SCHEMA)).names == names
    line = 'columns.ward = {role = "client", values = {A = "a", a = "a", "007" = "a", "07" = "b"}}'
    meant = SCHEMA.replace('columns.ward = {role = "client"}', line)
    e = Experiment(**four | {"num_clients": 2}, schema=meant)
    assert federated_data(e).names == {0: "a", 1: "b"}
    source("csv", tmp_path, TABLE.assign(ward=np.where(wards == "a", "NA", wards)))
    with pytest.raises(DataError, match=r"ward is missing in row 50: .* 12 cells say 'NA'"):
        federated_data(e)


HELD_OUT = TABLE.assign(part=TABLE.part.replace("test", "hold-out"))
NO_PART = TABLE.assign(part=TABLE.part.where(TABLE.index != 4))
TYPED = SCHEMA.replace('"event"', '"event", kind = "number"').replace("died = {", "other = {")
WEIGHED = SCHEMA + '\ncolumns.b = {role = "weight"}'
DIED = 'columns.died = {role = "event"}'
NAMED = {"target_column": "died", "task_column": "ward"}
PART = "column part must hold train, test or validation, got "
CONTRADICTIONS = [
    (HELD_OUT, SCHEMA, {}, f"{PART}'hold-out' in row 5 and 11 more rows"),
    (NO_PART, SCHEMA, {}, f"{PART}'' in row 6"),
    (TABLE.drop(columns="part"), SCHEMA, {}, "has no column 'part'"),
    (TABLE, TYPED, {"target_column": "stay"}, "target-column must be other"),
    (TABLE, DIED, NAMED, "died is an event .* which no method predicts"),
    (TABLE, SCHEMA, {"input_columns": "a,stay"}, "stay must be no input .*its role is event"),
    (TABLE, WEIGHED, {}, "b is the weight of .*: write columns.b"),
]


def test_contradictions_of_a_role_are_refused_in_one_line(tmp_path):
    for table, schema, settings, words in CONTRADICTIONS:
        given = {**GIVEN, **settings, "dataset": source("csv", tmp_path, table), "schema": schema}
        with entry(words), pytest.raises(Refused, match=f"^[^\n]*{words}[^\n]*$"):
            federated_data(Experiment(**given))
    given = {**GIVEN, "dataset": source("frame", tmp_path, NO_PART), "schema": SCHEMA}
    with pytest.raises(DataError, match=f"{PART}.* in row 4"):
        federated_data(Experiment(**given))


def test_test_rows_are_named_once(tmp_path):
    x, y = TABLE.drop(columns="died"), TABLE["died"]
    data = hold(arrays_of((x[:40], y[:40], x[40:], y[40:])))
    with pytest.raises(DataError, match="test rows are given, and the column part names them"):
        federated_data(Experiment(**GIVEN, dataset=data, schema=SCHEMA))
    for name, some in (("train", TABLE[:40]), ("test", TABLE[40:])):
        Dataset.from_pandas(some, preserve_index=False).to_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match="has test rows of its own, and the column part names them"):
        federated_data(Experiment(**GIVEN, dataset=f"parquet:{tmp_path}", schema=SCHEMA))


def test_codes_of_missing_values_hold_at_sites_with_codes_and_files_of_their_own():
    run = Schema((Column("age", missing=("-9",)),), file=File(missing=("?",)))
    found = run.at_site(Schema((Column("age", missing=("-99",)),), file=File(separator=";")))
    assert found.column("age").missing == ("-9", "-99", "?")
    assert (found.file.separator, found.file.missing) == (";", ("?",))
