"""Columns that are asked about, and proposals; numbers of the rules are the manual's."""

import datetime

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from sklearn.tree import DecisionTreeClassifier

from engram.data.schema.columns import Column, File, Schema
from engram.data.schema.declared import declare
from engram.data.schema.fitting import fit
from engram.data.schema.typed import typed
from engram.data.schema.written import read_schema
from engram.settings.errors import DataError
from engram.settings.experiment import Experiment
from tests.samples import entry

rng = np.random.default_rng(0)
N = 200
Z = rng.normal(size=N)
FIRST = datetime.date(2024, 1, 1)
DAYS = [FIRST + datetime.timedelta(days=int(d)) for d in rng.integers(0, 300, N)]

ASKED = {
    "51 texts": ([f"v{k % 51}" for k in range(N)], "category"),
    "11 texts in 20 rows": ([f"v{k % 11}" for k in range(20)], "category"),
    "names": ([f"P{k:05}" for k in range(N)], "identifier"),
    "row numbers": ([str(k) for k in rng.permutation(N)], "identifier"),
    "row numbers, typed": (rng.permutation(N) + 7, "identifier"),
    "numbers of six digits": ([str(k) for k in rng.integers(100_000, 1_000_000, N)], "identifier"),
    "ISO days": ([str(day) for day in DAYS], "ignored"),
    "days": ([f"{day:%d.%m.%Y}" for day in DAYS], "ignored"),
    "days as numbers": ([f"{day:%Y%m%d}" for day in DAYS], "ignored"),
    "days, typed": (pd.to_datetime(pd.Series(DAYS)), "ignored"),
    "months": ([f"{day:%d %b %Y}" for day in DAYS], "ignored"),
    "times": ([f"{k % 24}:{k % 60:02}" for k in range(N)], "ignored"),
    "days of a year": ([f"{day:%d.%m.}" for day in DAYS], "ignored"),
    "days of a year, as numbers": ([f"{day:%d.%m}" for day in DAYS], "ignored"),
    "months of years": ([f"{day:%Y-%m}" for day in DAYS], "ignored"),
    "both": ([f"{day}T10:00:00Z" for day in DAYS], "ignored"),
    "sentences": ([f"came with pain no {k} on the left" for k in range(N)], "ignored"),
    "one number in most rows is text": (["?"] * 150 + [str(z) for z in Z[:50]], "?"),
    "parts of rows": (["Train", "test", "val", "train"] * 50, "ignored"),
    "1001 texts": ([f"v{k % 1001}" for k in range(3003)], "ignored"),
    "few numbers, most of the different cells": (["?"] * 50 + [*map(str, range(10))], "?"),
    "lab values": (["<5" if z < 0 else f"{z:.3f}" for z in Z], "<5"),
}
NUMBERS = {
    "percent": ([f"{50 + 10 * z:.2f} %" for z in Z], 50 + 10 * Z, 'unit = "%"'),
    "currency": ([f"${500 + 90 * z:.2f}" for z in Z], 500 + 90 * Z, 'unit = "$"'),
    "decimal comma": ([f"{z:.2f}".replace(".", ",") for z in Z], Z, 'decimal = ","'),
    "thousands": ([f"{5000 + 900 * z:,.2f}" for z in Z], 5000 + 900 * Z, 'thousands = ","'),
    "exponents": ([f"{z:.5E}".replace(".", ",") for z in Z], Z, 'decimal = ","'),
    "French": (
        [f"{5e3 + 900 * z:,.2f}".translate(str.maketrans(",.", "\u202f,")) for z in Z],
        5e3 + 900 * Z,
        'decimal = ",", thousands = " "',
    ),
    "unit": ([f"{50 + 9 * z:.2f} kg" for z in Z], 50 + 9 * Z, 'unit = "kg"'),
    "points": (
        [f"{k:,}".replace(",", ".") for k in range(500, 500 + 9 * N, 9)],
        np.arange(500, 500 + 9 * N, 9),
        'decimal = ",", thousands = "."',
    ),
    "millions": (["1.234.567", "12"] * N, [1_234_567, 12] * N, 'decimal = ",", thousands = "."'),
    "German thousands": (
        [f"{5e3 + 900 * z:,.2f}".translate(str.maketrans(",.", ".,")) + " €" for z in Z],
        5e3 + 900 * Z,
        'unit = "€", decimal = ",", thousands = "."',
    ),
}
SAFE = {
    "numbers": [f"{z:.3f}" for z in Z],
    "negative, exponents": [f"{z:.2e}" for z in Z],
    "few whole numbers": [str(k) for k in rng.integers(0, 90, N)],
    "50 texts": [f"v{k % 50}" for k in range(N)],
    "ten texts in ten rows": [f"v{k}" for k in range(10)],
    "codes with zeros": [f"{k % 9:02}" for k in range(N)],
    "one number among texts": ["low", "high", "7"] * 20,
    "truth values": ["True", "False"] * (N // 2),
    "classes with a number": [f"Class{k % 2}" for k in range(N)],
    "a 999 among its like": [str(k) for k in rng.integers(0, 2000, N - 2)] + ["999", "999"],
    "one 999": [str(k) for k in rng.integers(0, 9, N - 1)] + ["999"],
    "two decimals": [f"{1 + abs(z):.2f}" for z in Z],
    "five digits": [str(k) for k in rng.integers(10_000, 99_999, N)],
}


def fitted(cells, written="", **known):
    frame = pd.DataFrame({"v": list(cells) if not isinstance(cells, pd.Series) else cells})
    return fit(frame, read_schema(written) if written else Schema(), **known)


def test_a_column_that_may_be_several_things_is_asked_about():
    for name, (cells, proposal) in ASKED.items():
        with entry(name):
            (question,) = fitted(cells).questions
            assert question.column == "v"
            assert question.cells or any(repr(cell) in question.looks for cell in cells)
            assert set(question.cells) <= {*map(str, cells)}
            assert proposal in question.choices[0]
            for choice in question.choices:  # each is a schema, and an answer
                assert not fitted(cells, choice).questions, choice


def test_units_and_marks_around_numbers_are_named():
    for name, (cells, numbers, line) in NUMBERS.items():
        with entry(name):
            (question,) = fitted(cells).questions
            assert f"columns.v = {{{line}}}" in question.choices
            found = fitted(cells, f"columns.v = {{{line}}}")
            assert not found.questions
            assert (found.schema.by_name["v"].kind == "whole") == all(n == int(n) for n in numbers)
            read = typed(found.schema.by_name["v"], pd.Series(cells))
            np.testing.assert_allclose(read, numbers, atol=0.006)


def test_a_column_that_is_one_thing_is_not_asked_about():
    for name, cells in SAFE.items():
        with entry(name):
            assert not fitted(cells).questions


def test_a_column_of_declared_values_is_not_asked_about():
    values = 'columns.v = {values = ["1", "2", "3", "other"]}'
    found = fitted(["1", "2", "3", "other"] * 20, values)
    assert not found.questions
    assert (found.schema.columns[0].kind, len(found.schema.columns[0].values)) == ("category", 4)
    (question,) = fitted(["1", "2", "3", "else"] * 20, values).questions
    assert question.rule == "mixed"


def test_a_comma_may_be_either_mark():
    (question,) = fitted([f"{k % 7},{k % 900 + 100}" for k in range(N)]).questions
    choices = ('columns.v = {decimal = ","}', 'columns.v = {thousands = ","}')
    assert question.choices == choices


def test_two_cells_far_from_all_others_may_be_codes():
    for code, low, high in ((-99, 0, 30), (999, 20, 90), (-9, 0, 2)):
        with entry(code):
            cells = rng.integers(low, high, N).astype(str)
            cells[3] = str(code)
            assert not fitted(cells).questions
            cells[5] = str(code)
            (question,) = fitted(cells).questions
            assert question.choices[0] == f'columns.v = {{missing = ["{code}"]}}'
            assert not fitted(rng.integers(code - 5, code + 5, N).astype(str)).questions
            known = 'columns.v = {kind = "number"}'  # by the task, or written
            for line in ("", known):
                e = Experiment(method="fedavg", task="regression", target_column="v", schema=line)
                of_task = declare(e).may_have_codes
                asked = fitted(cells, known, target="v", may_have_codes=of_task).questions
                assert [each.choices[0] for each in asked] == [question.choices[0]] * (not line)


def test_values_that_differ_in_blanks_are_asked_about_and_others_stripped():
    (question,) = fitted(["yes", "no", "yes ", "no"] * 20).questions
    assert '"yes " = "yes"' in question.choices[0]
    found = fitted(["yes ", " no"] * 20)
    assert not found.questions
    assert found.schema.by_name["v"].values == ("no", "yes")


def test_values_that_differ_in_case_or_form_are_asked_about():
    for one, other in [("yes", "Yes"), ("caf\u00e9", "cafe\u0301"), ("Stra\u00dfe", "STRASSE")]:
        with entry(one, other):
            (question,) = fitted([one, one, other, "b"] * 20).questions
            known = read_schema(question.choices[0])
            found = typed(known.columns[0], pd.Series([one, other, "b"]))
            assert found.tolist() == [one, one, "b"]
            written = read_schema(question.choices[1])
            assert not fit(pd.DataFrame({"v": [one, other] * 20}), written).questions


def test_a_sign_of_mathematics_is_a_minus():
    cells = [f"{k - 9}.5".replace("-", "\u2212") for k in range(30)]
    found = fitted(cells)
    assert not found.questions
    assert typed(found.schema.columns[0], pd.Series(cells)).tolist() == [
        float(cell.replace("\u2212", "-")) for cell in cells
    ]


def test_row_numbers_that_programs_write_are_no_inputs():
    frame = pd.DataFrame({"Unnamed: 0": range(N), "__index_level_0__": range(N), "": range(N)})
    found = fit(frame, Schema())
    assert not found.questions
    assert {column.kind for column in found.schema.columns} == {"ignored"}


TARGETS = [
    (range(N), True),
    ([0, 1] * 100, False),
    ([1, 2] * 100, False),
    ([-1, 1] * 100, False),
    ([k % 20 for k in range(N)], False),
    ([k % 21 for k in range(N)], True),
    ([0, 1, 3] * 50, True),
    ([0, 1, 3, 5] * 50, True),
    (Z, False),
    (["a", "b", "c", "d"] * 50, False),
    (["yes", "Yes", "no"] * 50, True),
    (map(str, DAYS), True),
    ([f"v{k % 50}" for k in range(N)], False),
    ([f"v{k % 51}" for k in range(N)], True),
    (["0", "1", "1", "?"] * 50, "not even where it is known"),
]


def test_a_target_of_many_or_of_odd_whole_numbers_is_asked_about():
    for given, asks in TARGETS:
        with entry(cells := [*given], asks):
            assert bool(fitted(cells, target="v").questions) == bool(asks)
            known = fitted(cells, target="v", is_written=True).questions
            assert bool(known) == isinstance(asks, str)


def test_two_values_that_clients_code_differently_are_asked_about():
    for held, asks in [
        ({"A": "01", "B": "12", "C": "01"}, True),
        ({"A": "12", "B": "23"}, True),
        ({"A": "01", "B": "12", "C": "02"}, False),  # classes of which each has two
        ({"A": "01", "B": "12", "C": "012"}, False),
        ({"A": "01", "B": "01"}, False),
        ({"A": "01", "B": "1"}, False),
    ]:
        pairs = [(client, value) for client, own in held.items() for value in [*own] * 20]
        clients, cells = (np.array(each) for each in zip(*pairs, strict=True))
        frame = pd.DataFrame({"v": cells})
        with entry(held):
            questions = fit(frame, Schema(), target="v", clients=clients).questions
            assert bool(questions) == asks
            for question in questions:
                assert " at A, C, and " in question.looks or " at A, and " in question.looks
                known = read_schema(question.choices[0])
                assert not fit(frame, known, target="v", clients=clients).questions


def test_a_column_that_is_the_target_again_is_asked_about():
    y = ["ill", "well"] * 100
    frame = pd.DataFrame({"code": [{"ill": "J10", "well": "Z00"}[v] for v in y], "y": y})
    frame["sex"] = ["m", "f", "f", "m"] * 50
    (question,) = fit(frame, Schema(), target="y").questions
    assert question.column == "code"


def test_cells_for_nothing_are_counted_and_are_no_values():
    found = fitted(["NA", "ZA", "BW", "None"] * 10)
    assert found.schema.by_name["v"].values == ("BW", "ZA")
    assert found.notes == [
        f"v: 10 cells say '{cell}', and count as missing unless it is of its values"
        for cell in ("NA", "None")
    ]
    declared = fitted(["NA", "ZA", "BW"] * 10, 'columns.v = {values = ["NA", "ZA", "BW"]}')
    assert declared.schema.by_name["v"].values == ("NA", "ZA", "BW")
    assert not declared.notes


def test_columns_of_one_value_are_left_out_where_rows_are_of_all_sites():
    gaps = ["A", None] * (N // 2)
    cases = [(["A"] * N, "refuse"), ([7] * N, "median"), ([0.5] * N, "refuse")]
    cases += [([None] * N, "indicator"), (gaps, "refuse"), (gaps, "median"), (gaps, "indicator")]
    for cells, missing in cases:
        tells = len({*cells}) > 1 and missing != "median"  # which are missing
        with entry(cells[:2], missing):
            known, frame = Schema(missing=missing), pd.DataFrame({"v": cells})
            found = fit(frame, known, of_all=True)
            assert (not found.constants) == (found.schema.columns[0].kind != "ignored") == tells
            assert not fit(frame, known).constants
            for kind in ("number", "category"):
                named = Schema((Column("v", kind, ("A",) * (kind == "category")),))
                assert not fit(frame, named, of_all=True).constants


def test_numbers_that_alone_tell_the_target_are_said():
    ill, near = np.where(Z > 0.4, "ill", "well"), Z + rng.normal(size=N) / 9
    three = np.digitize(Z, [-0.5, 0.5]).astype(str)
    for x in (Z, -Z, np.exp(Z), np.rint(9 * Z), abs(Z), near):
        for y in (ill, three, 2 * Z + 1):
            if y.dtype.kind == "U":
                leaves = len({*y})
                tree = DecisionTreeClassifier(max_leaf_nodes=leaves).fit(x[:, None], y)
                tells = tree.score(x[:, None], y) == 1
            else:
                tells = abs(spearmanr(x, y).statistic) > 1 - 1e-12
            with entry(x[0], y[0]):
                notes = fit(pd.DataFrame({"x": x, "y": y}), Schema(), target="y").notes
                assert any(note.startswith("x alone tells y: ") for note in notes) == tells


def test_missing_codes_are_of_one_column():
    frame = pd.DataFrame({"smoker": ["0", "1", "9"] * 20, "children": ["0", "3", "9"] * 20})
    found = fit(frame, Schema((Column("smoker", kind="category", missing=("9",)),)))
    assert found.schema.by_name["smoker"].values == ("0", "1")
    assert found.schema.by_name["children"].kind == "whole"


def test_the_line_of_a_question_is_toml_for_any_name_of_a_column():
    frame = pd.DataFrame({'county.name, "old"': [f"P{k:05}" for k in range(N)]})
    (question,) = fit(frame, Schema()).questions
    for choice in question.choices:
        assert not fit(frame, read_schema(choice)).questions
    odd = fitted(["1", "2", 'none "yet"'] * 20)
    written = read_schema(odd.questions[0].choices[0])
    assert written.columns[0].missing == ('none "yet"',)


def test_cells_that_count_as_missing_in_any_column_are_said():
    frame = pd.DataFrame({"smoker": ["0", "1", "9"] * 20, "age": ["30", "40", "9"] * 20})
    found = fit(frame, Schema(file=File(missing=("9", "-77"))))
    assert found.notes == [
        "'9' counts as missing in 20 of smoker, 20 of age",
        "'-77' counts as missing in no cell",
    ]
    with pytest.raises(DataError, match=r'write columns\.smoker = \{missing = \["9"\]\}'):
        fit(frame, Schema(file=File(missing=("smoker=9; age=-1",))))
