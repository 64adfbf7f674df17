"""Event tables: deaths, censored and entered rows of sites in the cells of one grid of times.

Exact times stay at their site. All sites know fine cells, such as months. Neighboring cells are
joined until each has, at every site, none or at least ``least`` deaths, censored and entered rows,
and leaves none or at least ``least`` under observation; the end, where no cell does, is cut.

What joining tells, besides the tables: that some site has a row in the last fine cell of a joined
one. So fine cells are to be as wide as what may be known of a single row.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engram.core.arrays import Array, Bools, Ints
from engram.core.checks import require

LEAST = 5
"""Fewest rows behind a count, as the policy of sites has it by default."""

OWN_CURVE = 50
"""Fewest deaths of a site whose own curve is shown."""


class EventTable(NamedTuple):
    """Numbers of rows in K cells of time ``(start, end]``, of which the first begins at 0."""

    ends: Array  # ends of the cells, increasing, shape (K,)
    entered: Ints  # rows that come under observation in time to be at risk in the whole cell, (K,)
    deaths: Ints  # rows with an event in the cell, (K,)
    censored: Ints  # rows that are lost in the cell without an event, (K,)

    @property
    def at_risk(self) -> Ints:
        """Rows at risk in each cell, (K,): deaths come before losses of the same cell."""
        left = np.cumsum(self.deaths + self.censored)
        return np.asarray(np.cumsum(self.entered) - np.append(0, left[:-1]), np.intp)


class SiteTimes:
    """Times of a site, or of a group of its rows, and its answers to questions about cells.

    Args:
        cells: Ends of the fine cells, increasing and above 0, shape (K,): the same at all sites.
        time: Times of events or losses, at least 0, shape (n,). Those after the last cell are
            under observation throughout.
        event: Whether a row has an event, rather than being lost, shape (n,).
        entry: Times after which rows are under observation, below ``time``, shape (n,); None: 0.
        least: Fewest rows behind a count that leaves the site.

    Raises:
        ValueError: If cells or times are none.
    """

    def __init__(
        self,
        cells: Array,
        time: Array,
        event: Bools,
        entry: Array | None = None,
        *,
        least: int = LEAST,
    ) -> None:
        cells, time = np.asarray(cells, np.float64), np.asarray(time, np.float64)
        begin = np.zeros_like(time) if entry is None else np.asarray(entry, np.float64)
        rises = bool(np.isfinite(cells).all() and (np.diff(cells, prepend=0.0) > 0).all())
        require(rises and len(cells) > 0, "cells", cells, "increasing, and above 0")
        require(bool((time >= 0).all()), "time", time.min(initial=np.inf), "at least 0")
        ok = bool(((begin == 0) | (begin > 0) & (begin < time)).all())
        require(ok, "entry", begin.max(initial=0.0), "at least 0 and below the row's time")
        require(least >= 1, "least", least, "at least 1")
        self.cells, self._least = cells, least
        last, event = np.searchsorted(cells, time), np.asarray(event, np.bool_)
        first = np.searchsorted(cells, begin, side="right")
        each = [first, last[event], last[~event]]
        counts = [np.bincount(some, minlength=len(cells) + 1)[: len(cells)] for some in each]
        self._counts = np.concatenate([np.zeros((1, 3), np.intp), np.cumsum(counts, axis=1).T])

    @property
    def takes_part(self) -> bool:
        """Whether it allows any cell with deaths at all."""
        allowed = self._allows(0, np.arange(1, len(self.cells) + 1))
        return bool((allowed & (self._counts[1:, 1] > 0)).any())

    def end_from(self, start: int, end: int) -> tuple[int, bool]:
        """Returns the first end of a joined cell that the site allows, and whether it has rows.

        Args:
            start: Number of fine cells before the joined one.
            end: Number of fine cells up to the least end asked for, above ``start``.

        Returns:
            The end, more than there are cells if none will do; and whether the joined cell has an
            event or a loss.
        """
        for found in end + np.flatnonzero(self._allows(start, np.arange(end, len(self._counts)))):
            return int(found), bool((self._counts[found] > self._counts[start])[1:].any())
        return len(self._counts), False

    def table(self, grid: Sequence[int]) -> EventTable:
        """Returns the counts on a grid that the site allows.

        Args:
            grid: Number of fine cells up to each end.

        Raises:
            ValueError: If a count would be of fewer than ``least`` rows.
        """
        ends = np.asarray(grid, np.intp)
        starts = np.append(0, ends[:-1])
        expected = f"of none or at least {self._least} rows here"
        require(bool(self._allows(starts, ends).all()), "cells", grid, expected)
        return EventTable(self.cells[ends - 1], *(self._counts[ends] - self._counts[starts]).T)

    def _allows(self, starts: Ints | int, ends: Ints) -> Bools:
        totals = self._counts[ends]
        left = totals[:, 0] - totals[:, 1:].sum(axis=1)
        counts = np.column_stack([totals - self._counts[starts], left])
        return np.asarray(((counts == 0) | (counts >= self._least)).all(axis=1))


def join_cells(sites: Sequence[SiteTimes]) -> list[int]:
    """Joins neighboring fine cells from 0 on, each as soon as all sites allow it.

    An end is asked about until all sites allow it: some questions for each joined cell.

    Args:
        sites: Sites, and groups of their rows, whose tables are wanted on one grid.

    Returns:
        Number of fine cells up to each end: the grid of ``SiteTimes.table``. Fine cells without an
        event or a loss at any site are joined to the next one that has some.

    Raises:
        ValueError: If there is no site, or their fine cells differ.
    """
    require(len(sites) > 0, "sites", len(sites), "at least 1, with enough deaths")
    cells = sites[0].cells
    same = all(np.array_equal(site.cells, cells) for site in sites)
    require(same, "cells", "different ones", "the same at all sites")
    grid, start, end = list[int](), 0, 1
    while end <= len(cells):
        ends, rows = zip(*(site.end_from(start, end) for site in sites), strict=True)
        if max(ends) > end:
            end = max(ends)
            continue
        if any(rows):
            grid.append(end)
            start = end
        end += 1
    return grid


class SiteTables(NamedTuple):
    """Event tables of sites on one grid."""

    by_site: tuple[EventTable | None, ...]  # None of a site that has too few rows to take part
    total: EventTable  # their sum

    @property
    def shown(self) -> tuple[EventTable | None, ...]:
        """Tables of sites with at least ``OWN_CURVE`` deaths, for curves of their own."""
        return tuple(t if t and t.deaths.sum() >= OWN_CURVE else None for t in self.by_site)


def collect_tables(sites: Sequence[SiteTimes]) -> SiteTables:
    """Collects the event tables of all sites that can take part.

    The site with the fewest events bounds how fine the grid of all is, and the one with the fewest
    rows at risk how far it reaches: leave out such a site for a finer grid.

    Raises:
        ValueError: If no site can take part, or no cell is allowed by all of them.
    """
    grid = join_cells([site for site in sites if site.takes_part])
    require(len(grid) > 0, "cells", len(grid), "at least 1 with enough rows at every site")
    tables = tuple(site.table(grid) if site.takes_part else None for site in sites)
    (ends, *_), *counts = zip(*(table for table in tables if table is not None), strict=True)
    return SiteTables(tables, EventTable(ends, *(np.sum(each, axis=0) for each in counts)))
