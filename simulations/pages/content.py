"""Contents of a page about runs that train networks: tables, words and figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from plotly.graph_objects import Figure

from engram.metrics import Metric
from federation.methods.network import COMMON
from simulations.comparison import Runs
from simulations.differences import in_words
from simulations.pages.figures import clients, curves, gains
from simulations.references import read_references
from simulations.rows import differences_from, ends, others, report_rows
from strategies.evaluation import center_key

__all__ = ["BAR", "PageTable", "figures_of", "table_of"]

BAR: Final[Any] = {"displaylogo": False, "showSendToCloud": False}
"""Options of plotly's figures, without the button that would send their data away."""


class PageTable(NamedTuple):
    """A table, and what it shows, in words."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[object]]
    words: Sequence[str] = ()


def table_of(folder: Path, runs: Runs, metric: Metric) -> PageTable:
    """Returns what each method reaches, and how far the best is from the others.

    Args:
        folder: Of the comparison, which holds the references' scores.
        runs: Its runs; at least one.
        metric: By what they are scored.
    """
    rows = report_rows(runs)
    known = read_references(folder, next(iter(runs.values())), metric.name)
    told = differences_from(runs, rows, metric, known)
    found = _table(rows, metric, others(runs, metric, known))
    return found._replace(words=in_words(*told, metric) if told else ())


def figures_of(runs: Runs, metric: Metric) -> dict[str, Figure]:
    """Returns the figures of runs by title."""
    found = {f"{metric.name} against rounds": curves(runs, metric)}
    for reference, figure in gains(runs, metric).items():
        found[f"What each client gains over {reference}"] = figure
    if (dots := clients(runs, metric)) is not None:
        found[f"{metric.name} of each client"] = dots
    return found


def _table(
    rows: list[dict[str, Any]], metric: Metric, beside: Mapping[str, tuple[float, ...]]
) -> PageTable:
    name, percent = metric.name, " in %" if metric.percent else ""
    keys = ends(metric)
    told = []
    for row in rows:
        common = row.get(center_key(name + COMMON, metric))
        figures = [*(row.get(name + key) for key in keys.values()), common]
        told.append([row["method"], *(metric.in_words(figure, 1) for figure in figures)])
    for reference, known in beside.items():
        figures = [*known, None]
        told.append([reference, *(metric.in_words(figure, 1) for figure in figures)])
    title = f"{name.capitalize()}{percent} of the clients, on test rows"
    return PageTable(title, ["method", *keys, "common model"], told)
