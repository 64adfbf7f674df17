"""Predictions of test rows by class: recalls, confusions, and calibration."""

import json
from collections.abc import Mapping
from itertools import starmap
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.table import Table

from engram.cli.console import as_allowed, new_table, out, tell_files
from engram.compare.comparison_folder import find_runs
from engram.compare.figures import panels
from engram.compare.report_rows import finished, models_of, shown_rounds
from engram.compare.reports.figure_files import Sheet, draw_files
from engram.core.arrays import Array
from engram.core.checks import must
from engram.home.learned import models_of as models_of_family
from engram.home.prediction_intervals import outputs_of
from engram.runs.run import Run
from engram.scoring.metrics import BINS
from engram.scoring.query_rows import query_rows
from engram.scoring.score_columns import TUNED, selected_by
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment

Predicted = tuple[Array, Array]
"""Targets (n,) and probabilities (n, k)."""

_MANY: Final = 20  # classes whose confusions are printed


def show_classes(folder: Path, which: str, sheet: Sheet, as_json: bool) -> None:
    """Predicts test rows; prints recalls and confusions, and draws calibration into the folder.

    Args:
        folder: That of a run or a comparison.
        which: The round of the models: ``picked`` or ``last``.
        sheet: The paper of the figure.
        as_json: Whether to print the confusions as JSON, too.

    Raises:
        Refused: No run is finished, rows have no single class, or rows or models are elsewhere.
    """
    runs = finished(shown_rounds(find_runs(folder), which))
    if not runs:
        raise Refused(f"{folder} has no finished run yet, whose models could predict")
    classes, found = list[str](), dict[str, Predicted]()
    for method, label, suffix in models_of(runs):
        classes, *each = zip(*(predicted(record, suffix) for record in runs[method]), strict=True)
        found[label] = tuple(map(np.concatenate, each))
    confusions = {label: confusion(*each) for label, each in found.items()}
    for table in class_tables(classes[0], confusions):
        out.print(table)
    with as_allowed(folder):
        drawn = draw_files(folder, sheet, lambda _, narrow: reliability(found, narrow=narrow))
    tell_files(folder, drawn)
    if as_json:
        counts = {label: each.tolist() for label, each in confusions.items()}
        print(json.dumps({"run": str(folder), "classes": classes[0], "confusions": counts}))


def predicted(record: Run, suffix: str = "") -> tuple[list[str], Array, Array]:
    """Returns classes, targets (n,) and probabilities (n, k) of all clients that train.

    ``suffix`` is that of the models, as ``TUNED``.
    """
    e, results = Experiment.from_config(record.settings), record.finished
    if e.task != "classification":
        raise Refused(must("task", e.task, "classification, for predictions by class"))
    keys = (selected_by(suffix), selected_by(""))
    pick = next((key for key in keys if record.picks and key in results), "")
    learned: Any = models_of_family(e).learned(record, e, pick, tuned=suffix == TUNED)
    test, unseen, y, p = learned.data.test, results.get("unseen", ()), [], []
    for client in (c for c in results["clients"]["ids"] if c not in unseen):
        rows = torch.from_numpy(query_rows(e, test, client))
        x, targets = test.take(rows, exact=True)
        module = learned.module(learned.personal(client), learned.network_of(client), client)
        outputs = outputs_of(module, x, len(rows)).double().softmax(1)
        p.append(outputs.movedim(1, -1).flatten(0, -2).numpy())
        y.append(targets.flatten().numpy())
    known = np.concatenate(y) >= 0  # others are ignored
    return learned.kind.class_names, np.concatenate(y)[known], np.concatenate(p)[known]


def confusion(y: Array, p: Array) -> Array:
    """Returns the numbers of rows (k, k), by class and by prediction."""
    k = p.shape[1]
    return np.bincount(k * y + p.argmax(1), minlength=k * k).reshape(k, k)


def class_tables(classes: list[str], confusions: Mapping[str, Array]) -> list[Table]:
    """Returns a table of recalls, a row for each model; of a run also the confusions."""
    title = "Recall of each class, in % of its rows of all clients"
    found = [new_table(["method"], classes, title=title)]
    for label, counts in confusions.items():
        pairs = zip(counts.diagonal(), counts.sum(1), strict=True)
        found[0].add_row(label, *(f"{100 * hits / n:.1f}" if n else "-" for hits, n in pairs))
    if len(confusions) > 2 or len(classes) > _MANY:
        return found
    for label, counts in confusions.items():
        found.append(new_table(["class"], classes, title=f"{label}: rows by class and prediction"))
        for name, row in zip(classes, counts.tolist(), strict=True):
            found[-1].add_row(name, *map(str, row))
    return found


def calibration(y: Array, p: Array) -> tuple[Array, Array, Array]:
    """Returns rows, mean confidence and accuracy in those bins of ``ece`` that have rows."""
    confidence, hits = p.max(1), p.argmax(1) == y
    bins = np.ceil(confidence * BINS).astype(int)
    rows, *sums = (np.bincount(bins, each) for each in (None, confidence, hits))
    there = rows > 0
    return rows[there], sums[0][there] / rows[there], sums[1][there] / rows[there]


def reliability(found: Mapping[str, Predicted], *, narrow: bool = False) -> dict[str, Figure]:
    """Draws accuracy against confidence, on all clients' test rows, in a panel for each model."""
    wide = min(len(found), 2 if narrow else 4)
    high = -(-len(found) // wide)
    size = (1 + 2.4 * wide, 1 + 2.4 * high)
    figure, axes = panels(wide, high, size=size, sharex=True, sharey=True)
    for panel, label, (rows, *each) in zip(
        axes, found, starmap(calibration, found.values()), strict=False
    ):
        error = rows @ np.abs(each[1] - each[0]) / rows.sum()
        panel.plot([0, 1], [0, 1], "--", color="black", lw=0.8)
        panel.plot(*each, color="tab:blue", lw=0.8)
        panel.scatter(*each, s=100 * rows / rows.max(), color="tab:blue")
        panel.set_title(f"{label}\nECE {error:.3f}", fontsize="medium")
    for blank in axes[len(found) :]:
        blank.set_axis_off()
    figure.supxlabel("confidence; areas: rows", fontsize="medium")
    figure.supylabel("accuracy", fontsize="medium")
    return {"reliability": figure}
