"""Kinds of columns x formats x one process or a node: each right, or refused with the way."""

from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from engram.data.load_federation import federated_data, own_data
from engram.data.readers.in_memory import arrays_of, hold
from engram.data.source import Source
from engram.settings.errors import DataError
from engram.settings.experiment import Experiment
from tests.data.schema.test_rules import ASKED, NUMBERS, N
from tests.samples import entry
from tests.support import declared_values

rng = np.random.default_rng(1)
SETTINGS = {"method": "fedavg", "protocol": "standard", "num_clients": 2, "clients_per_round": 2}
SETTINGS |= {"partition": "natural", "target_column": "died", "task_column": "ward"}
FORMATS = ("csv", "parquet", "frames", "node")
# Of ``ASKED`` and ``NUMBERS``, those that formats hold in different types.
ANY_TYPE = ("names", "row numbers, typed", "days, typed", "lab values")
MARKED = ("percent", "German thousands")


def loaded(kind, cells, folder, more=MappingProxyType({}), **settings):
    table = pd.DataFrame({"v": list(cells), **more, "z": rng.normal(size=N)})
    table["died"], table["ward"] = rng.integers(0, 2, N), np.array(["a", "b"])[np.arange(N) % 2]
    e = Experiment(**SETTINGS, data_dir=str(folder), **settings)
    if kind == "node":
        table.drop(columns="ward").to_csv(folder / "t.csv", index=False)
        return own_data(e, Source(f"csv:{folder}/t.csv"), 0), table
    if kind == "csv":
        table.to_csv(folder / "t.csv", index=False)
        dataset = f"csv:{folder}/t.csv"
    elif kind == "parquet":
        Dataset.from_pandas(table).to_parquet(str(folder / "t.parquet"))
        dataset = f"parquet:{folder}/t.parquet"
    elif kind == "parts":
        for part, rows in (("train", table[:150]), ("test", table[150:])):
            Dataset.from_pandas(rows, preserve_index=False).to_parquet(f"{folder}/t/{part}.parquet")
        dataset = f"parquet:{folder}/t"
    else:
        dataset = hold(arrays_of((table.drop(columns="died"), table["died"])))
    return federated_data(e.model_copy(update={"dataset": Source.of(dataset)})), table


def inputs_of(data, columns=1):
    """The first columns of training and test rows."""
    return np.concatenate([np.asarray(split.x[:, :columns]) for split in (data.train, data.test)])


@pytest.mark.parametrize("kind", FORMATS)
def test_every_type_is_asked_about_wherever_it_is(kind, tmp_path):
    for name in (*ANY_TYPE, *MARKED):
        cells = (ASKED | NUMBERS)[name][0]
        words = r"^[^\n]*column v .* write columns\.v = [^\n]*$"
        with entry(name), pytest.raises(DataError, match=words) as caught:
            loaded(kind, cells, tmp_path)
        assert {column for fault in caught.value.faults for column in fault.columns} == {"v"}


@pytest.mark.parametrize("kind", FORMATS)
def test_numbers_are_read_once_it_is_said_how(kind, tmp_path):
    for name in MARKED:
        cells, numbers, line = NUMBERS[name]
        with entry(name):
            data, _ = loaded(kind, cells, tmp_path, schema=f"columns.v = {{{line}}}")
            assert data.schema.inputs == ("v", "z")
            rows = np.r_[data.train.given, data.test.given]
            np.testing.assert_allclose(inputs_of(data)[:, 0], numbers[rows], atol=0.00501)


@pytest.mark.parametrize("kind", FORMATS)
def test_identifiers_and_ignored_columns_do_not_reach_a_model(kind, tmp_path):
    for what in ("identifier", "ignored"):
        cells, line = [f"P{k:05}" for k in range(N)], f'columns.v = {{kind = "{what}"}}'
        with entry(what):
            assert loaded(kind, cells, tmp_path, schema=line)[0].schema.inputs == ("z",)


@pytest.mark.parametrize("kind", FORMATS)
def test_dates_are_days_since_one_that_is_named(kind, tmp_path):
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, N), unit="D")
    line = 'columns.v = {kind = "date", since = "2020-01-01"}'
    data, _ = loaded(kind, days.strftime("%Y-%m-%d"), tmp_path, schema=line)
    wanted = np.sort((days - pd.Timestamp("2020-01-01")).days)
    np.testing.assert_array_equal(np.sort(inputs_of(data)[:, 0]), wanted)


