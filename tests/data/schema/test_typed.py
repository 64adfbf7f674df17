"""Cells as numbers and values, beside what pandas and NumPy make of the same ones."""

import numpy as np
import pandas as pd
import pytest

from engram.data.schema.columns import Column
from engram.data.schema.typed import typed
from engram.data.schema.written import read_schema
from engram.settings.errors import DataError
from tests.data.schema.test_rules import NUMBERS
from tests.samples import entry

NAN = np.nan


def test_numbers_are_read_by_their_marks():
    for name, (cells, numbers, line) in NUMBERS.items():
        (column,) = read_schema(f'columns.v = {{kind = "number", {line}}}').columns
        with entry(name):
            np.testing.assert_allclose(typed(column, pd.Series(cells)), numbers, atol=0.00501)


KINDS = [
    (Column("v", "number", missing=("?",)), ["1", "?", "", " 2.5 "], [1, NAN, NAN, 2.5]),
    (Column("v", "number", missing=("-9",)), [1, -9, 3], [1, NAN, 3]),
    (Column("v", "number", factor=0.1), [10, 20], [1, 2]),
    (Column("v", "number", factor=0.1), ["10", "20"], [1, 2]),
    (Column("v", "truth"), ["True", "false", "NA"], [1, 0, NAN]),
    (Column("v", "truth", values=("no", "yes")), ["yes", "no"], [1, 0]),
    (Column("v", "ordered", values=("I", "II", "III")), ["III", "I", ""], [2, 0, NAN]),
    (Column("v", "date", since="2024-01-01"), ["2024-01-02", "2023-12-31T12:00"], [1, -0.5]),
    (Column("v", "date", since="2024-01-01", format="%d.%m.%Y"), ["02.01.2024"], [1]),
    (Column("v", "number"), [2**53 - 1, 1e300], [2**53 - 1, 1e300]),
]


def test_kinds_of_numbers():
    for column, cells, wanted in KINDS:
        with entry(column, cells):
            found = typed(column, pd.Series(cells)).astype(float)
            np.testing.assert_array_equal(found, wanted)


def test_codes_are_read_as_their_values():
    column = Column("sex", "category", values=("F", "M"), codes={"1": "M", "2": "F", "m ": "M"})
    found = typed(column, pd.Series(["1", "2", "m ", "F", None, " M"]))
    assert found.tolist()[:4] == ["M", "F", "M", "F"]
    assert found.isna().tolist() == [False] * 4 + [True, False]
    numbers = typed(column, pd.Series([1, 2, 2]))
    assert numbers.tolist() == ["M", "F", "F"]


def test_identifiers_stay_as_they_are_written():
    cells = ["007", "1e5", "1.10", "123456789012345678"]
    assert typed(Column("id", "identifier"), pd.Series(cells)).tolist() == cells


STRANGE = [
    (Column("v", "number"), ["1", "1,5", "x"]),
    (Column("v", "number", thousands=","), ["1,23", "1,234"]),
    (Column("v", "number", decimal=","), ["1.5"]),
    (Column("v", "whole"), ["1.5"]),
    (Column("v", "whole"), [1.5, 2]),
    (Column("v", "category", values=("a", "b")), ["a", "c", "c"]),
    (Column("v", "ordered", values=("a", "b")), ["A"]),
    (Column("v", "date"), ["31.12.2023"]),
    (Column("v", "truth"), ["ja"]),
    (Column("v", "number"), ["1_000"]),
    (Column("v", "number"), ["inf"]),
    (Column("v", "number"), ["٣"]),
]


def test_cells_that_are_something_else_are_named():
    for column, cells in STRANGE:
        with entry(column, cells), pytest.raises(DataError, match="column v must hold"):
            typed(column, pd.Series(cells))
