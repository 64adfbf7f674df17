"""Statistics of the columns of a federation's tables: of each site, and of all together."""

from collections.abc import Mapping
from typing import NamedTuple

from federation.data.declared import name_order
from federation.described import DescribedTable

ALL = "all"
"""The site of a row about all sites together."""


class Statistics(NamedTuple):
    """Statistics of a column at a site.

    Attributes:
        column: Its name.
        site: The site, or ``ALL``.
        kind: ``number``, ``text`` or ``other``.
        rows: Number of rows.
        missing: Number of rows without a value; None where it is not told.
        mean: Mean of the values that are there, to three digits; None where it is not told. Of all
            sites, the mean of theirs, weighted by these values; None if some site does not tell it.
        low: A tenth of the values lies below, to three digits; None likewise, and for all sites,
            whose quantiles do not follow from theirs.
        median: Median, likewise.
        high: A tenth of the values lies above, likewise.
    """

    column: str
    site: str
    kind: str
    rows: int
    missing: int | None = None
    mean: float | None = None
    low: float | None = None
    median: float | None = None
    high: float | None = None


def statistics(tables: Mapping[str, DescribedTable]) -> list[Statistics]:
    """Returns the statistics of each column, in the order of names: all sites, then each.

    Args:
        tables: Descriptions of the sites' tables.
    """
    names = sorted({name for table in tables.values() for name in table.columns}, key=name_order)
    return [row for name in names for row in _of_column(name, tables)]


def _of_column(name: str, tables: Mapping[str, DescribedTable]) -> list[Statistics]:
    each = []
    for site, table in tables.items():
        if (c := table.columns.get(name)) is not None:
            figures = c.mean, c.low, c.median, c.high
            each.append(Statistics(name, site, c.kind, table.rows, c.missing, *figures))
    rows, counts = sum(row.rows for row in each), [row.missing for row in each]
    missing = None if None in counts else sum(filter(None, counts))
    kinds = sorted({row.kind for row in each})
    means = [(row.rows - (row.missing or 0), row.mean) for row in each if row.mean is not None]
    mean = None
    if len(means) == len(each):
        total = sum(there * each for there, each in means)
        mean = float(f"{total / sum(there for there, _ in means):.3g}")
    return [Statistics(name, ALL, " or ".join(kinds), rows, missing, mean), *each]
