"""Plots: metrics against rounds, each client's metric, and the clients' data."""

import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from engram.metrics import Metric
from federation.data.federated import FederatedData, Split
from federation.errors import one_line
from federation.files import replace_file
from federation.methods import METHODS
from federation.methods.network import COMMON, TUNED
from server.record import RunRecord
from simulations.comparison import Runs
from simulations.multiples import Curve, curve_of, draw_multiples
from simulations.rows import curves_of
from strategies.evaluation import center_key

__all__ = ["draw_metric", "plot_clients", "plot_data", "png", "save", "tick_label"]

_COLORS = list(mpl.color_sequences["tab10"])
_STYLES: Final = {"": "-", COMMON: "--", TUNED: ":"}
_MODELS: Final = {COMMON: "tab:gray", "": "tab:blue", TUNED: "tab:green"}
_TOGETHER: Final = 3  # most curves whose bands can be told apart in one panel


def png(figure: Figure) -> bytes:
    """Returns a figure as a file."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=150)
    return data.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Writes a figure in place of whatever is there; where that is a link, not of its target."""
    replace_file(path, png(figure), shared=True)


def draw_metric(runs: Runs, metric: Metric) -> Figure:
    """Plots a metric against rounds: the mean over seeds, and a band from lowest to highest.

    More than ``_TOGETHER`` models have a panel each.
    """
    lines = curves_of(runs, metric)
    curves = [_curve(runs[method], metric, label, which) for method, label, which in lines]
    seeds = max(len(records) for records in runs.values())
    band = f", band: lowest to highest of {seeds} seeds" if seeds > 1 else ""
    x, unit = "communication round", " (%)" if metric.percent else ""
    over = f"{metric.center} over clients"
    y, told = f"{metric.name}, {over}{unit}", f"{over}{band}"
    if len(curves) > _TOGETHER:
        marked = [label for m, label, _ in lines if getattr(METHODS[m], "reference", False)]
        return draw_multiples({"": curves}, (x, y), own=told, marked=marked)
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    colors = dict(zip(runs, itertools.cycle(_COLORS), strict=False))
    for (method, label, which), curve in zip(lines, curves, strict=True):
        axes.plot(curve.x, curve.mean, _STYLES[which], color=colors[method], label=label)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(
                curve.x, curve.low, curve.high, color=colors[method], alpha=0.15, lw=0
            )
    axes.set(xlabel=x, ylabel=y, title=f"lines: {told}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="best", framealpha=0.6)
    return figure


def _curve(records: Sequence[RunRecord], metric: Metric, label: str, which: str) -> Curve:
    """Returns a model's metric in the rounds in which every seed was evaluated."""
    key = center_key(metric.name + which, metric)
    found = [
        {row["round"]: row[key] for row in record.rows() if row.get(key) is not None}
        for record in records
    ]
    rounds = sorted(set.intersection(*(set(each) for each in found)))
    return curve_of(label, rounds, _scaled([[each[r] for r in rounds] for each in found], metric))


def _scaled(values: Sequence[Any], metric: Metric) -> npt.NDArray[np.float64]:
    return np.array(values, dtype=float) * (100 if metric.percent else 1)


def plot_clients(runs: Runs, metric: Metric, path: Path) -> None:
    """Plots a metric of all clients (and seeds), by each model that the runs have scores of."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    rng = np.random.default_rng(0)  # jitter, so that dots do not overlap
    names = []
    for i, (method, records) in enumerate(runs.items()):
        found = [results["clients"] for r in records if (results := r.results) is not None]
        if not found:
            continue
        names.append((i, method))
        for offset, (which, color) in zip((-0.27, 0, 0.27), _MODELS.items(), strict=True):
            if metric.name + which not in found[0]:
                continue
            values = np.concatenate([_scaled(each[metric.name + which], metric) for each in found])
            values = values[np.isfinite(values)]
            spread = i + offset + rng.uniform(-0.07, 0.07, len(values))
            axes.plot(spread, values, ".", color=color, alpha=0.5, ms=5, mew=0)
            axes.boxplot(
                values,
                positions=[i + offset],
                widths=0.2,
                whis=(10, 90),
                showfliers=False,
                medianprops={"color": color, "lw": 2},
            )
    axes.set_xticks([i for i, _ in names], [name for _, name in names])
    axes.set(
        ylabel=f"{metric.name} of a client{' (%)' if metric.percent else ''}",
        title="each dot a client; gray: common model, blue: what serves, green: fine-tuned\n"
        "box: quartiles, whiskers: 10th and 90th percentile",
    )
    if metric.percent:
        axes.set_ylim(-3, 103)
    axes.grid(axis="y", alpha=0.3)
    save(figure, path)


def plot_data(data: FederatedData, path: Path, *, by_class: bool) -> None:
    """Plots how many rows, of each class, every client holds, to train, to validate and to test."""
    held = row_counts(data, by_class=by_class)
    height = min(12.0, 2.5 + 0.18 * len(held["training"]))
    figure = Figure(figsize=(4.5 * len(held), height), layout="constrained")
    panels = figure.subplots(1, len(held), sharey=True)
    for axes, (title, counts) in zip(panels, held.items(), strict=True):
        image = axes.imshow(counts, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
        axes.set(title=f"{title} rows", xlabel="class" if by_class else "")
        figure.colorbar(image, ax=axes, label="rows")
        if counts.shape[1] <= 20:
            called = [tick_label(name) for name in data.kind.class_names if by_class]
            axes.set_xticks(range(len(called)), called, parse_math=False)
            axes.tick_params("x", rotation=90 if data.classes else 0)
        if counts.shape[0] <= 60:
            ticks = range(0, counts.shape[0], max(1, counts.shape[0] // 20))
            labels = [tick_label(data.names.get(client, client)) for client in ticks]
            axes.set_yticks(ticks, labels, parse_math=False)
        axes.set_ylabel("client" if title == "training" else "")
    save(figure, path)


def tick_label(client: object) -> str:
    """Returns a client's name, shortened to label an axis."""
    return one_line(str(client), longest=24)


def row_counts(data: FederatedData, *, by_class: bool) -> dict[str, npt.NDArray[np.int64]]:
    """Returns each client's rows of each class, (clients, classes), by what they are for.

    Where targets are no classes, these are its rows, (clients, 1).
    """
    parts = {"training": data.train, "validation": data.validation, "test": data.test}

    def counted(split: Split) -> npt.NDArray[np.int64]:
        if not by_class:
            return np.array([[len(rows)] for rows in split.rows])
        classes = (split.y[rows].cpu() for rows in split.rows)
        return np.stack([np.bincount(each, minlength=data.outputs) for each in classes])

    return {part: counted(split) for part, split in parts.items() if split is not None}