@pytest.mark.parametrize("kind", FORMATS)
def test_codes_mean_their_values_in_the_schema(kind, tmp_path):
    cells = rng.choice(["01", "02"], N)
    line = 'columns.v = {kind = "category", values = {"01" = "M", "02" = "F"}}'
    data, _ = loaded(kind, cells, tmp_path, schema=line)
    assert data.schema.inputs == ("v=F", "v=M", "z")
    assert inputs_of(data).sum() == (cells == "02").sum()


@pytest.mark.parametrize("kind", FORMATS)
def test_cells_that_are_declared_to_stand_for_nothing_are_missing(kind, tmp_path):
    cells = np.where(np.arange(N) % 7 == 3, "?", np.where(np.arange(N) % 7 == 5, "-9", "3.5"))
    there = np.count_nonzero(cells == "3.5")
    row = 5 if kind in ("csv", "node") else 3  # of a file, the line
    for how in ('file.missing = ["?", "-9"]', 'columns.v = {missing = ["?", "-9"]}'):
        with entry(how):
            data, _ = loaded(kind, cells, tmp_path, missing="indicator", schema=how)
            assert data.schema.inputs == ("v", "v is missing", "z", "z is missing")
            found = sorted(map(tuple, inputs_of(data, 2)))
            assert found == [(0, 1)] * (N - there) + [(3.5, 0)] * there
            with pytest.raises(DataError, match=f"v is missing in row {row}"):
                loaded(kind, cells, tmp_path, schema=how)


@pytest.mark.parametrize("kind", [*FORMATS, "parts"])
@pytest.mark.parametrize("missing", ["median", "indicator"])
def test_medians_of_a_clients_training_rows_or_marks_stand_for_missing_values(
    missing, kind, tmp_path
):
    ages = np.where(rng.random(N) < 0.3, np.nan, rng.integers(100, size=N))
    sexes = {"sex": rng.choice(["f", "m", "m", None], N)}
    settings = {"missing": missing, "schema": declared_values(sex="f|m")}
    data, table = loaded(kind, ages, tmp_path, sexes, **settings)
    owner = table["ward"].replace({"b": "a"} if kind == "node" else {})
    inputs, place = data.schema.inputs, {z: row for row, z in enumerate(np.float32(table["z"]))}
    parts = [np.asarray(split.x, dtype=np.float32) for split in (data.train, data.test)]
    rows = [[place[z] for z in x[:, inputs.index("z")]] for x in parts]
    assert sorted(rows[0] + rows[1]) == [*range(N)]
    assert kind != "parts" or max(rows[0]) < 150
    learned = table.iloc[rows[0]].groupby(owner)
    age, sex = learned["v"].median(), learned["sex"].agg(lambda cells: cells.mode()[0])
    fills = (owner.map(age), owner.map(sex)) if missing == "median" else (0, "nobody's")
    values = table.assign(v=table["v"].fillna(fills[0]), sex=table["sex"].fillna(fills[1]))
    wanted = {"v": values["v"], "z": values["z"]}
    wanted |= {f"sex={value}": values["sex"] == value for value in "fm"}
    if missing == "indicator":
        wanted |= {f"{name} is missing": table[name].isna() for name in ("v", "sex", "z")}
    assert {*inputs} == {*wanted}
    for x, some in zip(parts, rows, strict=True):
        expected = np.column_stack([wanted[name].iloc[some] for name in inputs])
        np.testing.assert_array_equal(x, expected.astype(np.float32))


def test_proposals_are_taken_where_that_is_asked_and_columns_of_one_value_left_out(tmp_path):
    for kind in ("csv", "parquet", "frames"):
        with entry(kind):
            data, _ = loaded(kind, [f"P{k:05}" for k in range(N)], tmp_path, strict=False)
            assert data.schema.inputs == ("z",)
    for kind in FORMATS:  # other nodes' rows may have another value
        data, _ = loaded(kind, [7.5] * N, tmp_path)
        assert data.schema.inputs == (("v", "z") if kind == "node" else ("z",))
