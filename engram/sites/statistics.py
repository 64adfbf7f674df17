"""Statistics of a federation's tables, and survival curves: of each site, and of all together."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from contextlib import suppress
from math import floor, log10
from typing import Final, NamedTuple

import numpy as np

from engram.data.schema.declared import name_order
from engram.data.tables.table_summary import DescribedColumn, DescribedTable
from engram.scoring.event_tables import OWN_CURVE, collect_tables
from engram.settings.errors import Refused
from engram.tables.survival.curves import kaplan_meier, log_rank, nelson_aalen

ALL = "all"  # the site of a row about all sites together
_LACKS: Final = (
    "a site's schema.toml must have columns of the roles time and event, and its table least-count "
    "events and losses"
)


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


class CurvePoint(NamedTuple):
    """Survival and cumulative hazard at the end of a cell of time."""

    site: str  # the site, or ``ALL``
    end: float  # in the unit of the sites' times
    at_risk: int  # rows at risk in the cell
    deaths: int  # of which so many have the event
    censored: int  # and so many are lost after it
    survival: float  # by Kaplan and Meier, rounded to six places, as what follows
    low: float  # its pointwise limits, of level ``LEVEL``; NaN where it is 0 or 1
    high: float
    hazard: float  # cumulative, by Nelson and Aalen


def curves(tables: Mapping[str, DescribedTable]) -> tuple[list[CurvePoint], list[str]]:
    """Estimates survival from the event tables of sites, on the grid that all of them share.

    Returns:
        The curves of all sites, and of each with enough events; and remarks: restricted means, a
        test of whether sites differ, and who is left out.

    Raises:
        Refused: No site tells of enough events, or sites' cells do not end alike.
    """
    events = {
        site: next((c.event_table for c in table.columns.values() if c.events), None)
        for site, table in tables.items()
    }
    try:
        found = collect_tables([*events.values()])
    except ValueError as error:
        raise Refused(f"there are no curves: {error}; {_LACKS}") from error
    shown = {site: t for site, t in zip(events, found.shown, strict=True) if t is not None}
    points, remarks, until = list[CurvePoint](), list[str](), float(found.total.ends[-2:][0])
    for site, table in {ALL: found.total, **shown}.items():
        curve = kaplan_meier(table)
        mean, low, high = curve.restricted_mean(until)[:3]
        remarks.append(f"{site}: mean up to {until:g} is {mean:.4g} ({low:.4g} to {high:.4g})")
        figures = curve.survival, *curve.interval(), nelson_aalen(table).hazard
        columns = table.ends, table.at_risk, *table[2:], *np.round(figures, 6)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        points += [CurvePoint(site, *row) for row in rows]
    there = [table for table in found.by_site if table is not None]
    with suppress(ValueError):  # at most one site is under observation when somebody dies
        test = log_rank([there])
        words = f"{test.statistic:.4g} of {test.freedom} degrees of freedom, p {test.p_value:.2g}"
        remarks.append(f"log-rank test of {len(there)} sites: chi-squared {words}")
    remarks += [f"{site}: left out: {_LACKS}" for site, table in events.items() if table is None]
    few = [site for site in events if events[site] is not None and site not in shown]
    remarks += [f"{site}: no curve of its own, for fewer than {OWN_CURVE} events" for site in few]
    return points, remarks


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
