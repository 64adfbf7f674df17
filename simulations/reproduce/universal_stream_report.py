"""What servers of federated streams lost, in a table and a picture."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from simulations.reproduce.report import COLORS, Row, png
from simulations.reproduce.server_steps import STEPS
from simulations.reproduce.universal_stream import Course

__all__ = ["CAPTION", "draw_figures", "summary", "table"]

Array = npt.NDArray[np.float64]

CAPTION: Final = """\
Sum over rounds of the mean loss (nats) of the round's rows at the round's
model, less that of the best fixed model of all, and of the best within the
default radius of the first model. Tuned: the best step size in hindsight, on
a grid of factors of 2; of the ensemble nothing is tuned."""


def summary(courses: Sequence[Course], best: Array, best_in_ball: Array) -> list[Row]:
    """Returns a row for each course.

    Args:
        courses: What was played.
        best: Losses of the best fixed model, by rounds.
        best_in_ball: Of the best within the default radius.

    Returns:
        ``server``, ``size`` (step size or radius), ``way`` (as ``Course`` has it), ``mean-loss``,
        ``regret``, ``regret-in-ball``, ``tried`` (sums of losses by size, None where it diverged).
    """
    return [
        {
            "server": course.name,
            "size": course.size,
            "way": course.way,
            "rounds": len(course.losses),
            "mean-loss": float(course.losses.mean()),
            "regret": float((course.losses - best).sum()),
            "regret-in-ball": float((course.losses - best_in_ball).sum()),
            "tried": {
                f"{size:g}": loss if np.isfinite(loss) else None
                for size, loss in course.tried.items()
            },
        }
        for course in courses
    ]


def _label(name: str, size: float, way: str) -> str:
    kind = "radius" if name == "universal" else "step"
    return f"{STEPS[name].title}, {kind} {size:g} ({way})"


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the rows as a table; ``CAPTION`` says what they are."""
    found = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    found.add_column("server", no_wrap=True)
    for column in ("mean loss", "regret", "in the ball"):
        found.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        cells = (f"{row['mean-loss']:.4f}", f"{row['regret']:.1f}", f"{row['regret-in-ball']:.1f}")
        found.add_row(_label(row["server"], row["size"], row["way"]), *cells)
    return found


def draw_figures(courses: Sequence[Course], best: Array) -> dict[str, bytes]:
    """Draws regret against rounds; returns it as PNG, by its file's name."""
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    colors = dict(zip(STEPS, COLORS, strict=False))
    styles = {"default": "-", "tuned": "--", "x 0.25": ":", "x 4": "-."}
    for course in courses:
        axes.plot(
            np.arange(1, len(best) + 1),
            np.cumsum(course.losses - best),
            styles[course.way],
            color=colors[course.name],
            label=_label(course.name, course.size, course.way),
        )
    axes.set(xlabel="round", ylabel="regret (nats), against the best fixed model of all")
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    return {"regret.png": png(figure)}
