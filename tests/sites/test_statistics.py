"""Statistics of sites' columns, against pandas."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.data.schema.written import read_schema
from engram.data.source import Source
from engram.data.tables.column_summaries import describe_table
from engram.data.tables.table_summary import DescribedTable
from engram.scoring.event_tables import collect_tables, event_table
from engram.settings.errors import DataError, Refused
from engram.sites.statistics import bin_of, curves, statistics
from engram.tables.survival.curves import kaplan_meier, log_rank
from tests.hospitals import write_hospitals

ROLES = """columns.days = {role = "time"}
columns.from = {role = "entry"}
columns.died = {role = "event", values = ["alive", "dead"]}
"""


def described(path, least=1, schema="columns = {}"):
    return describe_table(Source(f"csv:{path}"), read_schema(schema), path.parent, least).table


def written(folder, frames):
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    return {name: folder / f"{name}.csv" for name in frames}


def test_statistics_of_all_sites_are_those_of_all_rows(tmp_path):
    paths = write_hospitals(tmp_path, mended=True)
    tables = {path.stem: described(path) for path in paths}
    found = statistics(tables)
    rows = {(row.column, row.site): row for row in found}
    every = pd.concat(map(pd.read_csv, paths))
    for column in ("age", "bp", "crea", "days"):
        row, values = rows[column, "all"], every[column].dropna()
        assert row.rows == len(every)
        counts = [pd.read_csv(path)[column].isna().sum() for path in paths]
        assert row.missing == (sum(counts) if all(counts) else None)
        spread = values.quantile(0.9) - values.quantile(0.1)
        assert row.mean == pytest.approx(values.mean(), abs=spread / 100)
        assert row.deviation == pytest.approx(values.std(), abs=spread / 100)
        told = [row.low, row.median, row.high]
        assert told == pytest.approx(values.quantile([0.1, 0.5, 0.9]).tolist(), abs=spread / 10)
    assert rows["sex", "all"].mean is None
    assert [row.site for row in found if row.column == "age"] == ["all", *(p.stem for p in paths)]


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(2, 5))
def test_a_quantile_of_all_rows_lies_in_its_bin(tmp_path_factory, seed, least, count):
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("sites")
    sizes, places = rng.integers(10 * least, 300, count), rng.normal(0, 1, count)
    frames = {
        f"s{k}": pd.DataFrame({"x": 10.0 ** rng.integers(-3, 4) * rng.normal(place, 1, size)})
        for k, (size, place) in enumerate(zip(sizes, places, strict=True))
    }
    tables = {name: described(path, least) for name, path in written(folder, frames).items()}
    every = np.sort(np.concatenate([frame.x for frame in frames.values()]))
    for share in (0.1, 0.5, 0.9):
        ends = bin_of([table.columns["x"] for table in tables.values()], share)
        if ends is not None:  # so many rows lie below its ends, at most and at least
            low, high = (np.searchsorted(every, end) for end in ends)
            assert low <= share * len(every) <= high
            assert ends[0] <= ends[1]


def test_figures_keep_what_tells_sites_apart(tmp_path):
    """Years differ in their last digit, and 400,000,000 and a bit in its last digits."""
    rng = np.random.default_rng(4)
    frames = {
        name: pd.DataFrame(
            {"year": rng.integers(first, first + 6, 200), "big": 4e8 + rng.normal(first, 3, 200)}
        )
        for name, first in (("old", 2008), ("new", 2014))
    }
    found = statistics({n: described(p) for n, p in written(tmp_path, frames).items()})
    rows = {(row.column, row.site): row for row in found}
    for name, frame in frames.items():
        for column in ("year", "big"):
            told, cells = rows[column, name], frame[column].astype(float)
            spread = cells.quantile(0.9) - cells.quantile(0.1)
            assert told.median == pytest.approx(cells.median(), abs=spread / 100, rel=0)
            assert told.mean == pytest.approx(cells.mean(), abs=spread / 100, rel=0)
    assert rows["year", "old"].median < rows["year", "all"].median < rows["year", "new"].median


def test_no_figure_is_of_fewer_rows_than_a_policy_demands(tmp_path):
    path = tmp_path / "few.csv"
    x = np.arange(30) * 3
    pd.DataFrame({"x": x, "y": [1.5] * 28 + [None] * 2}).to_csv(path, index=False)
    for least, mean, missing in ((2, x.mean(), 2), (3, x.mean(), None), (4, None, None)):
        (every, one, y, _) = statistics({"a": described(path, least)})
        assert (every.column, every.mean, one.mean) == ("x", mean, mean)
        assert (one.median is None) == (least == 4)  # a tenth of the rows lies beyond two figures
        assert (y.rows, y.missing) == (30, missing)


def test_a_site_that_tells_no_mean_leaves_that_of_all_unknown(tmp_path):
    sizes = {"large": 50, "small": 5}
    frames = {name: pd.DataFrame({"x": np.arange(rows) * 2}) for name, rows in sizes.items()}
    found = statistics({n: described(p) for n, p in written(tmp_path, frames).items()})
    assert [row.mean for row in found] == [None, 49, None]
    assert [row.rows for row in found] == [55, 50, 5]


def patients(rng, rows, mean):
    """Patients, every other of whom comes under observation late."""
    died, lost = rng.exponential(mean, rows).round(2), rng.uniform(5, 60, rows).round(2)
    time = np.minimum(died, lost) + 0.01
    begin = np.where(np.arange(rows) % 2, 0, (time / 3).round(2))
    words = np.where(died <= lost, "dead", "alive")
    return pd.DataFrame({"age": rng.integers(20, 90, rows), "days": time, "from": begin}).assign(
        died=words
    )


def test_curves_of_told_tables_are_those_of_all_rows(tmp_path):
    rng = np.random.default_rng(1)
    sizes = {"a": (300, 14), "b": (400, 20), "c": (60, 30), "d": (9, 10)}
    frames = {name: patients(rng, *site) for name, site in sizes.items()}
    paths = written(tmp_path, frames)
    texts = {name: described(path, 5, ROLES).told() for name, path in paths.items()}
    told = {name: DescribedTable.from_json(text) for name, text in texts.items()}
    for name, table in told.items():  # no other edges than the cells' ends
        assert [table.columns[column].edges for column in ("days", "from")] == [(), ()]
        assert (table.columns["days"].events == ()) == (name == "d")
    tables = [table.columns["days"].event_table for table in told.values()]
    found, direct = (
        collect_tables(each)
        for each in (
            tables,
            [event_table(f["days"], f["died"] == "dead", f["from"]) for f in frames.values()],
        )
    )
    np.testing.assert_array_equal(found.total, direct.total)
    ends, every = found.total.ends, pd.concat([frames[name] for name in "abc"])
    cell = np.searchsorted(ends, every["days"])
    first = np.searchsorted(ends, every["from"], side="right")
    dead, expected, survival = (every["died"] == "dead").to_numpy(), [], 1.0
    for k in range(len(ends)):
        survival *= 1 - (dead & (cell == k)).sum() / ((first <= k) & (cell >= k)).sum()
        expected.append(survival)
    np.testing.assert_allclose(kaplan_meier(found.total).survival, expected, rtol=0, atol=1e-12)

    points, remarks = curves(told)
    assert [p.survival for p in points if p.site == "all"] == pytest.approx(expected, abs=1e-6)
    assert [*dict.fromkeys(p.site for p in points)] == ["all", "a", "b"]
    assert sum(p.deaths for p in points if p.site == "b") == found.by_site[1].deaths.sum()
    assert f"p {log_rank([direct.by_site[:3]]).p_value:.2g}" in remarks[3]
    assert [r[:11] for r in remarks[4:]] == ["d: left out", "c: no curve"]
    with pytest.raises(Refused, match="there are no curves: sites must be at least 1"):
        curves({"d": told["d"]})


def test_events_are_of_sound_rows_and_tell_of_no_few_missing_cells(tmp_path):
    frame = patients(np.random.default_rng(2), 200, 14)
    for lacking, tells in ((2, False), (20, True)):
        few = frame.assign(days=frame["days"].where(np.arange(200) >= lacking))
        table = described(written(tmp_path, {"a": few})["a"], 5, ROLES)
        assert bool(table.columns["days"].events) == tells
    events = table.columns["days"].events
    assert events[0][1] + sum(cell[1] for cell in events[1:]) <= 180
    for wrong in ([*events[:1], *events[:1]], [(1.0, 5, 6, 0)]):
        column = {"column": {"name": "days"}, "events": wrong}
        with pytest.raises(ValueError, match="events must be of rows"):
            DescribedTable.from_json(json.dumps({"rows": 200, "columns": [column]}))
    paths = written(tmp_path, {"a": frame.assign(days=-1)})
    with pytest.raises(DataError, match="time must be finite, and at least 0"):
        described(paths["a"], 5, ROLES)
