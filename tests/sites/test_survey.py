"""Sites describe their tables, and agree on a schema by which networks train on all of them."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from engram.cli import schema_cli
from engram.data.load_federation import own_data
from engram.data.new_rows import read_new_rows
from engram.data.schema.columns import Column, Schema
from engram.data.schema.written import read_schema
from engram.data.source import Source
from engram.data.tables.table_summary import DescribedColumn, DescribedTable
from engram.guards.secure.masks import public_of
from engram.runs.run import Run
from engram.server.run import run as run_on
from engram.settings.errors import DataError
from engram.sites import schema_survey
from engram.sites.schema_survey import Survey, agreed, checked, schema_of, survey, write_schema
from tests.hospitals import write_hospitals
from tests.samples import entry
from tests.server.nodes import NodesGrid
from tests.support import declared_values, small

FOUR = {"num_clients": 4, "clients_per_round": 4, "method": "fedavg", "protocol": "standard"}
TARGETS = ["outcome", "days"]
OF_TWO = {"target_column": "outcome", "input_columns": "age,bp", "missing": "median"}
OF_TWO |= {"schema": declared_values(outcome="home|icu|ward")}
UNIT = "another unit? columns.crea = {factor = ...} into its schema.toml converts it"


def asked(paths, state, *, check=False, **settings):
    """Answers of nodes of this process with these files, and the settings of a run on them."""
    e = small(**FOUR | settings)
    grid = NodesGrid(e, [f"csv:{path}" for path in paths], state)
    return opened(grid, e, check=check), e, grid


def opened(grid, e, **how):
    """Asks nodes, and reads the letters with their answers."""
    private = os.urandom(32)
    return Survey.from_json(survey(grid, e, public_of(private), patience=1, **how), private)


def test_all_faults_of_all_sites_are_named_at_once_and_once_mended_the_run_trains(
    tmp_path, warnings_of_engram
):
    raw = write_hospitals(tmp_path / "raw")
    found, _, _ = asked(raw, tmp_path, target_column="outcome")
    settings, told = agreed(found, {}, TARGETS)
    assert list(map(str, told)) == [
        f"client-1: crea lies 80.4 times above the other sites' (median 86 against 1.07): {UNIT}",
        "client-3: age has text among numbers: its log has the cells, and the line to write",
    ]
    assert [finding.stops for finding in told] == [False, True]
    line = "has '?' in row 5 among numbers: write columns.age = {missing = [\"?\"]}"
    assert f"west.csv: column age {line}" in warnings_of_engram.text
    assert settings == {
        "input-columns": "age,bp,crea,sex,smoker",
        "schema": settings["schema"],
        "missing": "median",
    }
    values = {column.name: column.values for column in read_schema(settings["schema"]).columns}
    assert values == {
        "outcome": ("home", "icu", "ward"),
        "sex": ("f", "m"),
        "smoker": ("former", "never", "current"),
    }

    # Each answers in its own schema, and its file stays as it is.
    for node, schema in (
        (2, f"columns.crea = {{factor = {1 / 88.4}}}"),
        (4, line.split("write ")[1]),
    ):
        (tmp_path / f"node-{node}").mkdir(exist_ok=True)
        (tmp_path / f"node-{node}" / "schema.toml").write_text(schema)
    found, _, _ = asked(raw, tmp_path, target_column="outcome")
    again, told = agreed(found, {}, TARGETS)
    assert (again, told) == (settings, [])
    south = pd.read_csv(raw[1]).crea / 88.4
    assert found.tables[1].columns["crea"].median == pytest.approx(south.median(), abs=0.01)
    settings = {key.replace("-", "_"): value for key, value in settings.items()}
    found, e, grid = asked(raw, tmp_path, check=True, target_column="outcome", **settings)
    assert (checked(found, e), found.absent) == ([], {})
    assert sum(found.rows.values()) == pytest.approx(0.6 * 0.8 * 740, abs=4)  # tested, validated
    results = run_on(grid, e, tmp_path / "run", engine="vectorized")
    assert results["rounds"] == e.num_rounds
    assert "left-out" not in results
    assert results["classes"] == ["home", "icu", "ward"]


def test_a_check_says_of_every_site_what_keeps_it_out(tmp_path):
    paths = write_hospitals(tmp_path / "raw")
    west = pd.read_csv(paths[3]).rename(columns={"bp": "pressure"})
    west.loc[3, "age"] = None
    west.loc[5, "smoker"] = "ex"
    west.loc[10:14, "sex"] = "x"
    west.to_csv(paths[3], index=False)
    settings = {
        "schema": declared_values(outcome="home|icu|ward", sex="f|m", smoker="current|former|never")
    }
    settings |= {"target_column": "outcome", "input_columns": "age,bp,crea,sex,smoker"}
    found, e, _ = asked(paths, tmp_path, check=True, **settings)
    told = [str(finding) for finding in checked(found, e)]
    counts = [pd.read_csv(path)[["crea", "smoker"]].isna().sum() for path in paths]
    rows = (400, 160, 60, 120)
    mend = "set missing=median or missing=indicator, or fill it in"

    def missing(site, column):  # of fewer rows, its log alone says so
        count = counts[site][column]
        line = f"client-{site}: {column} is missing in {count} of {rows[site]} rows: {mend}"
        return [line] * int(count >= 5)

    assert told == [
        *missing(0, "crea"),
        *missing(0, "smoker"),
        *missing(1, "crea"),
        f"client-1: crea lies 80.4 times above the other sites' (median 86 against 1.07): {UNIT}",
        *missing(1, "smoker"),
        "client-3: lacks bp (it has pressure besides): add or rename them, or leave them out by "
        "input-columns",
        *missing(3, "crea"),
        'client-3: sex has x, and other sites f, m: write columns.sex = {values = {"f" = "f", '
        '"m" = "m", "x" = "..."}} into its schema.toml, or add it to the values of the schema',
        *missing(3, "smoker"),
        "client-2: no node hosts it",
    ]
    assert found.rows == {}


@pytest.mark.parametrize("members", [(0, 1, 2), (1, 3), (2,)])
def test_members_alone_are_counted_and_not_who_is_invited_or_was_removed(
    tmp_path, monkeypatch, capsys, members
):
    paths = write_hospitals(tmp_path / "mended", mended=True)
    e = small(**FOUR | OF_TWO)
    grid = NodesGrid(e, [f"csv:{path}" for path in paths], tmp_path)
    grid.membership = SimpleNamespace(
        members=lambda: frozenset(members), is_whole=lambda e: True, clients=4
    )
    grid.get_node_ids = lambda: [client + 1 for client in members]
    found = opened(grid, e, check=True)
    assert (found.silent, found.absent) == ({}, {})
    assert tuple(found.rows) == tuple(found.tables) == members
    monkeypatch.setattr(schema_cli, "for_server", lambda overrides, federation: e)
    monkeypatch.setattr(schema_survey, "survey_deployed", lambda *given, check: found)
    schema_cli.check_on({}, tmp_path)  # status 0
    total = len(members)
    assert f"{total} of {total} sites can take part" in capsys.readouterr().out
    away = found._replace(absent={members[0]: "off line"})
    monkeypatch.setattr(schema_survey, "survey_deployed", lambda *given, check: away)
    with pytest.raises(SystemExit):
        schema_cli.check_on({}, tmp_path)
    monkeypatch.setattr(
        schema_survey, "survey_deployed", lambda *given, check: found._replace(rows={})
    )
    with pytest.raises(SystemExit):
        schema_cli.check_on({}, tmp_path)


def test_a_check_says_which_sites_approve_each_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "node-2").mkdir()
    (tmp_path / "node-2" / "policy.toml").write_text("approval = true\n")
    paths = write_hospitals(tmp_path / "mended", mended=True)
    found, e, _ = asked(paths, tmp_path, check=True, **OF_TWO)
    assert (found.absent, found.approving) == ({}, (1,))
    monkeypatch.setattr(schema_cli, "for_server", lambda overrides, federation: e)
    monkeypatch.setattr(schema_survey, "survey_deployed", lambda *given, check: found)
    schema_cli.check_on({}, tmp_path)
    lines = [line for line in capsys.readouterr().out.splitlines() if "takes part" in line]
    ends = ["", ", once its site approves the run", "", ""]
    assert lines == [
        f"client-{client}: takes part, with {rows} rows to train on{ends[client]}"
        for client, rows in found.rows.items()
    ]


def test_names_and_notes_are_not_told(tmp_path):
    frame = pd.DataFrame({"name": [f"Miller {k}" for k in range(30)], "y": np.arange(30) % 2})
    frame["age"] = np.arange(30) * 2
    path = tmp_path / "a.csv"
    frame.to_csv(path, index=False)
    found, _, _ = asked([path] * 4, tmp_path)
    assert "Miller" not in str(found)
    settings, told = agreed(found, {}, ["y"])
    assert settings["input-columns"] == "age"
    asked_about = "name looks like identifiers, and is left out: write "
    lines = 'columns.name = {kind = "identifier"}, or columns.name = {kind = "category"}'
    assert {finding.text for finding in told} == {f"{asked_about}{lines} into its schema.toml"}
    assert not any(finding.stops for finding in told)


def test_columns_of_one_value_at_all_sites_are_no_inputs(tmp_path):
    paths = write_hospitals(tmp_path / "raw", mended=True)
    for k, path in enumerate(paths):
        frame = pd.read_csv(path).assign(dose=0.1, ward="A", site=float(k))
        frame.to_csv(path, index=False)
    settings, _ = agreed(asked(paths, tmp_path, target_column="outcome")[0], {}, TARGETS)
    assert settings["input-columns"] == "age,bp,crea,sex,site,smoker,ward"
    ward = next(c for c in read_schema(settings["schema"]).columns if c.name == "ward")
    assert Schema((ward,)).inputs == ()  # another value is refused


def test_a_node_that_describes_nothing_says_so(tmp_path):
    e = small(**FOUR)
    for number, (data, options, reason) in enumerate(
        [
            ("csv:a.csv", {"describes": False}, "this node does not describe its columns"),
            ("", {}, "this node has no table of its own"),
        ]
    ):
        found = opened(NodesGrid(e, [data] * 4, tmp_path / str(number), **options), e)
        assert found.tables == {}
        assert reason in found.silent[0]


AGE = {"name": "age", "kind": "number"}


def one(rows=3, column=AGE, **more):
    """A description of a table with a column."""
    return {"rows": rows, "columns": [{"column": column, **more}]}


HOSTILE = {
    "no object": [],
    "no rows": {"columns": []},
    "a number for rows": {"rows": 1e300, "columns": []},
    "fewer rows than cells": one(missing=4),
    "more counts than rows": one(edges=[1], counts=[2, 2]),
    "a count too few": one(edges=[1], counts=[2]),
    "many counts": one(edges=[1] * 101, counts=[0] * 102),
    "another type": one(column=AGE | {"kind": "color"}),
    "another entry": one(more=1),
    "no number": one(median=float("nan")),
    "a long value": one(column=AGE | {"values": ["x" * 101]}),
    "a long unit": one(column=AGE | {"unit": "x" * 101}),
    "a long line": one(choices=["x" * 1001]),
    "many values": one(300, AGE | {"values": [*map(str, range(101))]}),
    "one name twice": {"rows": 3, "columns": [{"column": AGE}] * 2},
    "many columns": one()
    | {"columns": [{"column": AGE | {"name": f"x{k}"}} for k in range(20_001)]},
    "no Unicode": one(column={"name": "\ud800", "kind": "number"}),
}


def test_what_no_table_is_described_by_is_refused():
    words = r"^(a table|rows|columns) must .{,150}$"
    for name, found in HOSTILE.items():
        with entry(name), pytest.raises(ValueError, match=words):
            DescribedTable.from_json(json.dumps(found))
    with pytest.raises(ValueError, match="at most 16777216 characters"):
        DescribedTable.from_json(" " * (2**24 + 1))


def test_one_schema_and_one_file_serve_networks_and_molar(tmp_path):
    paths = write_hospitals(tmp_path / "raw", mended=True)
    found, _, _ = asked(paths, tmp_path, target_column="outcome")
    write_schema(tmp_path, agreed(found, {}, TARGETS)[0])
    settings = {key.replace("-", "_"): value for key, value in schema_of(tmp_path).items()}
    e = small(method="molar", target_column="days", num_clients=4, **settings)
    grid = NodesGrid(e, [f"csv:{path}" for path in paths], tmp_path)
    results = run_on(grid, e, tmp_path / "run", engine="vectorized")
    assert (results["sites"], results["left-out"]) == (4, {})
    names = ["age", "bp", "crea", "sex=m", "smoker=never", "smoker=current", "intercept"]
    assert results["shared"]["names"] == names
    # Days are 1.2 times z, to which a man has 0.4 more; see the files.
    shared = dict(zip(names, results["shared"]["coef"], strict=True))
    assert shared["sex=m"] == pytest.approx(0.48, abs=0.2)
    assert shared["age"] == pytest.approx(0.06, abs=0.02)


def test_columns_that_some_sites_lack_are_kept_and_missing_there(tmp_path):
    paths = write_hospitals(tmp_path / "raw", mended=True)
    frames = [pd.read_csv(path) for path in paths]
    frames[1].drop(columns=["bp", "smoker"]).to_csv(paths[1], index=False)
    lactates = np.random.default_rng(2).normal(1.5, 0.4, len(frames[2]))
    frames[2].assign(lactate=lactates).to_csv(paths[2], index=False)
    found, _, _ = asked(paths, tmp_path, target_column="outcome")
    settings, told = agreed(found, {}, TARGETS, union=True)
    medians = [found.tables[site].columns["bp"].median for site in (0, 2, 3)]
    lactate = found.tables[2].columns["lactate"].median
    assert settings["input-columns"] == "age,bp,crea,lactate,sex,smoker"
    usual = {c.name: c.default for c in read_schema(settings["schema"]).columns if c.default}
    assert usual == {"bp": f"{np.median(medians):g}", "lactate": f"{lactate:g}", "smoker": "former"}
    assert settings["missing"] == "median"
    said = "there it is missing in all rows, as its default says"
    also = f"bp ({np.median(medians):g}), lactate ({lactate:g}), smoker (former)"
    lacks = {0: f"lactate ({lactate:g})", 1: also, 3: f"lactate ({lactate:g})"}
    lines = [f"client-{site}: lacks {columns}: {said}" for site, columns in lacks.items()]
    assert [str(finding) for finding in told] == lines
    assert not any(finding.stops for finding in told)
    write_schema(tmp_path, settings)
    read = {key.replace("-", "_"): value for key, value in schema_of(tmp_path).items()}
    for method, target in (("fedavg", "outcome"), ("molar", "days")):
        of_method = FOUR | {"target_column": target, "method": method} | read
        if method == "molar":
            of_method = {k: v for k, v in of_method.items() if k in ("num_clients", *read)}
            of_method |= {"method": method, "target_column": target}
        e = small(**of_method)
        grid = NodesGrid(e, [f"csv:{path}" for path in paths], tmp_path / method)
        folder = tmp_path / method / "run"
        results = run_on(grid, e, folder, engine="vectorized")
        assert not results.get("left-out")
        columns = {c["name"]: c for c in next(iter(Run.open(folder).rows()))["schema"]["columns"]}
        assert columns["lactate"]["default"] == lactate
        assert columns["smoker"]["default"] == "former"


@pytest.mark.parametrize("missing", ["median", "indicator"])
def test_a_lacking_column_is_imputed_as_a_missing_value_is(tmp_path, missing):
    frame = pd.DataFrame({"a": [1.0, np.nan, 3, 4] * 5, "b": ["u", "v", "v", None] * 5})
    frame["y"] = np.arange(20) % 2
    frame.to_csv(tmp_path / "whole.csv", index=False)
    frame.drop(columns=["a", "b"]).assign(c=1.0).to_csv(tmp_path / "lacks.csv", index=False)
    frame.assign(c=2.0).to_csv(tmp_path / "whole.csv", index=False)
    e = small(
        method="fedavg", missing=missing, input_columns="a,b,c", num_classes=2,
        schema='columns.a.default = 2.5\ncolumns.b = {values = ["u", "v"], default = "v"}',
        protocol="standard", standardize="none", num_clients=2,
        clients_per_round=2, target_column="y",
    )  # fmt: skip
    data = own_data(e, Source(f"csv:{tmp_path}/lacks.csv"), 1)
    flags = missing == "indicator"
    expected = [2.5, 1, 0, 1, 1, 1, 0] if flags else [2.5, 0, 1, 1]
    names = {"a": expected[0], "b=u": 0.0, "b=v": 1.0, "c": 1.0}
    names |= {"a is missing": 1.0, "b is missing": 1.0, "c is missing": 0.0} if flags else {}
    x = data.train.x.numpy()
    assert {n: set(x[:, k]) for k, n in enumerate(data.schema.inputs)} == {
        name: {value} for name, value in names.items()
    }
    with_it = own_data(e, Source(f"csv:{tmp_path}/whole.csv"), 0)
    assert data.schema == with_it.schema
    # A model of a site that has the column predicts rows of one that lacks it.
    Path(tmp_path / "new.csv").write_text("c\n1\n")
    kind = with_it.kind._replace(schema=with_it.schema_of(None))
    (row,) = read_new_rows(tmp_path / "new.csv", kind, e.to_config()).x.numpy()
    assert row[with_it.schema.inputs.index("c")] == 1
    Path(tmp_path / "new.csv").write_text("a\n1\n")
    with pytest.raises(DataError, match="has no column 'c'; it has a"):
        read_new_rows(tmp_path / "new.csv", kind, e.to_config())


def test_optional_columns_that_cannot_be(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,y\n" + "1,u,0\n2,v,1\n" * 4)
    known = 'columns.b.values = ["u", "v"]\n'
    given = {"input_columns": "a,b", "num_classes": 2, "target_column": "y"}
    for line, missing, message in [
        ("d.default = 1", "median", "input-columns must be with all columns of inputs, d among"),
        ('a.default = "u"', "median", "columns.a.default must be a number, got 'u'"),
        ('b.default = "w"', "median", "columns.b.default must be one of u, v, got 'w'"),
        ("a.default = 1", "refuse", "missing must be median or indicator"),
    ]:
        settings = given | {"missing": missing, "schema": f"{known}columns.{line}"}
        e = small(method="fedavg", protocol="standard", **settings)
        with entry(line, missing), pytest.raises(DataError, match=message):
            own_data(e, Source(f"csv:{tmp_path}/a.csv"), 0)


# --- Agreement -------------------------------------------------------------------------------


def number(name, median=1.0, *, kind="number", values=(), unit="", **more):
    figures = {"low": median / 2, "median": median, "high": 2 * median}
    return DescribedColumn(Column(name, kind, values, unit=unit), **figures, **more)


def text(name, *values, **more):
    return DescribedColumn(Column(name, "category", values), **more)


def table(*columns):
    return DescribedTable(9, {each.column.name: each for each in columns})


def mapped(name, **pairs):
    each = ", ".join(f'"{value.strip("_")}" = "{meant}"' for value, meant in pairs.items())
    return f"write columns.{name} = {{values = {{{each}}}}} into its schema.toml"


CODES = {"kind": "whole", "values": ("0", "1")}
SHIFTED = {"kind": "whole", "values": ("1", "2")}
CASES = {
    "the same": ([], [], ""),
    "sex as numbers, and text elsewhere": (
        [number("sex", **SHIFTED)], [text("sex", "F", "M")],
        "sex is numbers (1, 2), and text (F, M) at the other sites: "
        f"{mapped('sex', _1='...', _2='...')}, or leave it out"),
    "sex by other numbers": (
        [number("sex", **SHIFTED)], [number("sex", **CODES)],
        f"sex has 1, 2, and other sites 0, 1: {mapped('sex', _1='...', _2='...')}, or "
        "set schema='columns.sex = {kind = \"number\"}'"),
    "a target by other numbers": (
        [number("y", **SHIFTED)], [number("y", **CODES)],
        f"y has 1, 2, and other sites 0, 1: {mapped('y', _1='...', _2='...')}, or "
        "set num-classes=3"),
    "a target as text, and numbers elsewhere": (
        [text("y", "no", "yes")], [number("y", **CODES)],
        "y is text (no, yes), and numbers (0, 1) at the other sites: "
        f"{mapped('y', no='...', yes='...')}, or leave it out"),
    "another spelling": (
        [text("smoker", "No", "Yes")], [text("smoker", "no", "yes")],
        "smoker has No, Yes, and other sites no, yes: "
        f"{mapped('smoker', No='no', Yes='yes')}, or add it to the values of the schema"),
    "one value in another spelling": (
        [text("smoker", "Yes", "no", "yes")], [text("smoker", "no", "yes")],
        "smoker has Yes, and other sites no, yes: "
        f"{mapped('smoker', Yes='yes', no='no', yes='yes')}, or add it to the values of the "
        "schema"),
    "a value more, and one less": ([text("ward", "a", "b", "c")], [text("ward", "a", "b")], ""),
    "counts of something": (
        [number("children", kind="whole", values=("0", "1", "2"))],
        [number("children", kind="whole", values=("0", "1", "2", "3"))],
        ""),
    "blanks": (
        [text("smoker", "no", "yes", blanks=True)], [text("smoker", "no", "yes")],
        "smoker has blanks around values: they are left out"),
    "a unit": (
        [number("dose", unit="g")], [number("dose", unit="mg")],
        "dose is in g, and other sites are in mg: write columns.dose = "
        '{unit = "mg", factor = ...} into its schema.toml'),
    "no unit": (
        [number("dose")], [number("dose", unit="mg")],
        "dose says no unit, and other sites are in mg: write columns.dose = "
        '{unit = "mg", factor = ...} into its schema.toml'),
    "a code for missing values": (
        [number("crp", asked="codes", choices=('columns.crp = {missing = ["-99"]}',))],
        [number("crp")],
        "crp has codes far from its other numbers: write columns.crp = "
        '{missing = ["-99"]} into its schema.toml'),
    "text among numbers": (
        [number("bp", asked="mixed")], [number("bp")],
        "bp has text among numbers: its log has the cells, and the line to write"),
    "too few values": (
        [DescribedColumn(Column("seen"))], [number("seen")],
        "seen holds too few values: write its kind into its schema.toml, or leave it "
        "out"),
    "a target that is missing": (
        [number("y", missing=2)], [number("y")],
        "y is missing in 2 of 9 rows: a row needs its target; leave these rows out"),
    "another name": (
        [number("pressure")], [number("bp")],
        "lacks bp (it has pressure besides): they are left out everywhere, unless this "
        "site adds or renames them"),
    "no target": (
        [], [number("y")],
        "lacks the target y: add or rename it"),
    "degrees": (
        [number("heat", 98.6), number("age", 3)], [number("heat", 10), number("age", 1)],
        "heat lies 9.86 times above the other sites' (median 98.6 against 10): another "
        "unit? columns.heat = {factor = ...} into its schema.toml converts it"),
}  # fmt: skip


def test_each_fault_is_a_line():
    for name, case in CASES.items():
        with entry(name):
            check_fault(*case)


def check_fault(odd, usual, line):
    there = {each.column.name for each in usual}
    base = [number(name) for name in ("age", "y") if name not in there]
    tables = {client: table(*base, *(odd if client == 2 else usual)) for client in range(3)}
    settings, told = agreed(Survey(tables, {}), {}, ["y"])
    assert list(map(str, told)) == ([f"client-2: {line}"] if line else [])
    assert "age" in settings["input-columns"].split(",")
    assert settings["target-column"] == "y"
    if not line.startswith("lacks"):  # nothing is left out
        names = {*settings["input-columns"].split(","), "y"}
        assert names == {"age", "y", *(each.column.name for each in usual)}


def test_classes_that_some_sites_lack_are_counted():
    columns = [number("y", values=("0", "1", "2")), number("y", values=("0", "2"))]
    tables = {k: table(number("dose"), y) for k, y in enumerate(columns)}
    settings, _ = agreed(Survey(tables, {}), {}, ["y"])
    assert settings["num-classes"] == 3
    settings, _ = agreed(Survey(tables, {}), {"task": "regression"}, ["y"])
    assert "num-classes" not in settings
