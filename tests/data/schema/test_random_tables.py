"""Random tables in random dialects: read back as they were, asked about, or told from others."""

import csv
from datetime import date, timedelta

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engram.data.schema.columns import Column, File, Schema
from engram.data.schema.declared import declare
from engram.data.schema.written import of_toml, to_toml
from engram.data.tables.raw_tables import of_file
from engram.settings.data import DataSettings
from engram.settings.errors import DataError

WARDS = ("Gynäkologie", 'he said "no"', "two\nlines", "d,e", "b;c", "a\ttab", "x|y", "O'Neill")
KINDS = (
    Column("dose", "number"),
    Column("count", "whole"),
    Column("ward", "category", WARDS),
    Column("grade", "ordered", ("I", "II", "III")),
    Column("smoker", "truth"),
    Column("seen", "date", since="2024-01-01"),
)
ROW = st.tuples(
    st.none() | st.integers(-(10**8), 10**8).map(lambda k: k / 100),
    st.none() | st.integers(-(10**6), 10**6),
    st.none() | st.sampled_from(WARDS),
    st.none() | st.sampled_from((0, 1, 2)),
    st.none() | st.booleans(),
    st.none() | st.integers(-3000, 3000),
)
ROWS = st.lists(ROW, min_size=1, max_size=8)
MARKS = st.sampled_from([(".", ""), (".", ","), (".", " "), (".", "'"), (",", ""), (",", ".")])
WAYS = {
    "separator": st.sampled_from([",", ";", "\t", "|"]),
    "encoding": st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
    "end": st.sampled_from(["\n", "\r\n"]),
    "quoting": st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    "blank lines": st.sampled_from([0, 2]),
    "by pandas": st.booleans(),
}


def cells(row, decimal, thousands):
    """Returns a row's cells as a program with these marks would write them."""
    marks = str.maketrans({",": thousands, ".": decimal})
    dose, count, ward, grade, smoker, seen = row
    return [
        "" if dose is None else f"{dose:,.2f}".translate(marks),
        "" if count is None else f"{count:,}".translate(marks),
        ward or "",
        "" if grade is None else ("I", "II", "III")[grade],
        "" if smoker is None else str(smoker),
        "" if seen is None else str(date(2024, 1, 1) + timedelta(days=seen)),
    ]


def write(path, rows, way):
    names = [column.name for column in KINDS] + ["died"]
    table = [[*row, str(k % 2)] for k, row in enumerate(rows)]
    dialect = {"lineterminator": way["end"], "quoting": way["quoting"]}
    if way["by pandas"]:
        frame = pd.DataFrame(table, columns=names)
        more = {"sep": way["separator"], "encoding": way["encoding"]}
        frame.to_csv(path, index=False, **dialect, **more)
    else:
        with path.open("w", encoding=way["encoding"], newline="") as file:
            csv.writer(file, delimiter=way["separator"], **dialect).writerows([names, *table])
    with path.open("ab") as file:
        encoding = {"utf-16": "utf-16-le", "utf-8-sig": "utf-8"}.get(way["encoding"], "ascii")
        file.write((way["end"] * way["blank lines"]).encode(encoding))


def read(path, schema=None):
    own = {"target-column": "died"}
    own |= {"schema": to_toml(schema), "missing": "indicator"} if schema else {}
    return of_file(path, declare(DataSettings.model_validate(own)))["x"]


def same(found, rows):
    """Whether columns that were read, by name, are those that were written."""
    for column, written in zip(KINDS, zip(*rows, strict=True), strict=True):
        if column.name not in found:
            continue
        values = found[column.name]
        if column.kind == "category":
            assert [v if isinstance(v, str) else None for v in values] == [*written]
        else:
            numbers = np.array([np.nan if v is None else v for v in written], dtype=float)
            np.testing.assert_allclose(values.to_numpy(dtype=float), numbers, rtol=1e-15)


@given(rows=ROWS, marks=MARKS, way=st.fixed_dictionaries(WAYS))
def test_a_table_is_read_back_where_it_is_told_how_it_is_written(
    tmp_path_factory, rows, marks, way
):
    path = tmp_path_factory.mktemp("h") / "t.csv"
    write(path, [cells(row, *marks) for row in rows], way)
    file = File(way["separator"], way["encoding"], decimal=marks[0], thousands=marks[1])
    same(read(path, Schema(KINDS, file=file)), rows)


@given(rows=ROWS, marks=MARKS, way=st.fixed_dictionaries(WAYS))
def test_a_table_is_read_back_or_asked_about_elsewhere(tmp_path_factory, rows, marks, way):
    # Whole numbers with points alone are numbers of three decimals as well.
    assume(marks[1] != "." or all(row[1] is None or abs(row[1]) < 1000 for row in rows))
    path = tmp_path_factory.mktemp("h") / "t.csv"
    write(path, [cells(row, *marks) for row in rows], way)
    try:
        found = read(path)
    except DataError as error:
        assert str(path.name) in str(error)  # noqa: PT017 - either is right
        return
    same({name: found[name] for name in ("dose", "count", "ward") if name in found}, rows)


CORRUPTED = {
    "dose": ["12.5 mg", "1.2.3", "1,5", "x", "0x1F", "1_000", "12.5.", "--1"],
    "count": ["1.5", "7 days", "seven", "1/2"],
    "ward": ["gynäkologie", "d, e", "b,c", "Surgery"],
    "grade": ["i", "IV", "1", "II."],
    "smoker": ["maybe", "1", "yes", "T"],
    "seen": ["yesterday", "2024-02-30", "31.12.2023", "2024-13-01"],
}


@settings(max_examples=60)
@given(rows=ROWS, data=st.data())
def test_a_cell_that_leaves_its_kind_or_values_is_told(tmp_path_factory, rows, data):
    path = tmp_path_factory.mktemp("h") / "t.csv"
    table = [cells(row, ".", "") for row in rows]
    row = data.draw(st.integers(0, len(rows) - 1))
    name, cell = data.draw(st.sampled_from([(n, c) for n in CORRUPTED for c in CORRUPTED[n]]))
    table[row][[column.name for column in KINDS].index(name)] = cell
    way = {"separator": ";", "encoding": "utf-8", "end": "\n", "blank lines": 0}
    write(path, table, {**way, "quoting": csv.QUOTE_MINIMAL, "by pandas": False})
    line = 2 + row + sum(cell.count("\n") for above in table[:row] for cell in above)
    with pytest.raises(DataError, match=f"column {name} must hold .* in row {line}$") as caught:
        read(path, Schema(KINDS))
    assert cell in str(caught.value)


NAME = st.text(st.characters(blacklist_categories=("Cs",)), max_size=6)


@given(st.dictionaries(NAME, NAME, max_size=3), NAME)
def test_lines_of_a_schema_are_read_back(values, name):
    column = Column(name, "category", tuple(sorted({*values.values()})), codes=values)
    found = of_toml(to_toml(Schema((column,))).encode(), "schema")
    assert found.columns == (column,)
    assert found.columns[0].codes == values
