"""Comparison of methods on a table's held-out rows: summary and table (J.2)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from rich.table import Table as Printed

from engram.cli.console import new_table, plus_minus
from engram.scoring.intervals import crossed, mean_and_error, mean_known
from engram.simulations.job_pool import Row
from engram.tables.families import FamilyName
from engram.tables.studies.comparison import Shares, SplitScore
from engram.tables.studies.contenders import GRID

_QUALITIES: Final = ("auc", "brier", "calibration")
_LOSSES: Final = {"linear": "squared error", "logistic": "deviance", "poisson": "deviance"}
_PAPERS: Final = """
OLS: each task alone; LASSO: likewise; Pool: one OLS for all tasks; RM: each task's
LASSO around the trimmed mean of all."""
_METHODS: Final = """
constant: each task's mean or base rate; pooled: one model; fixed effects: one model, with
an intercept for each task; alone: each task by itself; ridge, LASSO: likewise, their
strength by cross-validation; mixed: random intercepts and slopes; RM: each task's LASSO
around the trimmed mean of all; alike: columns are pooled; tested: those with p > 0.05 are.
Constants of RM and adaptive MOLAR are chosen by cross-validation in both first parts."""
_LISTED: Final = 2  # most constants that are listed
_DISTANCE: Final = """ A.R.E.: l1 distance of coefficients to OLS on
the held-out rows, of OLS's (Table 2 of the paper)."""
_CLASSES: Final = """
AUC: area under the ROC curve; Brier: squared error of probabilities; calibration: distance
of predicted from observed shares."""


def caption(rows: Sequence[Row], family: FamilyName, shares: Shares, *, paper: bool) -> str:
    """Explains the numbers of the table."""
    splits = len(rows[0]["splits"])
    constants = f"of {', '.join(f'{c:g}' for c in GRID)}; " if paper else ""
    text = f"""\
Held-out {_LOSSES[family]}, mean over tasks, in {splits} random splits of each task's rows:
{shares.train:.0%} to learn from, {shares.validation:.0%} to choose constants by ({constants}how
often in brackets), the rest to be predicted. ratio: to the first method's loss; more: than
the best method's, with its interval of level 0.95 over splits and tasks."""
    if family == "linear":
        text += _PAPERS if paper else _METHODS
        return text + (_DISTANCE if paper and rows[0]["are"] is not None else "")
    text += "\nalone: each task by itself." if paper else _METHODS
    return text + (_CLASSES if family == "logistic" else "")


def comparison(splits: Sequence[Mapping[str, SplitScore]], shares: Shares) -> list[Row]:
    """Returns a row for each method, over splits.

    It has ``loss``, its mean; ``of-first`` and ``of-first-error``, mean and standard error of the
    loss as a ratio to the first method's; the same of the distance (``are``, the averaged relative
    error of J.2); ``gap``, ``gap-low`` and ``gap-high``, by how much the loss is above that of the
    best method, with its interval; and ``constants``, how often each was chosen, with ``edges``,
    how often at an end of the grid. Entries that need several splits, or a first method with some
    loss, are None without them. A method that could not be fitted in some split has a ``reason``,
    and no loss.
    """
    first = next(iter(splits[0]))
    base = [split[first] for split in splits]
    rows: list[Row] = []
    for name in splits[0]:
        own = [split[name] for split in splits]
        loss, loss_error = _ratios([s.loss for s in own], [s.loss for s in base])
        are, are_error = _ratios([s.distance for s in own], [s.distance for s in base])
        constants = Counter(f"{s.c:g}{s.variant}".removeprefix("0 ") for s in own)
        row: Row = {
            "method": name,
            "loss": float(np.mean([score.loss for score in own])),
            "of-first": loss,
            "of-first-error": loss_error,
            "are": are,
            "are-error": are_error,
            "constants": dict(sorted(constants.items())),
            "edges": sum(score.edge for score in own),
            "reason": next((score.reason for score in own if score.reason), None),
            "failed": sum(score.reason is not None for score in own),
            "splits": [score._asdict() for score in own],
        }
        rows.append(row | {key: mean_known(getattr(s, key) for s in own) for key in _QUALITIES})
    _add_gaps(rows, (1 - sum(shares)) / sum(shares))
    return rows


def _add_gaps(rows: Sequence[Row], ratio: float) -> None:
    fitted = [row for row in rows if row["reason"] is None]
    losses = {row["method"]: np.array([s["tasks"] for s in row["splits"]]) for row in fitted}
    best = min(fitted, key=lambda row: row["loss"])["method"] if fitted else None
    for row in rows:
        own = losses.get(row["method"])
        gap = (None,) * 3 if own is None else crossed(own - losses[str(best)], ratio)
        row.update(zip(("gap", "gap-low", "gap-high"), gap, strict=True))


def _ratios(own: Sequence[float], base: Sequence[float]) -> tuple[float | None, float | None]:
    if not np.all(base) or not np.isfinite([*own, *base]).all():
        return None, None
    ratio, error = mean_and_error(np.array(own) / np.array(base))
    return float(ratio), None if error is None else float(error)


def comparison_table(rows: Sequence[Row], *, paper: bool) -> Printed:
    """Returns the methods as a table."""
    distances = paper and rows[0]["are"] is not None
    right = ["loss", "ratio", "more [interval]", *["A.R.E."] * distances]
    printed = new_table(["method"], right, padding=(0, 1, 0, 0))
    printed.add_column("constants", no_wrap=True)
    for row in rows:
        if row["reason"] is not None:
            printed.add_row(row["method"], *["-"] * len(right), "not fitted: see below")
            continue
        cells = [f"{row['loss']:.4g}", plus_minus(row["of-first"], None, 3), _gap(row)]
        if distances:
            cells.append(plus_minus(row["are"], None, 3))
        printed.add_row(row["method"], *cells, _constants(row))
    return printed


def _constants(row: Row) -> str:
    chosen = sorted(row["constants"].items(), key=lambda item: -item[1])
    words = [f"{c} ({n})" for c, n in chosen[:_LISTED] if c != "0"]
    words += ["..."] * (len(chosen) > _LISTED)
    words += [f"{row['edges']} at the grid's end"] * bool(row["edges"])
    return ", ".join(words)


def qualities_table(rows: Sequence[Row]) -> list[Printed]:
    """Tabulates AUC, Brier score and calibration of classes; none for other families."""
    some = [row for row in rows if row["brier"] is not None and row["reason"] is None]
    if not some:
        return []
    printed = new_table(["method"], ["AUC", "Brier", "calibration"], padding=(0, 1, 0, 0))
    for row in some:
        printed.add_row(row["method"], *(plus_minus(row[key], None, 4) for key in _QUALITIES))
    return [printed]


def failures(rows: Sequence[Row]) -> list[str]:
    """Returns why some methods could not be fitted, in words."""
    return [
        f"{row['method']} was not fitted in {row['failed']} of {len(row['splits'])} splits: "
        f"{row['reason']}"
        for row in rows
        if row["reason"] is not None
    ]


def _gap(row: Row) -> str:
    if row["gap"] == 0 == row["gap-high"]:
        return "best"
    if not np.isfinite(row["gap-low"]):
        return f"{row['gap']:.2g}"
    return f"{row['gap']:.2g} [{row['gap-low']:.2g}, {row['gap-high']:.2g}]"
