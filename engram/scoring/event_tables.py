"""Event tables: deaths, censored and entered rows of sites in the cells of one grid of times.

Exact times stay at their site. Cells end at multiples of a power of two, of which all sites know
beforehand which there may be: round ones first, each site takes those by which every cell has none
or at least ``least`` deaths, censored and entered rows, and leaves none or at least ``least`` under
observation. So has the rest after the last end. If ``least`` is above 1 no cell is empty, which
would tell when a single row was. Ends of all sites are the grid of all.
"""

from bisect import bisect
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import numpy as np

from engram.core.arrays import Array, Bools, Ints
from engram.core.checks import require

LEAST: Final = 5
"""Fewest rows behind a count, as the policy of sites has it by default."""

OWN_CURVE: Final = 50
"""Fewest deaths of a site whose own curve is shown."""

MOST_CELLS: Final = 128
"""Most cells of a site."""


class EventTable(NamedTuple):
    """Numbers of rows in K cells of time ``(start, end]``, of which the first begins at 0.

    A last cell without rows says that none comes later.
    """

    ends: Array  # ends of the cells, increasing, shape (K,)
    entered: Ints  # rows that come under observation in time to be at risk in the whole cell, (K,)
    deaths: Ints  # rows with an event in the cell, (K,)
    censored: Ints  # rows that are lost in the cell without an event, (K,)

    @property
    def at_risk(self) -> Ints:
        """Rows at risk in each cell, (K,): deaths come before losses of the same cell."""
        left = np.cumsum(self.deaths + self.censored)
        return np.asarray(np.cumsum(self.entered) - np.append(0, left[:-1]), np.intp)

    @classmethod
    def of(cls, cells: Sequence[Sequence[float]]) -> Self:
        """Reads cells of an untrusted sender: end, rows entered, deaths and censored, each.

        Raises:
            ValueError: Ends do not increase, or more rows are gone than are at risk.
        """
        ends, *counts = np.array(cells).T
        table = cls(ends, *(each.astype(np.intp) for each in counts))
        gone = table.deaths + table.censored
        if (np.diff(ends, prepend=0) <= 0).any() or (gone > table.at_risk).any():
            raise ValueError("events must be of rows at risk, in cells of increasing ends")
        return table

    def may_end(self, ends: Array) -> Bools:
        """Whether larger cells may end at some times."""
        from_there = np.inf if any(n[-1] for n in self[1:]) else self.ends[-2:][0]
        return np.asarray(np.isin(ends, self.ends) | (ends > from_there))

    def at(self, ends: Array) -> "EventTable":
        """Returns the table of larger cells with these ends."""
        last = np.minimum(np.searchsorted(self.ends, ends), len(self.ends) - 1)
        return EventTable(ends, *(np.diff(np.cumsum(n)[last], prepend=0) for n in self[1:]))


def event_table(
    time: Array, event: Bools, entry: Array | None = None, *, least: int = LEAST
) -> EventTable | None:
    """Counts rows of a site, or of a group of its rows.

    Args:
        time: Times of events or losses, at least 0, shape (n,).
        event: Whether a row has an event, rather than being lost, shape (n,).
        entry: Times after which rows are under observation, below ``time``, shape (n,); None: 0.
        least: Fewest rows behind a count. If there are fewer losses at all, or deaths, the cells
            come to an end before the first one.

    Returns:
        The counts; None where no cell with deaths may be told.

    Raises:
        ValueError: If times are none.
    """
    time, event = np.asarray(time, np.float64), np.asarray(event, np.bool_)
    begin = np.zeros_like(time) if entry is None else np.asarray(entry, np.float64)
    right = bool(np.isfinite(time).all() and (time >= 0).all())
    require(right, "time", time.min(initial=np.inf), "finite, and at least 0")
    ok = bool(((begin == 0) | (begin > 0) & (begin < time)).all())
    require(ok, "entry", begin.max(initial=0.0), "at least 0 and below the row's time")
    require(least >= 1, "least", least, "at least 1")
    if len(time) < least or not (late := np.sort(time)[-least]):  # that many leave then, or later
        return None
    cells = np.arange(1, MOST_CELLS + 1) * (2 ** np.ceil(np.log2(late)) / MOST_CELLS)
    cells = np.append(cells, 2 * cells[-1])
    last = np.minimum(np.searchsorted(cells, time), MOST_CELLS)
    first = np.minimum(np.searchsorted(cells, begin, side="right"), MOST_CELLS)
    counts = [np.bincount(x, minlength=MOST_CELLS + 1) for x in (first, last[event], last[~event])]
    sums = np.concatenate([np.zeros((1, 3), np.intp), np.cumsum(counts, axis=1).T])
    untold = sums[-1] < least

    def allows(start: int, end: int) -> bool:
        counts, under = sums[end] - sums[start], sums[end] @ (1, -1, -1)
        few = (counts > 0) & (counts < least)
        if end > MOST_CELLS:  # the rest
            few, empty = few & ~untold, start < MOST_CELLS and not counts.any()
        else:
            empty = not counts[1:].any()
        return not (few.any() or 0 < under < least or (empty and least > 1))

    ends = [0, MOST_CELLS + 1]
    for step in (MOST_CELLS >> k for k in range(MOST_CELLS.bit_length())):
        for end in range(step, MOST_CELLS + 1, 2 * step):
            at = bisect(ends, end)
            if allows(ends[at - 1], end) and allows(end, ends[at]):
                ends.insert(at, end)
    if (sums[ends[-2]] < sums[-1]).any():  # the rest is not told
        ends.pop()
    found = EventTable(cells[np.array(ends[1:], np.intp) - 1], *np.diff(sums[ends].T))
    return found if found.deaths.any() else None


class SiteTables(NamedTuple):
    """Event tables of sites on one grid."""

    by_site: tuple[EventTable | None, ...]  # None of a site that has too few rows to take part
    total: EventTable  # their sum

    @property
    def shown(self) -> tuple[EventTable | None, ...]:
        """Tables of sites with at least ``OWN_CURVE`` deaths, for curves of their own."""
        return tuple(t if t and t.deaths.sum() >= OWN_CURVE else None for t in self.by_site)


def collect_tables(sites: Sequence[EventTable | None]) -> SiteTables:
    """Joins cells until the tables of all sites that take part are on one grid.

    The site with the fewest events bounds how fine the grid of all is, and the one with the fewest
    rows at risk how far it reaches: leave out such a site for a finer grid.

    Args:
        sites: Tables of sites, or of groups of their rows; None of those that take no part.

    Raises:
        ValueError: If no site takes part, or no cell with deaths ends at the same time at all.
    """
    there = [table for table in sites if table is not None]
    require(len(there) > 0, "sites", len(there), "at least 1, with enough deaths and losses")
    ends = np.unique(np.concatenate([table.ends for table in there]))
    ends = ends[np.all([table.may_end(ends) for table in there], axis=0)]
    gone = np.zeros(len(ends), np.intp)
    for table in there:
        gone += table.at(ends).deaths + table.at(ends).censored
    ends = ends[gone > 0]  # others are joined to the next one
    tables = tuple(table and table.at(ends) for table in sites)
    _, *counts = zip(*(table for table in tables if table is not None), strict=True)
    total = EventTable(ends, *(np.sum(each, axis=0) for each in counts))
    deaths = int(total.deaths.sum())
    require(deaths > 0, "deaths", deaths, "at least 1 in cells that end alike at all sites")
    return SiteTables(tables, total)
