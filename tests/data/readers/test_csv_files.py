"""Text files as programs write them: read as pandas reads them when it is told how, or refused."""

import csv
import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.data.readers.csv_files import read_csv
from engram.data.readers.table_files import read_text
from engram.data.schema.columns import File
from engram.data.schema.written import of_toml, read_schema, to_toml
from engram.settings.errors import DataError, Refused

TABLE = pd.DataFrame(
    {
        "age": ["63.5", "70", ""],
        "ward": ["Gynäkologie", 'he said "no"', "two\nlines"],
        "site": ["a", "b;c", "d,e"],
    }
)


def read(path, **known):
    return read_csv(path, File(**known)).to_pandas()


@pytest.mark.parametrize(
    ("how", "known"),
    [
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
    ],
)
def test_dialects_are_found_or_told(tmp_path, how, known):
    TABLE.to_csv(path := tmp_path / "t.csv", index=False, **how)
    found = read(path, **known)
    assert found.map(lambda c: c.replace("\r\n", "\n")).equals(TABLE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("a,b\n1,2\n3\n", "line 3 has 1 cells, and its first one 2$"),
        ("a;b\n\n1;2\n3\n", "line 4 has 1 cells, and its first one 2$"),
        ("Lab, ward 3\n\na\tb\tc\n1\t2\t3\n4\t5\t6\n", "line 3 has 3 .* write file.skip = 2"),
        ("a,a\n1,2\n", "several columns a"),
        ("1.5,2.5\n1,2\n3,4\n", "file.names"),
        ("Export,,,\na,b,c,d\n1,2,3,4\n", "file.skip = 1"),
        ("a;b,c\n1;2,3\n", "file.separator"),
        ("a,b\n1,Gyn\xe4\n", "file.encoding"),
    ],
)
def test_what_may_be_read_in_several_ways_is_asked(tmp_path, text, words):
    (path := tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=words):
        read(path)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"encoding": "no-such"}, "file.encoding, which is no-such: unknown encoding"),
        ({"encoding": "cp1252"}, "file.encoding, which is cp1252: .* decode byte 0x81"),
        ({"encoding": "utf-16"}, "file.encoding, which is utf-16: .* does not start with BOM"),
        ({"encoding": "latin-1", "separator": ";", "skip": 9}, "is empty"),
    ],
)
def test_a_dialect_that_a_file_does_not_have_is_refused(tmp_path, known, words):
    (path := tmp_path / "t.csv").write_bytes(b"a;b\n1;\x81\n2;x\n")
    with pytest.raises(DataError, match=words):
        read(path, **known)


def test_what_is_written_of_a_file_is_read_again():
    lines = 'file.separator = ";"\nfile.skip = 2\nfile.decimal = ","\nfile.names = ["a", "b"]'
    file = File(separator=";", skip=2, decimal=",", names=("a", "b"))
    assert read_schema(lines).file == file
    assert of_toml(to_toml(read_schema(lines)).encode(), "it").file == file
    with pytest.raises(Refused, match=r"file\.separator"):
        read_schema('file.separator = "::"')


@given(
    cells=st.lists(
        st.lists(st.text('a";\t\r\n ', max_size=4), min_size=2, max_size=2), min_size=1, max_size=5
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


@pytest.mark.parametrize(
    ("text", "line", "wanted"),
    [
        ("a;b,c\n1;2,3\n", 'file.separator = ";"', {"a": ["1"], "b,c": ["2,3"]}),
        ("a,b\n1,Gyn\xe4\n", 'file.encoding = "cp1252"', {"a": ["1"], "b": ["Gyn\xe4"]}),
        ("Export,,\na,b,c\n1,2,3\n", "file.skip = 1", {"a": ["1"], "b": ["2"], "c": ["3"]}),
        ("Lab\n\na\tb\n1\t2\n3\t4\n", "file.skip = 2", {"a": ["1", "3"], "b": ["2", "4"]}),
        ("Lab\nWard\na,b\n1,2\n3,4\n", "file.skip = 2", {"a": ["1", "3"], "b": ["2", "4"]}),
        ("1.5,2\n3,4\n", 'file.names = ["x0", "x1"]', {"x0": ["1.5", "3"], "x1": ["2", "4"]}),
    ],
)
def test_the_line_of_a_refusal_is_an_answer(tmp_path, text, line, wanted):
    (path := tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError) as caught:
        read(path)
    assert line.split(" = ")[0] in str(caught.value)
    assert read_csv(path, read_schema(line).file).to_pandas().to_dict("list") == wanted


def test_a_title_is_skipped_where_that_is_told(tmp_path):
    (path := tmp_path / "t.csv").write_text("Export of today,\na,b\n1,2\n")
    assert read(path, skip=1).to_dict("list") == {"a": ["1"], "b": ["2"]}


def test_columns_of_numbers_are_read_as_such(tmp_path):
    numbers = np.random.default_rng(0).normal(size=(500, 3))
    pd.DataFrame(numbers, columns=list("abc")).to_csv(path := tmp_path / "t.csv", index=False)
    found = read_csv(path, File(), "abc").to_pandas()
    np.testing.assert_array_equal(found.to_numpy(), numbers)  # repr of a double is exact


CELL = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\x85\u2028\u2029"),
    max_size=8,
)


@given(
    st.lists(st.lists(CELL, min_size=2, max_size=2), min_size=1, max_size=6),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_what_pandas_writes_is_read_where_the_dialect_is_told(
    tmp_path_factory, rows, sep, encoding
):
    path = tmp_path_factory.mktemp("h") / "t.csv"
    frame = pd.DataFrame(rows, columns=["one", "two"])
    frame.to_csv(path, index=False, sep=sep, encoding=encoding, quoting=1)
    found = read_csv(path, File(separator=sep)).to_pandas()
    assert found.to_numpy().tolist() == rows
