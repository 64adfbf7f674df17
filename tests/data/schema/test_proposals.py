"""Schemas that are proposed: an answer of a person's is read, and gives what pandas reads."""

import numpy as np
import pandas as pd
import pytest

from engram.data.schema.cells import named_cells
from engram.data.schema.declared import declare
from engram.data.schema.proposal import described
from engram.data.schema.written import read_schema
from engram.data.tables.raw_tables import of_file
from engram.settings.data import DataSettings
from engram.settings.errors import DataError
from tests.samples import entry

DAYS = pd.date_range("2023-01-25", periods=40)


def written(folder, frame, **how):
    frame = frame.assign(died=np.arange(len(frame)) % 2)
    frame.to_csv(path := folder / "t.csv", index=False, **how)
    return path


def read(path, schema):
    settings = {"target-column": "died", "schema": schema}
    return of_file(path, declare(DataSettings.model_validate(settings)))["x"]


def test_the_line_for_dates_reads_them(tmp_path):
    for how in ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%Y%m%d", "%d.%m.%y %H:%M"):
        frame = pd.DataFrame({"seen": DAYS.strftime(how), "dose": np.arange(40) / 4})
        path = written(tmp_path, frame)
        with entry(how), pytest.raises(DataError, match="looks like dates") as asked:
            read(path, "")
        *_, line = str(asked.value).split(": write ")[-1].split(", or ")
        assert (read(path, line)["seen"] == (DAYS - pd.Timestamp("2000-01-01")).days).all()


def test_days_and_months_that_may_be_exchanged_are_two_choices(tmp_path):
    days = pd.date_range("2023-01-01", periods=12)
    path = written(tmp_path, pd.DataFrame({"seen": days.strftime("%d/%m/%Y"), "z": range(12)}))
    text = described(str(path), {"target-column": "died"})
    assert 'format = "%d/%m/%Y"' in text
    assert 'format = "%m/%d/%Y"' in text


def test_no_proposal_makes_classes_of_ages(tmp_path):
    frame = pd.DataFrame({"died": np.arange(80) % 67, "dose": np.arange(80) / 4})
    frame.to_csv(path := tmp_path / "t.csv", index=False)
    given = {"target-column": "died", "strict": False}
    with pytest.raises(DataError, match=r"67 different whole numbers, to predict .*regression"):
        of_file(path, declare(DataSettings.model_validate(given)))


def test_marks_of_all_numbers_are_the_files(tmp_path):
    columns = {"dose": np.arange(40) / 4, "crp": np.arange(40) / 8, "k": [1, 2, 3, 1] * 10}
    path = written(tmp_path, pd.DataFrame(columns), sep=";", decimal=",")
    schema = described(str(path), {"target-column": "died"})
    known = read_schema(schema)
    assert (known.file.separator, known.file.decimal) == (";", ",")
    assert not any(column.decimal for column in known.columns)
    assert "Or: \n" not in schema
    found, right = read(path, schema), pd.read_csv(path, sep=";", decimal=",")
    for name in ("dose", "crp"):
        np.testing.assert_array_equal(found[name], right[name])


@pytest.mark.parametrize("note", ['"two\nlines"', "plain"])
def test_rows_are_called_by_the_lines_of_an_editor(tmp_path, note):
    text = f"note,dose,died\n{note},1.5,0\n\nplain,2.5,1\nplain,many,0\n"
    (path := tmp_path / "t.csv").write_text(text, encoding="utf-8")
    line = 1 + path.read_text(encoding="utf-8").split("\n").index("plain,many,0")
    with pytest.raises(DataError, match=f"dose must hold numbers, got 'many' in row {line}$"):
        read(path, 'columns.dose = {kind = "number"}\ncolumns.note = {kind = "ignored"}')


def test_a_file_of_text_goes_by_its_name_or_kind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"dose": np.arange(40) / 4, "sex": ["f", "m"] * 20, "lab": "A"})
    for name in ("t.csv", "csv:t.csv", "T.CSV", "t.tsv", "csv:t.data"):
        frame.to_csv(name.removeprefix("csv:"), sep="\t", index=False)
        with entry(name):
            columns = read_schema(text := described(name, {})).columns
            assert [column.kind for column in columns] == ["number", "category", "ignored"]
            assert "# It has no value but 'A' (\"A\"). Or: columns.lab = {kind = " in text


@pytest.mark.parametrize("code", ["-99", "-99.0", "999"])
def test_a_code_is_missing_however_it_is_written(tmp_path, code):
    dose = pd.Series([*np.linspace(1, 9, 38).round(2), code, code], dtype=object)
    path, shown = written(tmp_path, pd.DataFrame({"dose": dose})), f"{float(code):.0f}"
    comment = f"# It has '{shown}' in row 40 and 1 more rows, far from its other numbers. Or: "
    assert comment in described(str(path), {"target-column": "died"})
    for kind in ("", 'kind = "number", '):
        with pytest.raises(DataError, match="dose is missing in row 40"):
            read(path, f'columns.dose = {{{kind}missing = ["{shown}"]}}')


def test_a_code_for_a_missing_value_that_is_nowhere_is_said(tmp_path, caplog):
    path = written(tmp_path, pd.DataFrame({"dose": np.linspace(1, 9, 40)}))
    read(path, 'columns.dose = {missing = ["-98"]}')
    assert "'-98' counts as missing in no cell of dose" in caplog.text


def test_whole_numbers_of_any_type_are_shown_as_such():
    assert named_cells(pd.Series([1.5, 999.0]), np.arange(2), [1]) == "'999' in row 1"
