"""Sites describe their tables, and agree on a schema by which networks train on all of them."""

import json

import numpy as np
import pandas as pd
import pytest

from federation.described import DescribedColumn, DescribedTable
from server.run import run as run_on
from server.survey import Survey, survey
from simulations.surveys import agreed, checked, schema_of, write_schema
from tests.hospitals import write_hospitals
from tests.server.nodes import NodesGrid
from tests.support import small

FOUR = {"num_clients": 4, "clients_per_round": 4, "method": "fedavg", "protocol": "standard"}
TARGETS = ["outcome", "days"]


def asked(paths, state, *, check=False, **settings):
    """Answers of nodes of this process with these files, and the settings they were asked by."""
    e = small(**FOUR | settings)
    grid = NodesGrid(e, [f"csv:{path}" for path in paths], state)
    return survey(grid, e, check=check, patience=1), e, grid


def test_all_faults_of_all_sites_are_named_at_once_and_once_mended_the_run_trains(tmp_path):
    raw = write_hospitals(tmp_path / "raw")
    found, _, _ = asked(raw, tmp_path, target_column="outcome")
    assert Survey.from_json(found.to_json()) == found
    settings, told = agreed(found, {}, TARGETS)
    assert list(map(str, told)) == [
        "client-1: crea lies 80.4 times above the other sites' (median 86 against 1.07): "
        "another unit?",
        "client-3: age has '?' in row 3: set missing-values=? for all sites, or correct it",
    ]
    assert [finding.stops for finding in told] == [False, True]
    assert settings == {
        "input-columns": "age,bp,crea,sex,smoker",
        "categories": "outcome=home|icu|ward; sex=f|m; smoker=current|former|never",
        "missing": "median",
    }

    paths = [*write_hospitals(tmp_path / "mended", mended=True)[:3], raw[3]]
    found, _, _ = asked(paths, tmp_path, target_column="outcome", missing_values="?")
    settings, told = agreed(found, {"missing-values": "?"}, TARGETS)
    assert told == []
    settings = {key.replace("-", "_"): value for key, value in settings.items()}
    found, e, grid = asked(paths, tmp_path, check=True, target_column="outcome", **settings)
    assert (checked(found, e), found.absent) == ([], {})
    assert sum(found.rows.values()) == pytest.approx(0.6 * 0.8 * 740, abs=4)  # tested, validated
    results = run_on(grid, e, tmp_path / "run", engine="vectorized")
    assert results["rounds"] == e.num_rounds
    assert "left-out" not in results
    assert results["classes"] == ["home", "icu", "ward"]


def test_a_check_says_of_every_site_what_keeps_it_out(tmp_path):
    paths = write_hospitals(tmp_path / "raw")
    west = pd.read_csv(paths[3]).rename(columns={"bp": "pressure"})
    west.loc[5, "smoker"] = "ex"
    west.to_csv(paths[3], index=False)
    settings = {"categories": "outcome=home|icu|ward; sex=f|m; smoker=current|former|never"}
    settings |= {"target_column": "outcome", "input_columns": "age,bp,crea,sex,smoker"}
    found, e, _ = asked(paths, tmp_path, check=True, missing_values="?", **settings)
    told = [str(finding) for finding in checked(found, e)]
    missing = "set missing=median or missing=indicator, or fill it in"
    counts = [pd.read_csv(path)[["crea", "smoker"]].isna().sum() for path in paths]
    rows = (400, 160, 60, 120)
    assert told == [
        line
        for site in range(4)
        for line in [
            *["client-3: lacks bp (it has pressure besides): add or rename them, or leave "
              "them out by input-columns"] * (site == 3),
            *["client-3: age is missing in 1 of 120 rows: " + missing] * (site == 3),
            f"client-{site}: crea is missing in {counts[site]['crea']} of {rows[site]} rows: "
            f"{missing}",
            *["client-1: crea lies 80.4 times above the other sites' (median 86 against 1.07): "
              "another unit?"] * (site == 1),
            *["client-3: smoker has ex, which no site may have: correct it, or add it to "
              "categories (current, former, never)"] * (site == 3),
            *[f"client-{site}: smoker is missing in {counts[site]['smoker']} of {rows[site]} rows: "
              f"{missing}"] * bool(counts[site]["smoker"]),
        ]
    ]  # fmt: skip
    assert found.rows == {}


def test_names_and_notes_are_not_told(tmp_path):
    frame = pd.DataFrame({"name": [f"Miller {k}" for k in range(30)], "y": np.arange(30) % 2})
    frame["age"] = np.arange(30)
    path = tmp_path / "a.csv"
    frame.to_csv(path, index=False)
    found, _, _ = asked([path] * 4, tmp_path)
    assert "Miller" not in found.to_json()
    settings, told = agreed(found, {}, ["y"])
    assert (settings["input-columns"], told) == ("age", [])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"describes": False}, "this node does not describe its columns"),
        (None, "this node has no table of its own"),
    ],
)
def test_a_node_that_describes_nothing_says_so(tmp_path, options, reason):
    e = small(**FOUR)
    data = ["" if options is None else "csv:a.csv"] * 4
    found = survey(NodesGrid(e, data, tmp_path, **options or {}), e, patience=1)
    assert found.tables == {}
    assert reason in found.silent[0]


