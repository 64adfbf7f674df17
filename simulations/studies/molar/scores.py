"""Comparison of methods on a table's held-out rows: summary, table and plot (J.2)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table as Printed

from engram.molar.families import FamilyName
from simulations.pool import Row
from simulations.studies.figures import COLORS, new_table, plus_minus, png
from simulations.studies.molar.comparison import GRID, Score, Shares
from simulations.studies.summaries import mean_and_error

_LOSSES: Final = {"linear": "squared error", "logistic": "deviance", "poisson": "deviance"}
_OTHERS: Final = """
OLS: each task alone; LASSO: likewise; Pool: one OLS for all tasks; RM: each task's
LASSO around the trimmed mean of all."""
_DISTANCE: Final = """ A.R.E.: l1 distance of coefficients to OLS on
the held-out rows, of OLS's (Table 2 of the paper)."""


def caption(rows: Sequence[Row], family: FamilyName, shares: Shares) -> str:
    """Explains the numbers of the table."""
    grid, splits = ", ".join(f"{c:g}" for c in GRID), len(rows[0]["splits"])
    text = f"""\
Held-out {_LOSSES[family]}, mean over tasks, in {splits} random splits of each task's rows:
{shares.train:.0%} to learn from, {shares.validation:.0%} to choose constants by (of {grid}; how
often in brackets), the rest to be predicted. Mean ± standard error over splits, which
share rows: it is not that of another table."""
    if family != "linear":
        return f"{text}\nalone: each task by itself."
    return text + _OTHERS + (_DISTANCE if rows[0]["are"] is not None else "")


def comparison(splits: Sequence[Mapping[str, Score]]) -> list[Row]:
    """Returns a row for each method, over splits.

    It has ``loss``, its mean; ``of-first`` and ``of-first-error``, mean and standard error of the
    loss as a ratio to the first method's, which learns each task alone; the same of the distance
    (``are``, the averaged relative error of J.2); and ``constants``, how often each was chosen.
    Entries that need several splits, or a first method with some loss, are None without them.
    """
    first = next(iter(splits[0]))
    rows: list[Row] = []
    for name in splits[0]:
        own, base = [split[name] for split in splits], [split[first] for split in splits]
        loss, loss_error = _ratios([s.loss for s in own], [s.loss for s in base])
        are, are_error = _ratios([s.distance for s in own], [s.distance for s in base])
        rows.append(
            {
                "method": name,
                "loss": float(np.mean([score.loss for score in own])),
                "of-first": loss,
                "of-first-error": loss_error,
                "are": are,
                "are-error": are_error,
                "constants": {f"{c:g}": n for c, n in sorted(Counter(s.c for s in own).items())},
                "splits": [score._asdict() for score in own],
            }
        )
    return rows


def _ratios(own: Sequence[float], base: Sequence[float]) -> tuple[float | None, float | None]:
    """Returns mean and standard error of the ratios."""
    if not np.all(base):
        return None, None
    ratio, error = mean_and_error(np.array(own) / np.array(base))
    return float(ratio), None if error is None else float(error)


def comparison_table(rows: Sequence[Row]) -> Printed:
    """Returns the methods as a table."""
    first, distances = rows[0]["method"], rows[0]["are"] is not None
    right = ["loss", f"of {first}'s", *["A.R.E."] * distances]
    printed = new_table(["method"], right, padding=(0, 1, 0, 0))
    printed.add_column("constants", no_wrap=True)
    for row in rows:
        cells = [f"{row['loss']:.4g}", plus_minus(row["of-first"], row["of-first-error"], 3)]
        if distances:
            cells.append(plus_minus(row["are"], row["are-error"], 3))
        chosen = ", ".join(f"{c} ({n})" for c, n in row["constants"].items() if c != "0")
        printed.add_row(row["method"], *cells, chosen)
    return printed


def in_words(rows: Sequence[Row]) -> str:
    """Names the method that predicts held-out rows best, and those that do about as well.

    Those are within two standard errors of it, by the differences of their losses in each split.
    """
    best = min(rows, key=lambda row: row["loss"])
    text = f"{best['method']} has the lowest mean loss"
    count = len(best["splits"])
    if count == 1:
        return f"{text}, in a single split."
    near = []
    for row in rows:
        pairs = zip(row["splits"], best["splits"], strict=True)
        gaps = np.array([own["loss"] - least["loss"] for own, least in pairs])
        if row is not best and gaps.mean() <= 2 * gaps.std(ddof=1) / np.sqrt(count):
            near.append(row["method"])
    if not near:
        return f"{text}, by more than two standard errors of the difference."
    return f"{text}; within two standard errors of the difference: {', '.join(near)}."


def draw_comparison(rows: Sequence[Row]) -> bytes:
    """Plots losses, and distances if there are any, relative to the first method's, as PNG."""
    panels = {"loss": "held-out loss"}
    if rows[0]["are"] is not None:
        panels["distance"] = "distance to OLS on held-out rows (A.R.E.)"
    figure = Figure(figsize=(1.5 + 4.5 * len(panels), 1.7 + 0.32 * len(rows)), layout="constrained")
    for axes, (key, title) in zip(
        figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels.items(), strict=True
    ):
        _draw_ratios(axes, rows, key)
        axes.set(xlabel=f"{title} / {rows[0]['method']}'s", title="dots: splits; bars: their mean")
        axes.title.set_fontsize(9)
    return png(figure)


def _draw_ratios(axes: Axes, rows: Sequence[Row], key: str) -> None:
    base = np.array([split[key] for split in rows[0]["splits"]])
    axes.axvline(1, color="gray", lw=1)
    for place, row in enumerate(rows):
        each = np.array([split[key] for split in row["splits"]]) / base
        axes.plot(each, np.full(len(each), place), "o", color=COLORS[0], ms=4, alpha=0.25, mew=0)
        axes.plot(each.mean(), place, "|", color="black", ms=14, mew=2)
    axes.set_yticks(range(len(rows)), [row["method"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(alpha=0.3, axis="x")
