"""Contents of a page about runs that train networks: the answer, tables, words and figures."""

from collections.abc import Mapping
from typing import Any, Final

from plotly.graph_objects import Figure

from engram.compare.comparison_folder import Runs
from engram.compare.results import Results
from engram.compare.text_tables import TextTable
from engram.scoring.metrics import Metric
from engram.studio.pages.figures import clients, curves, gains

BAR: Final[Any] = {"displaylogo": False, "showSendToCloud": False, "responsive": True}
"""Options of plotly's figures, without the button that would send their data away."""


def results_table(found: Mapping[str, Any]) -> TextTable:
    """Returns a table of a run's results that are numbers or words."""
    numbers = {key: value for key, value in found.items() if isinstance(value, int | float | str)}
    return TextTable("Results", ("", ""), list(numbers.items()))


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
