"""Statistics of sites' columns, against pandas."""

import pandas as pd
import pytest

from federation.data.describing import describe_table
from federation.data.source import Source
from federation.statistics import statistics
from tests.hospitals import write_hospitals


def described(path, least=1):
    return describe_table(Source(f"csv:{path}"), {}, path.parent, least)[0]


def test_means_of_all_sites_are_those_of_all_rows(tmp_path):
    paths = write_hospitals(tmp_path, mended=True)
    found = statistics({path.stem: described(path) for path in paths})
    rows = {(row.column, row.site): row for row in found}
    every = pd.concat(map(pd.read_csv, paths))
    for column in ("age", "bp", "crea", "days"):
        row = rows[column, "all"]
        assert row.rows == len(every)
        counts = [pd.read_csv(path)[column].isna().sum() for path in paths]
        assert row.missing == (sum(counts) if all(counts) else None)
        assert row.mean == pytest.approx(every[column].mean(), rel=1e-2)  # of means of 3 digits
        assert row.median is None
    assert rows["sex", "all"].mean is None
    assert [row.site for row in found if row.column == "age"] == ["all", *(p.stem for p in paths)]


def test_no_figure_is_of_fewer_rows_than_a_policy_demands(tmp_path):
    path = tmp_path / "few.csv"
    pd.DataFrame({"x": range(30), "y": [1.5] * 28 + [None] * 2}).to_csv(path, index=False)
    for least, mean, missing in ((2, 14.5, 2), (3, 14.5, None), (4, None, None)):
        (x, _, y, _) = statistics({"a": described(path, least)})
        assert (x.column, x.mean) == ("x", mean)  # a tenth of the rows lies beyond two figures
        assert (y.rows, y.missing) == (30, missing)


def test_a_site_that_tells_no_mean_leaves_that_of_all_unknown(tmp_path):
    for name, rows in (("large", 50), ("small", 5)):
        pd.DataFrame({"x": range(rows)}).to_csv(tmp_path / f"{name}.csv", index=False)
    names = ("large", "small")
    found = statistics({name: described(tmp_path / f"{name}.csv") for name in names})
    assert [row.mean for row in found] == [None, 24.5, None]
    assert [row.rows for row in found] == [55, 50, 5]
