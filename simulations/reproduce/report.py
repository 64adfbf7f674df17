"""What all reports of reproductions have in common: rows over seeds, and their convergence."""

import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from federation.files import replace_file
from simulations.reproduce.methods import METHODS
from simulations.reproduce.plan import MATCHED
from simulations.terminal import out as console

__all__ = [
    "COLORS",
    "Row",
    "by_name",
    "draw_convergence",
    "figures_of",
    "plain",
    "png",
    "record",
    "record_found",
    "title_of",
]

Row = dict[str, Any]
COLORS: Final = list(mpl.color_sequences["tab10"])


def title_of(name: str) -> str:
    """Returns what the runs of a name are called."""
    return "MAML, v1's eta" if name == MATCHED else METHODS[name].title


def by_name(done: Sequence[Row]) -> dict[tuple[int, str], list[Row]]:
    """Returns the runs by batch size and name: one for each seed."""
    groups: dict[tuple[int, str], list[Row]] = {}
    for run in done:
        groups.setdefault((run["batch-size"], run["name"]), []).append(run)
    return groups


def figures_of(name: str, runs: Sequence[Row]) -> Row:
    """Returns what every report says of some runs that differ in their seeds alone.

    ``iterations`` counts local steps, as the paper does; ``train-error`` is infinite if a run
    diverged, and ``diverged`` counts those; ``ms`` are for one iteration of one seed, of a sweep of
    several.
    """
    steps = runs[0]["iterations"] * METHODS[runs[0]["method"]].local_steps
    last = [run["errors"][-1] for run in runs]
    return {
        "method": name,
        "beta": runs[0]["beta"],
        "eta": runs[0]["eta"],
        "runs": len(runs),
        "iterations": steps,
        "diverged": sum(not math.isfinite(error) for error in last),
        "train-error": float(np.mean(last)),
        "ms": 1e3 * runs[0]["seconds"] / METHODS[runs[0]["method"]].local_steps,
    }


def plain(row: Mapping[str, Any]) -> Row:
    """Returns a row as JSON has it, which knows no infinity."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }


def record(rows: Sequence[Row], figures: Mapping[str, bytes], folder: Path, as_json: bool) -> None:
    """Writes results and pictures, and says where everything is."""
    record_found({"rows": [plain(row) for row in rows]}, figures, folder, as_json)


def record_found(
    found: Mapping[str, Any], files: Mapping[str, bytes], folder: Path, as_json: bool
) -> None:
    """Writes what was found to ``results.json``, and other files; says where everything is."""
    text = json.dumps({"run": str(folder), **found})
    for name, data in {**files, "results.json": text.encode()}.items():
        replace_file(folder / name, data)
    names = ", ".join([*files, "results.json"])
    console.print(f"recorded in {folder}: {names}", soft_wrap=True)
    if as_json:
        print(text)


def png(figure: Figure) -> bytes:
    """Returns a picture as a file holds it."""
    file = io.BytesIO()
    figure.savefig(file, dpi=150, format="png")
    return file.getvalue()


def draw_convergence(done: Sequence[Row], label: str, scale: str) -> bytes:
    """Draws the error on training tasks against rows seen: Figure 1 of the MOML paper.

    Args:
        done: The runs.
        label: What the error is.
        scale: ``log`` or ``linear``.

    Returns:
        The picture, as PNG.
    """
    groups = by_name(done)
    sizes = sorted({size for size, _ in groups})
    figure = Figure(figsize=(1.5 + 5 * len(sizes), 4.5), layout="constrained")
    panels = figure.subplots(1, len(sizes), squeeze=False)[0]
    for axes, size in zip(panels, sizes, strict=True):
        named = {name: runs for (k, name), runs in groups.items() if k == size}
        for color, (name, runs) in zip(COLORS, named.items(), strict=False):
            curves = np.array([run["errors"] for run in runs], dtype=float)
            curves[~np.isfinite(curves)] = np.nan
            samples = runs[0]["samples"]
            style = "--" if name == MATCHED else "-"
            axes.plot(samples, curves.mean(0), style, color=color, label=title_of(name))
            axes.fill_between(samples, curves.min(0), curves.max(0), color=color, alpha=0.12, lw=0)
        axes.set(xlabel="samples", yscale=scale, title=f"K = {size}")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if scale == "log":
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 4, 6)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(f"{label}: mean over seeds, and their range")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    return png(figure)
