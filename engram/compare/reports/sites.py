"""Shared parts of reports of sites with tables."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from matplotlib.figure import Figure
from rich.table import Table

from engram.cli.console import as_allowed, err, new_table, out, tell_files
from engram.compare.figures import panels, save
from engram.compare.reports.base import plots_of
from engram.core.arrays import Array
from engram.runs.run import Run
from engram.settings.errors import one_line
from engram.strategies.running.base import STRATEGIES, Row

MANY: Final = 60  # rows that a table on the screen shows
EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


def show_sites(
    folder: Path, as_json: bool, *tables: Callable[[Row, Mapping[str, Any]], Table | None]
) -> None:
    """Draws the plots of a run between sites, and prints its tables and its files."""
    record = Run.open(folder)
    found, settings = record.results, record.settings
    if found is None:
        err.print(f"{folder}: not finished; go on with --resume", soft_wrap=True)
        return
    for table in tables:
        if (made := table(found, settings)) is not None:
            out.print(made)
    names = record.names
    for kind, clients in (("left out", found["left-out"]), ("lacks", found.get("lacking", {}))):
        for client, reason in clients.items():
            called = names.get(int(client), client)
            err.print(one_line(f"client {called} {kind}: {reason}"), soft_wrap=True)
    strategy = STRATEGIES[record.method.plug_in]
    out.print(strategy.in_words(found), soft_wrap=True)
    plots = {f"{name}.png": figure for name, figure in plots_of(record).items()}
    with as_allowed(folder):
        for name, figure in plots.items():
            save(figure, folder / name)
    tell_files(folder, [*plots, "results.json", "metrics.jsonl"])
    if as_json:
        print(json.dumps({"run": str(folder), **found}))


def first_rows(
    title: str,
    left: Sequence[str],
    right: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
) -> Table:
    """Returns a table of the first rows, with the number of all, and notes below."""
    table = new_table(left, right, title=title, padding=(0, 1))
    for row in rows[:MANY]:
        table.add_row(*row)
    if len(rows) > MANY:
        table.add_row("...", f"{len(rows)} in all", "in results.json")
    table.caption, table.caption_justify = "\n".join(notes) or None, "left"
    return table


def regret_table(found: Mapping[str, Any]) -> Table:
    """Returns a table of each site's turns, reward and regret."""
    batches = "" if found["turns"] == found["rounds"] else f" in {found['rounds']} batches"
    title = f"{found['sites']} sites, {found['turns']} turns{batches}"
    headings = ["site", "turns reported", "reward", "regret"]
    clients = found["clients"]
    columns = [clients[name] for name in ("turns", "reward", "regret")]
    names = clients.get("names", range(len(columns[0])))
    rows = [
        (one_line(str(name)), f"{turns:.0f}", f"{reward:.4g}", f"{regret:.4g}")
        for name, turns, reward, regret in zip(names, *columns, strict=True)
    ]
    return first_rows(title, [], headings, rows)


def draw_curve(
    x: Sequence[float],
    regret: Sequence[float],
    style: str,
    labels: Mapping[str, str],
    references: Mapping[str, Sequence[float] | Array] = EMPTY,
) -> Figure:
    """Plots cumulative regret against ``x``, from 0 on.

    Args:
        x: Turns at which the regret is known.
        regret: The regret at these turns.
        style: Matplotlib's style of the line.
        labels: Labels of the axes.
        references: Others' regret after each turn, by their names.
    """
    figure, (axes,) = panels(1, size=(7.5, 4.5))
    axes.plot([0, *x], [0, *regret], style, ms=4, label="this run")
    for line, (name, values) in zip(cycle(("--", ":")), references.items(), strict=False):
        axes.plot(range(len(values) + 1), [0, *values], line, color="black", lw=1, label=name)
    if references:
        axes.legend()
    axes.set(**labels)
    return figure
