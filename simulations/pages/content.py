"""Contents of a page about runs that train networks: the answer, tables, words and figures."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from plotly.graph_objects import Figure

from engram.metrics import Metric
from federation.columns import COMMON, UNSEEN
from simulations.comparison import Runs
from simulations.pages.figures import clients, curves, gains
from simulations.reports.local import share_in_words, without_interval
from simulations.results import Results
from simulations.rows import SELECTED, WORSE, ends
from strategies.evaluation import center_key

BAR: Final[Any] = {"displaylogo": False, "showSendToCloud": False, "responsive": True}
"""Options of plotly's figures, without the button that would send their data away."""


class PageTable(NamedTuple):
    """A table, and what it shows, in words."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[object]]
    words: Sequence[str] = ()


def table_of(results: Results) -> PageTable:
    """Returns what each method reaches, and how far the best is from the others."""
    metric, rows = results.metric, results.rows
    name, percent = metric.name, " in %" if metric.percent else ""
    picked, harm = _told(rows, SELECTED + name), _told(rows, name + WORSE)
    keys = {f"last {heading}": name + end for heading, end in ends(metric).items()}
    keys |= {"last unseen": center_key(UNSEEN + name, metric)}
    keys |= {"last common model": center_key(name + COMMON, metric)}
    last = {heading: key for heading, key in keys.items() if _told(rows, key)}
    told = []
    for row in rows:
        figures = [*[row.get(SELECTED + name)] * picked, *(row.get(key) for key in last.values())]
        shown = [metric.in_words(value, 1) for value in figures]
        told.append([row["method"], *shown, *[share_in_words(row, name)] * harm])
    for reference, known in results.beside.items():
        figures = [*known[:1] * picked, *known, *[None] * (len(last) - len(known))]
        shown = [metric.in_words(value, 1) for value in figures]
        told.append([reference, *shown, *["-"] * harm])
    worse = f"worse than local (%{without_interval(rows, name)})"
    heading = ["method", *["picked"] * picked, *last, *[worse] * harm]
    those = " that train" if center_key(UNSEEN + name, metric) in last.values() else ""
    title = f"{name.capitalize()}{percent} of the clients{those}, on test rows"
    notes = [f"{reference}: {words}" for reference, words in results.notes.items()]
    return PageTable(title, heading, told, [*results.words, *notes])


def _told(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(row.get(key) is not None for row in rows)


def gains_of(runs: Runs, results: Results) -> dict[str, Figure]:
    """Returns the figures of what each client gains, by title."""
    metric = results.metric
    return {
        f"What each client gains over {reference}, in {metric.name}": figure
        for reference, figure in gains(runs, metric, results.references).items()
    }


def figures_of(runs: Runs, metric: Metric) -> dict[str, Figure]:
    """Returns the figures of the rounds, and of the clients, by title."""
    found = {f"{metric.name.capitalize()} against rounds": curves(runs, metric)}
    if (dots := clients(runs, metric)) is not None:
        found[f"{metric.name.capitalize()} of each client"] = dots
    return found
