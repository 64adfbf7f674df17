"""The page of a search: its trials as parallel coordinates and as a table."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dash import html
from dash.development.base_component import Component
from plotly.graph_objects import Figure, Parcoords

from engram.compare.comparison_folder import read_search
from engram.studio.run_index import RunIndex
from engram.studio.widgets import address, choices, graph, grid, number
from engram.tune.record import TRIALS, Trial, read_trials
from engram.tune.results import trial_rows

_WIDE: Final = 30  # ratio of the largest to the least value from which on an axis is logarithmic


def trials(index: RunIndex, query: Mapping[str, Sequence[str]]) -> list[Component]:
    """Shows the trials of one method of a search."""
    name = query["name"][0]
    folder = index.path(name)
    methods = [m for m in read_search(folder)["fixed"] if (folder / m / TRIALS).is_file()]
    if not methods:
        return [html.H1(name), html.P("Nothing has been tried yet.")]
    method = next((m for m in query.get("method", ()) if m in methods), methods[0])
    found = read_trials(folder / method)
    links = {m: address("/search", name=name, method=m) for m in methods}
    shown: list[Component] = [html.H1(name), choices(links, method)]
    scored = [trial for trial in found if trial.value is not None and math.isfinite(trial.value)]
    if scored:
        words = "Each line is a trial. Drag along an axis to keep those that pass through there."
        shown += [graph("trials", _coordinates(scored)), html.P(words)]
    rows = trial_rows(found)
    keys = dict.fromkeys(key for row in rows for key in row)
    columns = [number(key, 4) if key in ("score", "seed-std") else {"field": key} for key in keys]
    return [*shown, grid("trials", rows, columns)] if rows else shown


def _coordinates(trials: Sequence[Trial]) -> Figure:
    keys = list(dict.fromkeys(key for trial in trials for key in trial.settings))
    axes = [_axis(key, [trial.settings.get(key) for trial in trials]) for key in keys]
    scores = [float(trial.value or 0.0) for trial in trials]
    axes += [_axis("last round", [trial.round for trial in trials]), _axis("validation", scores)]
    line = {"color": scores, "colorscale": "Viridis", "showscale": True}
    figure = Figure(Parcoords(dimensions=axes, line=line))
    figure.update_layout(height=420)
    return figure


def _axis(title: str, values: Sequence[Any]) -> dict[str, Any]:
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        words = list(dict.fromkeys(map(str, values)))
        ticks = {"tickvals": list(range(len(words))), "ticktext": words}
        return {"label": title, "values": [words.index(str(value)) for value in values], **ticks}
    if min(values) > 0 and max(values) / min(values) > _WIDE:
        logs = [math.log10(value) for value in values]
        marks = range(math.floor(min(logs)), math.ceil(max(logs)) + 1)
        ticks = {"tickvals": list(marks), "ticktext": [f"{10.0**mark:g}" for mark in marks]}
        return {"label": title, "values": logs, **ticks}
    return {"label": title, "values": list(values)}
