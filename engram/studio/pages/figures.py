"""Interactive figures of runs: the curves, the gains and the clients of ``compare.plots``."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from plotly.graph_objects import Figure, Scatter, Scattergl

from engram.compare.claims import scores_of
from engram.compare.colors import looks_of
from engram.compare.comparison_folder import Runs
from engram.compare.differences import Scores
from engram.compare.report_rows import comparable, curve_points, curves_of, finished, models_of
from engram.compare.reports.gain_plot import Dots, gains_of
from engram.compare.results import Results
from engram.core.arrays import Array
from engram.scoring.evaluation import center
from engram.scoring.intervals import Interval
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import COMMON, TUNED

BAR: Final[Any] = {"displaylogo": False, "showSendToCloud": False, "responsive": True}
"""Options of plotly's figures, without the button that would send their data away."""

_DASHES: Final = {"": "solid", COMMON: "dash", TUNED: "dot"}
_JITTER: Final = 0.25  # of a line's height
_MANY: Final = 2000  # dots from which on a browser is faster with WebGL
_MARGIN: Final = {"t": 30, "b": 50}  # pixels


def curves(runs: Runs, metric: Metric) -> Figure:
    """Draws a metric against rounds: the mean over seeds, and a band from lowest to highest."""
    figure, looks = Figure(), looks_of(runs)
    for method, label, which in curves_of(runs, metric):
        rounds, values = curve_points(runs, metric, method, which)
        color, _, symbol = looks[method]
        line = {"color": color, "dash": _DASHES[which]}
        if len(runs[method]) > 1:
            edges = np.concatenate([values.max(axis=0), values.min(axis=0)[::-1]])
            band = Scatter(
                x=[*rounds, *rounds[::-1]],
                y=edges,
                mode="lines",
                fill="toself",
                opacity=0.2,
                line={"width": 0, "color": color},
                legendgroup=label,
                showlegend=False,
                hoverinfo="skip",
            )
            figure.add_trace(band)
        mean = Scatter(x=rounds, y=values.mean(axis=0), name=label, legendgroup=label)
        marker = {"symbol": symbol}
        figure.add_trace(mean.update(mode="lines+markers", line=line, marker=marker))
    y = f"{metric.name}, {metric.center} over clients{metric.unit}"
    figure.update_layout(margin=_MARGIN, xaxis_title="communication round", yaxis_title=y)
    return figure


def gains(
    runs: Runs, metric: Metric, beside: Mapping[str, Scores] = MappingProxyType({})
) -> dict[str, Figure]:
    """Draws each client's gain over each reference, by the reference's name, and their mean.

    Scores are of test rows, each run in the round that validation rows pick; none where runs are
    not finished, or not of the same seeds and clients. The intervals of the means are those of
    ``engram.compare.claims``: all of a comparison hold together, with those of the clients' scores
    without a network, ``beside``.
    """
    runs, found = comparable(runs), {}
    mark = "black: the mean, with its simultaneous 95 % interval"
    title = f"gain in {metric.name}{' (points)' if metric.percent else ''}; {mark}"
    for reference, each in gains_of(runs, metric, beside).items():
        found[reference] = _dots(runs, each, metric)
        found[reference].add_vline(0, line_width=1)
        found[reference].update_layout(xaxis_title=title, showlegend=False)
    return found


def clients(runs: Runs, metric: Metric) -> Figure | None:
    """Draws every client's metric, of each model that is shown; None if no run is finished."""
    if not (ended := finished(runs)):
        return None
    scores = scores_of(ended, metric)
    each = {
        label: Dots(method, [metric.scale * own for own in scores[label]])
        for method, label, _ in models_of(ended)
    }
    figure = _dots(ended, each, metric)
    figure.update_layout(xaxis_title=f"{metric.name} of a client{metric.unit}", showlegend=False)
    return figure


def titled_gains(runs: Runs, results: Results) -> dict[str, Figure]:
    """Returns the figures of each client's gains, by title."""
    metric = results.metric
    return {
        f"What each client gains over {reference}, in {metric.name}": figure
        for reference, figure in gains(runs, metric, results.references).items()
    }


def titled_figures(runs: Runs, metric: Metric) -> dict[str, Figure]:
    """Returns the figures of the rounds, and of the clients, by title."""
    found = {f"{metric.name.capitalize()} against rounds": curves(runs, metric)}
    if (dots := clients(runs, metric)) is not None:
        found[f"{metric.name.capitalize()} of each client"] = dots
    return found


def _dots(runs: Runs, values: Mapping[str, Dots], metric: Metric) -> Figure:
    """Draws a line of dots for each label: clients of all seeds, named under the pointer.

    A mark is at their center or, where that is given, at the mean, with its interval.
    """
    figure, rng, looks = Figure(), np.random.default_rng(0), looks_of(runs)
    for line, (label, (method, seeds, mean)) in enumerate(values.items()):
        x, names = [], []
        for record, scores in zip(runs[method], seeds, strict=True):
            seed = record.settings["seed"]
            for client in np.flatnonzero(np.isfinite(scores)).tolist():
                x.append(float(scores[client]))
                names.append(f"{record.names.get(client, f'client {client}')}, seed {seed}")
        y = line + rng.uniform(-_JITTER, _JITTER, len(x))
        marker = {"color": looks[method].color, "opacity": 0.5}
        hover = "%{text}: %{x:.4g}<extra></extra>"
        dots = (Scattergl if len(x) > _MANY else Scatter)(x=x, y=y, mode="markers", marker=marker)
        figure.add_trace(dots.update(text=names, name=label, hovertemplate=hover))
        if x:
            figure.add_trace(_mark(np.array(x), line, metric, mean))
    figure.update_yaxes(
        tickvals=list(range(len(values))), ticktext=list(values), autorange="reversed"
    )
    figure.update_layout(height=100 + 45 * len(values), margin=_MARGIN)
    return figure


def _mark(x: Array, line: int, metric: Metric, mean: Interval | None) -> Scatter:
    at, told, bars = center(x, metric), f"{metric.center}: %{{x:.4g}}", None
    if mean is not None:
        at, low, high = mean
        told = "mean: %{x:.4g}"
        if np.isfinite([low, high]).all():
            told += f" ({low:.4g} to {high:.4g})"
            bars = {"array": [high - at], "color": "black", "thickness": 2, "width": 6}
    marker = {"color": "black", "symbol": "line-ns-open", "size": 18}
    hover = f"{told}<extra></extra>"
    mark = Scatter(x=[at], y=[line], mode="markers", marker=marker)
    return mark.update(error_x=bars, hovertemplate=hover)
