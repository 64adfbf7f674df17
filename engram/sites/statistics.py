"""Statistics of the columns of a federation's tables: of each site, and of all together."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from math import floor, log10
from typing import NamedTuple

from engram.data.schema.declared import name_order
from engram.data.tables.table_summary import DescribedColumn, DescribedTable

ALL = "all"  # the site of a row about all sites together


class Statistics(NamedTuple):
    """Statistics of a column at a site."""

    column: str
    site: str  # the site, or ``ALL``
    kind: str  # its kind; empty where too few rows have a value
    rows: int
    missing: int | None = None  # number of rows without a value; None where it is not told
    # Mean of the values that are there, rounded; None where it is not told. Of all sites, the mean
    # of theirs, weighted by these values; None if some site does not tell it.
    mean: float | None = None
    deviation: float | None = None  # standard deviation, likewise
    # A tenth of the values lies below. Of all sites it is the middle of the bin in which that
    # number is, by the sites' counts; None where these do not say.
    low: float | None = None
    median: float | None = None  # median, likewise
    high: float | None = None  # a tenth of the values lies above, likewise


def statistics(tables: Mapping[str, DescribedTable]) -> list[Statistics]:
    """Returns the statistics of each column, in the order of names: all sites, then each."""
    names = sorted({name for table in tables.values() for name in table.columns}, key=name_order)
    return [row for name in names for row in _of_column(name, tables)]


def _of_column(name: str, tables: Mapping[str, DescribedTable]) -> list[Statistics]:
    there = {site: table.columns[name] for site, table in tables.items() if name in table.columns}
    each = []
    for site, c in there.items():
        figures = c.missing, c.mean, c.deviation, c.low, c.median, c.high
        each.append(Statistics(name, site, c.column.kind, tables[site].rows, *figures))
    rows, counts = sum(row.rows for row in each), [row.missing for row in each]
    missing = None if None in counts else sum(filter(None, counts))
    kinds = " or ".join(sorted({row.kind for row in each}))
    bins = [bin_of(there.values(), share) for share in (0.1, 0.5, 0.9)]
    middles = [None if ends is None else sum(ends) / 2 for ends in bins]
    return [Statistics(name, ALL, kinds, rows, missing, *_moments(each), *middles), *each]


def _moments(each: Collection[Statistics]) -> tuple[float | None, float | None]:
    """Returns the mean and deviation of all sites' values together, where all tell theirs."""
    told = [(s.rows - (s.missing or 0), s.mean, s.deviation) for s in each if s.mean is not None]
    if len(told) < len(each):
        return None, None
    total = sum(rows for rows, _, _ in told)
    mean = sum(rows * own for rows, own, _ in told) / total
    squares = [
        (rows - 1) * deviation**2 + rows * (own - mean) ** 2
        for rows, own, deviation in told
        if deviation is not None
    ]
    if len(squares) < len(told):
        return float(f"{mean:.6g}"), None
    deviation = (sum(squares) / (total - 1)) ** 0.5
    digits = 2 - floor(log10(deviation)) if deviation else 12
    return round(mean, digits), round(deviation, digits)


def bin_of(sites: Collection[DescribedColumn], share: float) -> tuple[float, float] | None:
    """Returns the bin of a quantile of all sites' rows.

    Returns:
        The nearest edges of sites' counts; None if a site counts nothing, or there are none.
    """
    if not all(c.counts for c in sites):
        return None
    wanted = share * sum(sum(c.counts) for c in sites)
    edges = sorted({edge for c in sites for edge in c.edges})
    below = [
        e for e in edges if sum(_rows(c, bisect_left(c.edges, e) + 1) for c in sites) <= wanted
    ]
    above = [e for e in edges if sum(_rows(c, bisect_right(c.edges, e)) for c in sites) >= wanted]
    return (below[-1], above[0]) if below and above else None


def _rows(column: DescribedColumn, bins: int) -> int:
    return sum(column.counts[:bins])
