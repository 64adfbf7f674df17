"""Statistics of sites' columns, against pandas."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.data.schema.columns import Schema
from engram.data.source import Source
from engram.data.tables.column_summaries import describe_table
from engram.sites.statistics import bin_of, statistics
from tests.hospitals import write_hospitals


def described(path, least=1):
    return describe_table(Source(f"csv:{path}"), Schema(), path.parent, least).table


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
