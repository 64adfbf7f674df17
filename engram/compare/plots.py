"""Plots: metrics against rounds, each client's metric, and the clients' data."""

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from engram.compare.colors import looks_of
from engram.compare.comparison_folder import Runs
from engram.compare.figures import draw_band, panels, save
from engram.compare.panel_plots import curve_of, draw_multiples, end_ticks
from engram.compare.report_rows import client_scores, curve_points, curves_of
from engram.data.federated import FederatedData, Split
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import COMMON, TUNED
from engram.settings.errors import one_line
from engram.settings.families import METHODS

_STYLES: Final = {"": "-", COMMON: "--", TUNED: ":"}
_FILLED: Final = {COMMON: 0.0, "": 0.7, TUNED: 0.25}  # how much color a model's box has
_UPRIGHT: Final = 64  # most letters of names side by side
_TOGETHER: Final = 3  # most curves whose bands can be told apart in one panel


def draw_metric(
    runs: Runs, metric: Metric, *, narrow: bool = False, against: str = "round"
) -> Figure:
    """Plots a metric against rounds: the mean over seeds, and a band from lowest to highest.

    ``against`` may be another column of the record, such as ``CLOCK``: its mean over seeds.

    More than ``_TOGETHER`` models have a panel each; fewer side by side, if they are to be narrow.
    """
    lines, looks = curves_of(runs, metric), looks_of(runs)
    curves = []
    for method, label, which in lines:
        rounds, values = curve_points(runs, metric, method, which)
        at = [{row["round"]: row.get(against, 0) for row in r.rows()} for r in runs[method]]
        means = [float(np.mean([each[number] for each in at])) for number in rounds]
        curves.append(curve_of(label, means, values, looks[method].color))
    seeds = max(len(records) for records in runs.values())
    band = f", band: lowest to highest of {seeds} seeds" if seeds > 1 else ""
    x = "communication round" if against == "round" else against.replace("-", " ")
    over = f"{metric.center} over clients"
    y, told = f"{metric.name}, {over}{metric.unit}", f"{over}{band}"
    if len(curves) > _TOGETHER:
        marked = [label for m, label, _ in lines if getattr(METHODS[m], "reference", False)]
        return draw_multiples({"": curves}, (x, y), own=told, marked=marked, narrow=narrow)
    figure, (axes,) = panels(1, size=(7.5, 4.5))
    for (method, label, which), curve in zip(lines, curves, strict=True):
        (line,) = axes.plot(curve.x, curve.mean, ls=_STYLES[which], color=curve.color, label=label)
        line.set(marker=looks[method].mark, markersize=3)
        draw_band(axes, line, curve.low, curve.high)
    axes.set(xlabel=x, ylabel=y, title=f"lines: {told}")
    end_ticks(axes, curves, 9)
    axes.legend(loc="best", framealpha=0.6)
    return figure


def draw_clients(runs: Runs, metric: Metric, *, narrow: bool = False) -> Figure:
    """Plots a metric of all clients that train (and seeds), by each model that was scored.

    Each run is at its best round, or the last if it holds no validation rows out.
    """
    figure, (axes,) = panels(1, size=(max(7.5, 0.7 * len(runs)), 4.5), grid="y")
    rng = np.random.default_rng(0)  # jitter, so that dots do not overlap
    names, looks = [], looks_of(runs)
    for i, (method, records) in enumerate(runs.items()):
        found = [record for record in records if record.results is not None]
        if not found:
            continue
        scored = (found[0].results or {})["clients"]
        names.append((i, method))
        for offset, (which, filled) in zip((-0.27, 0, 0.27), _FILLED.items(), strict=True):
            if metric.name + which not in scored:
                continue
            each = client_scores(found, metric.name, which)
            values = np.concatenate(each) * metric.scale
            values = values[np.isfinite(values)]
            spread = i + offset + rng.uniform(-0.07, 0.07, len(values))
            color = looks[method].color
            axes.plot(spread, values, ".", color=color, alpha=0.5, ms=4, mew=0)
            axes.boxplot(
                values,
                positions=[i + offset],
                widths=0.2,
                whis=(10, 90),
                showfliers=False,
                patch_artist=True,
                boxprops={"facecolor": (color, filled)},
                medianprops={"color": "black", "lw": 1.5},
            )
    axes.set_xticks([i for i, _ in names], [name for _, name in names])
    if narrow or sum(len(name) + 1 for _, name in names) > _UPRIGHT:
        axes.tick_params("x", rotation=45)
    said = [
        *("each dot a client, at the best round;", "dark box: personal model,"),
        *("light: fine-tuned, empty: global model;", "box: quartiles,"),
        "whiskers: 10th and 90th percentile",
    ]
    lines = said if narrow else [" ".join(said[:2]), " ".join(said[2:])]
    figure.suptitle("\n".join(lines), fontsize="small")
    axes.set_ylabel(f"{metric.name} of a client{metric.unit}")
    if metric.percent:
        axes.set_ylim(-3, 103)
    return figure


def plot_data(data: FederatedData, path: Path) -> None:
    """Plots how many rows, of each class, every client holds, to train, to validate and to test."""
    held, by_class = row_counts(data), has_classes(data)
    height = min(12.0, 2.5 + 0.18 * len(held["training"]))
    figure, each = panels(len(held), size=(4.5 * len(held), height), grid="", sharey=True)
    for axes, (title, counts) in zip(each, held.items(), strict=True):
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


def has_classes(data: FederatedData) -> bool:
    """Returns whether each row has one class."""
    return data.train.y.ndim == 1 and not data.train.y.is_floating_point()


def row_counts(data: FederatedData) -> dict[str, npt.NDArray[np.int64]]:
    """Counts rows by client and class, (clients, classes), for each part.

    Where targets are no classes, these are its rows, (clients, 1).
    """
    parts = {"training": data.train, "validation": data.validation, "test": data.test}

    def counted(split: Split) -> npt.NDArray[np.int64]:
        if not has_classes(data):
            return np.array([[len(rows)] for rows in split.rows])
        classes = (split.y[rows].cpu() for rows in split.rows)
        return np.stack([np.bincount(each, minlength=data.outputs) for each in classes])

    return {part: counted(split) for part, split in parts.items() if split is not None}
