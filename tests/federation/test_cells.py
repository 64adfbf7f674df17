"""Cells of tables: numbers with a few texts among them are no categories, whoever reads them."""

import re

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from federation.data.datasets import arrays_of
from federation.data.dealing import federated_data, own_data
from federation.data.in_memory import hold
from federation.data.source import Source
from federation.data.tables import read_table
from federation.data.values import Columns
from federation.errors import DataError
from federation.experiment import Experiment

ROWS = 60
OWN = {
    "method": "fedavg",
    "protocol": "standard",
    "num_clients": 2,
    "clients_per_round": 2,
    "partition": "natural",
    "target_column": "died",
    "task_column": "ward",
}
KINDS = ("csv", "parquet", "frames")


def wards(**columns):
    """Returns a table in which age and dose are numbers, but for the columns that are given."""
    rng = np.random.default_rng(3)
    columns = {"age": rng.integers(20, 90, ROWS), "dose": rng.normal(size=ROWS)} | columns
    ward, died = np.array(["a", "b"])[np.arange(ROWS) % 2], np.arange(ROWS) // 2 % 2
    return pd.DataFrame(columns).assign(ward=ward, died=died)


def text(values, **cells):
    """Returns values as text, with other cells in some rows."""
    found = [str(value) for value in values]
    for row, cell in cells.items():
        found[int(row[1:])] = cell
    return found


def loaded(kind, table, folder, **settings):
    if kind == "csv":
        table.to_csv(folder / "wards.csv", index=False)
        dataset = f"csv:{folder}/wards.csv"
    elif kind == "parquet":
        Dataset.from_pandas(table).to_parquet(str(folder / "wards.parquet"))
        dataset = f"parquet:{folder}/wards.parquet"
    else:
        dataset = hold(arrays_of((table.drop(columns="died"), table["died"])))
    e = Experiment(dataset=dataset, data_dir=str(folder), **OWN, **settings)
    return federated_data(e)


@pytest.mark.parametrize("kind", KINDS)
def test_all_nearly_numeric_columns_are_refused_with_their_cells(tmp_path, kind):
    plain = wards()
    table = wards(
        age=text(plain["age"], r3="?", r41="n.d."), dose=text(plain["dose"].round(3), r0="low")
    )
    cells = (
        "column age has '?' in row 3, 'n.d.' in row 41 among numbers: write columns.age = {missing "
        '= ["?", "n.d."]}, or columns.age = {kind = "category"}; column dose has \'low\' in row 0'
    )
    with pytest.raises(DataError, match=re.escape(cells)):
        loaded(kind, table, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_declared_values_are_missing(tmp_path, kind):
    plain = wards()
    known = plain.astype({"age": float}).assign(smoker=["yes", "no", "no"] * (ROWS // 3))
    table = known.assign(age=text(plain["age"], r3="?", r42="-9"))
    known.loc[[3, 42], "age"] = None
    table.loc[5, "dose"] = known.loc[5, "dose"] = None
    table["smoker"] = known["smoker"] = text(known["smoker"], r8="?")
    known.loc[8, "smoker"] = None
    found = loaded(kind, table, tmp_path, missing="indicator", missing_values="?|-9")
    like = loaded(kind, known, tmp_path, missing="indicator")
    assert found.kind.schema.inputs == like.kind.schema.inputs
    assert "smoker=?" not in found.kind.schema.inputs
    np.testing.assert_array_equal(found.train.x, like.train.x)
    missing = found.kind.schema.inputs.index("age is missing")
    assert found.train.x[:, missing].sum() + found.test.x[:, missing].sum() == 2
    with pytest.raises(DataError, match="age is missing in row 3, dose is missing in row 5, smok"):
        loaded(kind, table, tmp_path, missing_values="?|-9")


@pytest.mark.parametrize("kind", ["csv", "frames"])
def test_a_number_that_is_declared_is_missing_among_numbers(tmp_path, kind):
    table = wards()
    table.loc[[2, 9], "age"] = -9
    with pytest.raises(DataError, match="age is missing in row 2: set missing="):
        loaded(kind, table, tmp_path, missing_values="-9")


@pytest.mark.parametrize(
    ("column", "features"),
    [
        (["1", "2", "3+"] * 20, None),
        (["?"] * 50 + [*map(str, range(10))], None),  # few rows, most of the different cells
        (["01", "02", "1", "A"] * 15, ("01", "02", "1", "A")),  # codes
        (["low", "high", "7"] * 20, ("7", "high", "low")),
    ],
)
def test_most_cells_decide_whether_a_column_is_nearly_numeric(tmp_path, column, features):
    table = wards(stage=column)[["stage", "ward", "died"]]
    if features is None:
        with pytest.raises(DataError, match=r"stage has .* among numbers"):
            loaded("csv", table, tmp_path)
        features = tuple(sorted(set(column)))
        named = loaded("csv", table, tmp_path, categories=f"stage={'|'.join(features)}")
    else:
        named = loaded("csv", table, tmp_path)
    assert named.kind.schema.inputs == tuple(f"stage={value}" for value in features)


def test_classes_that_are_nearly_numbers_are_refused(tmp_path):
    table = wards().assign(died=text(wards()["died"], r6="?"))
    for kind in ("csv", "parquet"):
        with pytest.raises(DataError, match=r"died has '\?' in row 6 among numbers: write col"):
            loaded(kind, table, tmp_path)
    assert loaded("csv", table, tmp_path, categories="died=0|1|?").outputs == 3
    with pytest.raises(DataError, match="died is missing in row 6"):
        loaded("csv", table, tmp_path, missing_values="?")


def test_a_nodes_own_file_is_read_alike(tmp_path):
    table = wards(age=text(wards()["age"], r3="?")).drop(columns="ward")
    table.to_csv(tmp_path / "own.csv", index=False)
    dataset = f"csv:{tmp_path}/own.csv"
    with pytest.raises(DataError, match=r"age has '\?' in row 3 among numbers"):
        own_data(Experiment(**OWN), Source(dataset), 0)
    known = own_data(Experiment(**OWN, missing="median", missing_values="?"), Source(dataset), 0)
    assert known.kind.schema.inputs == ("age", "dose")


def test_tables_of_numbers_name_all_that_is_none(tmp_path):
    table = wards(age=text(wards()["age"], r3="?", r5="x"), dose=["b", *range(1, ROWS)])
    table.to_csv(tmp_path / "wards.csv", index=False)
    message = r"age has '\?' in row 3, 'x' in row 5 among numbers: .* dose has 'b' in row 0 among"
    with pytest.raises(DataError, match=message):
        read_table(Source(f"csv:{tmp_path}/wards.csv"), Columns("died", "ward"))


def test_a_column_of_a_long_file_has_one_type(tmp_path):
    # pandas reads a file in chunks, in each of which it would guess: 01 is 1 where all are numbers.
    rows = 300_000
    with (tmp_path / "long.csv").open("w") as file:
        file.write("code,died\n" + "01,0\n02,1\n" * (rows // 2) + "b,0\nb,1\n")
    e = Experiment(**OWN, categories="code=01|02|b", num_classes=2)
    x = own_data(e, Source(f"csv:{tmp_path}/long.csv"), 0).train.x
    assert x.sum(1).unique().tolist() == [1]
