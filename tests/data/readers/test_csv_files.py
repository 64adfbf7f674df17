"""Text files as programs write them: read as pandas reads them when it is told how, or refused."""

import csv
import io
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.data.readers.csv_files import read_csv, read_frame
from engram.data.readers.table_files import read_text
from engram.data.schema.columns import File, Schema
from engram.data.schema.declared import declare
from engram.data.schema.fitting import fit
from engram.data.schema.written import of_toml, read_schema, to_toml
from engram.data.tables.raw_tables import of_file
from engram.settings.data import DataSettings
from engram.settings.errors import DataError, Refused
from tests.samples import entry

TABLE = pd.DataFrame(
    {
        "age": ["63.5", "70", ""],
        "ward": ["Gynäkologie", 'he said "no"', "two\nlines"],
        "site": ["a", "b;c", "d,e"],
    }
)


ODD = "a;b\n1;\x81\n2;x\n"


def read(path, **known):
    return read_csv(path, File(**known)).to_pandas()


DIALECTS = [
    ({}, {}),
    ({"sep": ";"}, {}),
    ({"sep": "\t"}, {}),
    ({"sep": "|"}, {}),
    ({"encoding": "utf-8-sig"}, {}),
    ({"encoding": "utf-16"}, {}),
    ({"encoding": "cp1252", "sep": ";"}, {"encoding": "cp1252"}),
    ({"lineterminator": "\r\n"}, {}),
    ({"sep": "#"}, {"separator": "#"}),
    ({"header": False}, {"names": tuple(TABLE)}),
]


def test_dialects_are_found_or_told(tmp_path):
    for how, known in DIALECTS:
        with entry(how):
            TABLE.to_csv(path := tmp_path / "t.csv", index=False, **how)
            assert read(path, **known).map(lambda c: c.replace("\r\n", "\n")).equals(TABLE)


NO_TABLES = [
    ("", {}, "empty"),
    ("a,b\n1,2\n3\n", {}, "line 3 has 1 cells, and its first one 2$"),
    ("a;b\n\n1;2\n3\n", {}, "line 4 has 1 cells, and its first one 2$"),
    ("a,a\n1,2\n", {}, "several columns a"),
    ("\x1f\x8b\x08", {}, "is packed, or a workbook: unpack it, or name it .xlsx$"),
    (ODD, {"encoding": "no-such"}, "file.encoding, which is no-such: unknown encoding"),
    (ODD, {"encoding": "cp1252"}, "file.encoding, which is cp1252: .* decode byte 0x81"),
    (ODD, {"encoding": "utf-16"}, "file.encoding, which is utf-16: .* does not start with BOM"),
    (ODD, {"encoding": "latin-1", "separator": ";", "skip": 9}, "is empty"),
]


