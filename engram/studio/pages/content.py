"""Contents of a page about runs that train networks: the answer, tables, words and figures."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from plotly.graph_objects import Figure

from engram.compare.comparison_folder import Runs
from engram.compare.report_rows import WORSE, ends, told_round
from engram.compare.reports.local import share_in_words, without_interval
from engram.compare.results import Results
from engram.scoring.evaluation import center_key
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import COMMON, UNSEEN
from engram.studio.pages.figures import clients, curves, gains

BAR: Final[Any] = {"displaylogo": False, "showSendToCloud": False, "responsive": True}
"""Options of plotly's figures, without the button that would send their data away."""


_SEEDS: Final = "s.d. over seeds"


class PageTable(NamedTuple):
    """A table, with lines below it."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[object]]
    words: Sequence[str] = ()


def results_table(found: Mapping[str, Any]) -> PageTable:
    """Returns a table of a run's results that are numbers or words."""
    told = {key: value for key, value in found.items() if isinstance(value, int | float | str)}
    return PageTable("Results", ("", ""), list(told.items()))


def table_of(results: Results) -> PageTable:
    """Returns each method's scores, with the differences of the best one below."""
    metric, rows = results.metric, results.rows
    name, percent = metric.name, " in %" if metric.percent else ""
    harm = _told(rows, name + WORSE)
    keys = {heading: name + end for heading, end in ends(metric).items()}
    keys |= {"unseen": center_key(UNSEEN + name, metric)}
    keys |= {"common model": center_key(name + COMMON, metric), _SEEDS: f"{name}-seed-std"}
    keys = {heading: key for heading, key in keys.items() if _told(rows, key)}
    told = []
    for row in rows:
        shown = [metric.in_words(row.get(key), 1) for key in keys.values()]
        told.append([row["method"], *shown, *[share_in_words(row, name)] * harm])
    for reference, values in results.beside.items():
        known = dict(zip([*ends(metric), _SEEDS], values, strict=True))
        shown = [metric.in_words(known.get(heading), 1) for heading in keys]
        told.append([reference, *shown, *["-"] * harm])
    worse = f"worse than local (%{without_interval(rows, name)})"
    heading = ["method", *keys, *[worse] * harm]
    those = " that train" if "unseen" in keys else ""
    title = (
        f"{name.capitalize()}{percent} of the clients{those}, on test rows {told_round(rows[0])}"
    )
    notes = [f"{reference}: {words}" for reference, words in results.notes.items()]
    return PageTable(title, heading, told, [*results.words, *notes])


def _told(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(row.get(key) is not None for row in rows)


def gains_of(runs: Runs, results: Results) -> dict[str, Figure]:
    """Returns the figures of each client's gains, by title."""
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