def test_what_is_wrong_with_a_file_stays_in_the_nodes_log(tmp_path, warnings_of_engram):
    (tmp_path / "a.csv").write_text("a,b\nMiller,2,3\n")
    found, _, _ = asked([tmp_path / "a.csv"] * 4, tmp_path)
    assert "this node's data cannot be read: its log says why" in found.silent[0]


AGE = {"name": "age", "kind": "number"}
HOSTILE = {
    "no object": [],
    "no rows": {"columns": []},
    "a number for rows": {"rows": 1e300, "columns": []},
    "fewer rows than cells": {"rows": 3, "columns": [AGE | {"missing": 4}]},
    "another type": {"rows": 3, "columns": [AGE | {"kind": "date"}]},
    "another entry": {"rows": 3, "columns": [AGE | {"more": 1}]},
    "no number": {"rows": 3, "columns": [AGE | {"median": float("nan")}]},
    "a long value": {"rows": 3, "columns": [AGE | {"values": ["x" * 101]}]},
    "many values": {"rows": 300, "columns": [AGE | {"values": [*map(str, range(101))]}]},
    "one name twice": {"rows": 3, "columns": [AGE, AGE]},
    "many columns": {"rows": 3, "columns": [AGE | {"name": f"x{k}"} for k in range(20_001)]},
    "no Unicode": {"rows": 3, "columns": [{"name": "\ud800", "kind": "number"}]},
}


@pytest.mark.parametrize("found", HOSTILE.values(), ids=HOSTILE)
def test_what_no_table_is_described_by_is_refused(found):
    with pytest.raises(ValueError, match=r"^(a table|rows|columns) must .{,150}$"):
        DescribedTable.from_json(json.dumps(found))


def test_a_description_is_bounded():
    with pytest.raises(ValueError, match="at most 4194304 characters"):
        DescribedTable.from_json(" " * (2**22 + 1))


def test_one_schema_and_one_file_serve_networks_and_molar(tmp_path):
    paths = write_hospitals(tmp_path / "raw", mended=True)
    found, _, _ = asked(paths, tmp_path, target_column="outcome")
    write_schema(tmp_path, agreed(found, {}, TARGETS)[0])
    settings = schema_of(tmp_path, numbers=True)
    assert settings == {"input-columns": "age,bp,crea", "missing": "median"}
    e = small(
        method="molar", target_column="days", num_clients=4, missing="median",
        input_columns="age,bp,crea",
    )  # fmt: skip
    grid = NodesGrid(e, [f"csv:{path}" for path in paths], tmp_path)
    results = run_on(grid, e, tmp_path / "run", engine="vectorized")
    assert (results["sites"], results["left-out"]) == (4, {})


# --- Agreement -------------------------------------------------------------------------------


def number(name, median=1.0, **more):
    return DescribedColumn(name, "number", low=median / 2, median=median, high=2 * median, **more)


def text(name, *values, **more):
    return DescribedColumn(name, "text", values=values, distinct=len(values), **more)


CASES = {
    "the same": ([], [], []),
    "another type": (
        [number("sex")],
        [text("sex", "f", "m")],
        ["client-2: sex is numbers, and text (f, m) at the other sites: correct it"],
    ),
    "text among numbers": (
        [text("bp", "high", "low")],
        [number("bp")],
        ["client-2: bp is text (high, low) and numbers at the other sites: correct it, or leave "
         "it out"],
    ),
    "dates": (
        [DescribedColumn("seen", "other", odd="'2020' in row 0")],
        [number("seen")],
        ["client-2: seen holds neither numbers nor text ('2020' in row 0): leave it out"],
    ),
    "a target that is missing": (
        [number("y", missing=2)],
        [number("y")],
        ["client-2: y is missing in 2 of 9 rows: a row needs its target; leave these rows out"],
    ),
    "another name": (
        [number("pressure")],
        [number("bp")],
        ["client-2: lacks bp (it has pressure besides): they are left out everywhere, unless this "
         "site adds or renames them"],
    ),
    "no target": (
        [],
        [number("y")],
        ["client-2: lacks the target y: add or rename it"],
    ),
    "degrees": (
        [number("heat", 98.6), number("age", 3)],
        [number("heat", 10), number("age", 1)],
        ["client-2: heat lies 9.86 times above the other sites' (median 98.6 against 10): another "
         "unit?"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("odd", "usual", "lines"), CASES.values(), ids=CASES)
def test_each_fault_is_a_line(odd, usual, lines):
    base = [number("dose")] + ([] if any(c.name == "y" for c in usual) else [number("y")])
    tables = {
        client: DescribedTable.of(9, [*base, *(odd if client == 2 else usual)])
        for client in range(3)
    }
    settings, told = agreed(Survey(tables, {}), {}, ["y"])
    assert list(map(str, told)) == lines
    assert "dose" in settings["input-columns"].split(",")
    assert settings["target-column"] == "y"


def test_classes_that_some_sites_lack_are_counted():
    columns = [number("y", values=("0", "1", "2")), number("y", values=("0", "2"))]
    tables = {k: DescribedTable.of(9, [number("dose"), y]) for k, y in enumerate(columns)}
    settings, _ = agreed(Survey(tables, {}), {}, ["y"])
    assert settings["num-classes"] == 3
    settings, _ = agreed(Survey(tables, {}), {"task": "regression"}, ["y"])
    assert "num-classes" not in settings