def test_other_files_and_dialects_are_refused(tmp_path):
    for text, known, words in NO_TABLES:
        (path := tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
        with entry(text, known), pytest.raises(DataError, match=words):
            read(path, **known)
    settings = DataSettings.model_validate({"target-column": "died"})
    again = "t.csv: row 3 has the names of the columns again"
    for text, words in (("", r"t\.csv must hold some rows$"), ("7,1\na,died\n7,1\n", again)):
        path.write_text(f"a,died\n{text}")
        with entry(text), pytest.raises(DataError, match=words):
            of_file(path, declare(settings))


def test_a_line_of_names_that_does_not_end_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('"a,b\n' + "1,2\n" * 50_000)
    with pytest.raises(DataError, match=r"is no table"):
        read_csv(path, File(separator=","))


def test_a_dialect_as_it_is_written_is_read_again():
    lines = 'file.separator = ";"\nfile.skip = 2\nfile.decimal = ","\nfile.names = ["a", "b"]'
    file = File(separator=";", skip=2, decimal=",", names=("a", "b"))
    assert read_schema(lines).file == file
    assert of_toml(to_toml(read_schema(lines)).encode(), "it").file == file
    with pytest.raises(Refused, match=r"file\.separator"):
        read_schema('file.separator = "::"')


@given(
    cells=st.lists(
        st.lists(st.text('a";\t\r\n é中', max_size=4), min_size=2, max_size=2),
        min_size=1,
        max_size=5,
    ),
    separator=st.sampled_from([";", "\t"]),
    ends=st.sampled_from(
        [
            (csv.QUOTE_MINIMAL, "\r\n"),  # csv quotes those ends alone that it writes
            (csv.QUOTE_ALL, "\n"),
            (csv.QUOTE_ALL, "\r"),
        ]
    ),
)
def test_rows_are_cut_where_arrow_cuts_them(tmp_path_factory, cells, separator, ends):
    quoting, end = ends
    frame = pd.DataFrame(cells, columns=["x", "y"])
    how = {"sep": separator, "index": False, "quoting": quoting, "lineterminator": end}
    path = tmp_path_factory.getbasetemp() / "cut.csv"
    path.write_bytes(frame.to_csv(**how).encode())
    file = File(separator=separator)
    text = read_text(path, file)
    assert len(text.rows) == len(read_csv(path, file).to_pandas()) == len(frame)
    copy = text.beside([1, 0], pd.DataFrame({"k": range(len(frame))}))
    again = csv.reader(io.StringIO(copy.decode(), newline=""), delimiter=separator)
    expected = [["y", "x", "k"], *([y, x, str(k)] for k, (x, y) in enumerate(cells))]
    assert [*again] == expected


ASKED = [
    ("a;b,c\n1;2,3\n", 'file.separator = ";"', {"a": ["1"], "b,c": ["2,3"]}),
    ("a,b\n1,Gyn\xe4\n", 'file.encoding = "cp1252"', {"a": ["1"], "b": ["Gyn\xe4"]}),
    ("Export,,\na,b,c\n1,2,3\n", "file.skip = 1", {"a": ["1"], "b": ["2"], "c": ["3"]}),
    ("Lab, 3\n\na\tb\n1\t2\n3\t4\n", "file.skip = 2", {"a": ["1", "3"], "b": ["2", "4"]}),
    ("Lab\nWard\na,b\n1,2\n3,4\n", "file.skip = 2", {"a": ["1", "3"], "b": ["2", "4"]}),
    ("a\0,\0b\0\n\0001\0,\0002\0\n\0", 'file.encoding = "utf-16-le"', {"a": ["1"], "b": ["2"]}),
    ("a,b\nr1,1,2\n", 'file.names = ["", "a", "b"]', {"": ["r1"], "a": ["1"], "b": ["2"]}),
    ("1.5,2\n3,4\n", 'file.names = ["x0", "x1"]', {"x0": ["1.5", "3"], "x1": ["2", "4"]}),
]


def test_the_line_of_a_refusal_is_an_answer(tmp_path):
    for text, line, wanted in ASKED:
        (path := tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
        with entry(text), pytest.raises(DataError, match=re.escape(line.rstrip("]"))):
            read(path)
        more = "\nfile.skip = 1" * text.startswith("a,b\nr1")
        assert read_csv(path, read_schema(line + more).file).to_pandas().to_dict("list") == wanted


def test_columns_of_numbers_are_read_as_such(tmp_path):
    numbers = np.random.default_rng(0).normal(size=(500, 3))
    for end in ("\n", "\r\n", "\r"):
        frame = pd.DataFrame(numbers, columns=list("abc"))
        frame.to_csv(path := tmp_path / "t.csv", index=False, lineterminator=end)
        with entry(end):
            found = read_frame(path, File(), Schema())
            np.testing.assert_array_equal(found.to_numpy(), numbers)  # repr of a double is exact


def test_points_between_thousands_are_asked_about_wherever_they_stand(tmp_path):
    path, whole = tmp_path / "t.csv", [*map(str, range(500))]
    cells = {"1.234": True, " -1.234": True, "12.5": False, "0.123": False, "1.2345": False}
    for cell, are_asked in cells.items():
        pd.DataFrame({"z": "7.5", "v": [*whole, cell, ""]}).to_csv(path, index=False)
        frame = read_frame(path, File(), Schema())
        for target, by_task in (("", False), ("v", False), ("v", True)):
            with entry(cell, target, by_task):
                questions = fit(frame, Schema(), target=target, may_have_codes=by_task).questions
                assert [q.column for q in questions] == ["v"] * are_asked
                assert all('decimal = ",", thousands = "."' in q.choices[0] for q in questions)
