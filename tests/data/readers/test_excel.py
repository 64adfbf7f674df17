"""Excel's workbooks are read as the CSV files that pandas writes of the same tables."""

import datetime

import numpy as np
import pandas as pd
import pytest

import engram
from engram.data.readers.csv_files import read_csv
from engram.data.readers.table_files import read_rows
from engram.data.schema.columns import File
from engram.data.schema.proposal import described
from engram.home.predicting import predict
from engram.settings.errors import DataError, Refused
from tests.samples import entry

openpyxl = pytest.importorskip("openpyxl", reason="the extra excel brings it")

N = 60
RNG = np.random.default_rng(0)
AGE = RNG.integers(20, 90, N)
TABLE = pd.DataFrame(
    {"age": AGE, "dose": RNG.normal(size=N) * 1e5, "code": [f"{k:04}" for k in AGE]}
)
TABLE["smoker"] = np.where(AGE % 2, "yes", "no")
TABLE["seen"] = pd.date_range("2024-02-01", periods=N)
TABLE["died"], TABLE["ward"] = (AGE > 55), np.array(["east", "west"])[np.arange(N) % 2]
TABLE["dose"] = TABLE.dose.where(np.arange(N) % 9 > 0)
GIVEN = {"method": "fedavg", "target_column": "died", "task_column": "ward", "num_rounds": 2}
GIVEN |= {"missing": "median", "progress": False, "batch_size": 4, "eta": 0.3}
SCHEMA = """columns.seen = {kind = "date", since = "2024-01-01"}
columns.code = {kind = "ignored"}"""


def write(path, **sheets):
    """Writes frames, or rows as they are, as the sheets of a workbook."""
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, table in sheets.items():
        rows = table
        if isinstance(table, pd.DataFrame):
            cells = table.astype(object).where(table.notna(), None).to_numpy().tolist()
            rows = [list(table.columns), *cells]
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


@pytest.fixture
def book(tmp_path):
    return write(tmp_path / "t.xlsx", patients=TABLE)


def test_cells_are_those_of_a_file_of_text(book, tmp_path):
    table = TABLE.assign(seen=TABLE.seen.dt.strftime("%Y-%m-%d"))
    table.to_csv(tmp_path / "t.csv", index=False)
    right = read_csv(tmp_path / "t.csv", File()).to_pandas()
    found = read_rows(book, File())
    assert list(found.columns) == list(right.columns)
    for name in right:
        if name == "dose":  # Excel stores 15 digits
            numbers = [*map(float, filter(None, found[name]))]
            np.testing.assert_allclose(numbers, TABLE.dose.dropna(), rtol=1e-14)
            assert [not text for text in found[name]] == TABLE.dose.isna().tolist()
        else:
            assert found[name].tolist() == right[name].tolist()
    assert found.index.tolist() == [*range(2, N + 2)]  # as the sheet counts


def test_times_truth_values_and_large_numbers_are_written_in_full(tmp_path):
    moment = datetime.datetime(2024, 3, 1, 10, 30, 5)
    cells = [moment, datetime.time(7, 45), True, 12345678901234, 0.1, "007", "NA", None]
    cells += [datetime.timedelta(hours=26, minutes=15)]
    path = write(tmp_path / "t.xlsx", a=[[*"abcdefghi"], cells, cells])
    wanted = ["2024-03-01T10:30:05", "07:45:00", "True", "12345678901234", "0.1", "007", "NA", ""]
    wanted += ["26.25 h"]
    assert read_rows(path, File()).iloc[0].tolist() == wanted


def test_a_run_is_that_of_the_same_table_in_text(book, tmp_path):
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    one, two = (
        engram.simulate(dataset=f"{kind}:{tmp_path}/t.{kind}", schema=SCHEMA, **GIVEN)
        for kind in ("csv", "xlsx")
    )
    pd.testing.assert_frame_equal(one.clients, two.clients)
    assert list(two.clients.index) == ["east", "west"] == sorted(one.clients.index)


def test_new_rows_are_predicted_and_copied(book, tmp_path):
    run = engram.simulate(dataset=f"xlsx:{book}", schema=SCHEMA, **GIVEN)
    folder = run.export("east", out=tmp_path / "east")
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    found = predict(folder, book, tmp_path / "x.csv").table
    right = predict(folder, tmp_path / "t.csv", tmp_path / "c.csv").table
    assert found["predicted"].tolist() == right["predicted"].tolist()
    assert found["code"].tolist() == TABLE.code.tolist()  # zeros and all
    assert "0" in TABLE.code[0][:1]
    adapted = run.adapt(book, out=tmp_path / "new")
    assert (adapted / "model.json").exists()


def test_a_schema_is_proposed(book):
    lines = described(str(book), {"target-column": "died", "task-column": "ward"})
    assert '[columns.seen]\nkind = "ignored"' in lines
    assert 'role = "target"' in lines


def test_the_only_table_is_found_among_sheets_and_blank_lines(tmp_path):
    table = [["Export of May"], [], ["a", "b", "c"], [1, 2, 5], [], [3, 4, 6]]
    path = write(tmp_path / "t.xlsx", notes=[["see the second sheet"]], empty=[], rows=table)
    with pytest.raises(DataError, match=r"file.skip = 1 into the schema"):
        read_rows(path, File())
    found = read_rows(path, File(skip=1))
    assert found.to_dict("list") == {"a": ["1", "3"], "b": ["2", "4"], "c": ["5", "6"]}
    assert found.index.tolist() == [4, 6]


def test_the_sheet_of_several_is_asked_about(tmp_path):
    path = write(tmp_path / "t.xlsx", one=TABLE.assign(x=1), two=TABLE[:30])
    for how, words in (
        ({}, r'tables in several sheets: write file.sheet = "one", or file.sheet = "two"'),
        ({"sheet": "three"}, "has no sheet 'three'; it has one, two"),
        ({"sheet": "one", "names": ("a",)}, "file.names must name each of the 8 columns"),
    ):
        with entry(how), pytest.raises(DataError, match=words):
            read_rows(path, File(**how))
    lines = f'{SCHEMA}\nfile.sheet = "two"'
    run = engram.simulate(dataset=f"xlsx:{path}", schema=lines, **GIVEN)
    assert sum(len(rows) for each in ("east", "west") for rows in run.split(each).values()) == 30


def test_other_files_are_refused(tmp_path):
    for content in (b"", b"PK\x03\x04no", b"<html><table></table></html>", b"\xd0\xcf\x11"):
        (tmp_path / "t.xlsx").write_bytes(content)
        words = r"must be a workbook as Excel writes it \(\.xlsx\)"
        with entry(content), pytest.raises(DataError, match=words):
            read_rows(tmp_path / "t.xlsx", File())
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_rows(tmp_path / "no.xlsx", File())


def test_without_the_package_it_is_named(book, monkeypatch):
    from engram.data.readers import table_files

    monkeypatch.setattr(table_files, "find_spec", lambda name: None)
    with pytest.raises(Refused, match=r"pip install 'engram\[excel\]'"):
        engram.simulate(dataset=f"xlsx:{book}", **GIVEN)
