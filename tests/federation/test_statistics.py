"""Statistics of sites' columns, against pandas."""

import pandas as pd
import pytest

from federation.data.describing import describe_table
from federation.data.source import Source
from federation.data.values import Columns
from federation.settings.data import DataSettings
from federation.statistics import statistics
from tests.hospitals import write_hospitals

COLUMNS = Columns.of(DataSettings(), alone=True)


def described(path, least=1):
    return describe_table(Source(f"csv:{path}"), COLUMNS, path.parent, least)


def test_means_of_all_sites_are_those_of_all_rows(tmp_path):
    paths = write_hospitals(tmp_path, mended=True)
    found = statistics({path.stem: described(path) for path in paths})
    rows = {(row.column, row.site): row for row in found}
    every = pd.concat(map(pd.read_csv, paths))
    for column in ("age", "bp", "crea", "days"):
        row = rows[column, "all"]
        assert (row.rows, row.missing) == (len(every), every[column].isna().sum())
        assert row.mean == pytest.approx(every[column].mean(), rel=1e-2)  # of means of 3 digits
        assert (row.distinct, row.median) == (None, None)
    assert rows["sex", "all"].mean is None
    assert [row.site for row in found if row.column == "age"] == ["all", *(p.stem for p in paths)]


def test_no_figure_is_of_fewer_rows_than_a_policy_demands(tmp_path):
    path = tmp_path / "few.csv"
    pd.DataFrame({"x": range(30), "y": [1.5] * 28 + [None] * 2}).to_csv(path, index=False)
    for least, mean in ((3, 14.5), (4, None)):  # a tenth of the rows lies beyond two figures
        (x, _, y, _) = statistics({"a": described(path, least)})
        assert (x.column, x.mean) == ("x", mean)
        assert (y.rows, y.missing) == (30, least)


def test_a_site_that_tells_no_mean_leaves_that_of_all_unknown(tmp_path):
    for name, rows in (("large", 50), ("small", 5)):
        pd.DataFrame({"x": range(rows)}).to_csv(tmp_path / f"{name}.csv", index=False)
    names = ("large", "small")
    found = statistics({name: described(tmp_path / f"{name}.csv") for name in names})
    assert [row.mean for row in found] == [None, 24.5, None]
    assert [row.rows for row in found] == [55, 50, 5]
