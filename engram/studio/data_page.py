"""The page that shows which client holds which rows."""

import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from dash import html
from dash.development.base_component import Component
from plotly.graph_objects import Figure, Heatmap

from engram.compare.plots import row_counts
from engram.data.load_federation import federated_data
from engram.data.source import Source
from engram.runs.run import Run
from engram.settings.errors import EngramError
from engram.settings.experiment import Experiment
from engram.studio.run_index import RunIndex
from engram.studio.widgets import graph, grid, number, plain

_LOCAL = ("npz", "npy", "csv", "xlsx", "images", "leaf")  # kinds of data that are never downloaded
_LOCK = threading.Lock()
_Held = tuple[np.ndarray, Mapping[int, str]]


def holdings(index: RunIndex, query: Mapping[str, Sequence[str]]) -> list[Component]:
    """Shows how many rows of each class, or of each kind, every client of a run holds."""
    name = query["name"][0]
    record = index.record(name)
    settings, title = record.settings, html.H1(f"Who holds which rows in {name}")
    source = Source.of(settings["dataset"])
    here = source == "digits" or source.kind in _LOCAL
    if record.on_nodes or not here:
        words = "The rows are with the clients, or elsewhere: engram data shows those of settings."
        return [title, html.P(words)]
    try:
        counts, names = _counted(record)
    except EngramError as error:
        return [title, html.P(f"Its data cannot be read here: {error}")]
    classes = counts.shape[1]
    called = _distinct([names.get(client, f"client {client}") for client in range(len(counts))])
    labels = [f"class {label}" for label in range(classes)] if classes > 1 else ["rows"]
    hover = "%{y}, %{x}: %{z} rows<extra></extra>"
    y = [*map(plain, called)]
    figure = Figure(Heatmap(z=counts, x=labels, y=y, colorscale="Blues", hovertemplate=hover))
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_layout(height=int(min(900, 160 + 18 * len(called))))
    rows = [
        {
            "client": who,
            "training rows": int(own.sum()),
            **dict(zip(labels, own.tolist(), strict=True)),
        }
        for who, own in zip(called, counts, strict=True)
    ]
    columns = [{"field": "client"}, *(number(key, digits=0) for key in list(rows[0])[1:])]
    words = f"{len(called)} clients hold {int(counts.sum())} training rows."
    return [title, html.P(words), graph("holdings", figure), grid("holdings", rows, columns)]


def _distinct(names: Sequence[str]) -> list[str]:
    counted = Counter(names)
    return [f"{n} ({client})" if counted[n] > 1 else n for client, n in enumerate(names)]


def _counted(record: Run) -> _Held:
    """Counts once for each set of settings, however many look at the same time."""
    with _LOCK:
        return _counts(json.dumps(record.settings, sort_keys=True))


@lru_cache(maxsize=4)
def _counts(settings: str) -> _Held:
    """Returns each client's training rows, (clients, classes), and the clients' names."""
    experiment = Experiment.from_config(json.loads(settings))
    if not experiment.own.trains_network:
        raise EngramError("it trains no network")
    data = federated_data(experiment)
    return row_counts(data)["training"], data.names
