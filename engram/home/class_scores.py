"""Predictions of test rows by class: recalls, confusions, and calibration."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.table import Table
from sklearn.calibration import calibration_curve
from sklearn.metrics import confusion_matrix

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
from engram.scoring.metrics import BINS, METRICS
from engram.scoring.query_rows import query_rows
from engram.scoring.score_columns import TUNED, selected_by
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment

Predicted = tuple[Array, Array]
"""Targets (n,) and probabilities (n, k)."""


def show_classes(folder: Path, which: str, sheet: Sheet, as_json: bool) -> None:
    """Predicts test rows; prints recalls and confusions, and draws calibration into the folder.

    ``which`` is the round of a run's or a comparison's models: ``picked`` or ``last``.

    Raises:
        Refused: No run is finished, rows have no class, or rows or models are elsewhere.
    """
    runs = finished(shown_rounds(find_runs(folder), which))
    if not runs:
        raise Refused(f"{folder} has no finished run yet, whose models could predict")
    classes, found = list[str](), dict[str, Predicted]()
    for method, label, suffix in models_of(runs):
        each = [predicted(record, suffix) for record in runs[method]]
        classes = each[0][0]
        found[label] = (
            np.concatenate([y for _, y, _ in each]),
            np.concatenate([p for *_, p in each]),
        )
    counts = {
        label: confusion_matrix(y, p.argmax(1), labels=range(p.shape[1])).tolist()
        for label, (y, p) in found.items()
    }
    for table in class_tables(classes, counts):
        out.print(table)
    with as_allowed(folder):
        drawn = draw_files(folder, sheet, lambda _, narrow: reliability(found, narrow=narrow))
    tell_files(folder, drawn)
    if as_json:
        print(json.dumps({"run": str(folder), "classes": classes, "confusions": counts}))


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
    test, unseen, y, p = learned.data.test, results.get("unseen", ()), list[Array](), list[Array]()
    for client in (c for c in results["clients"]["ids"] if c not in unseen):
        rows = torch.from_numpy(np.sort(query_rows(e, test, client)))
        x, targets = test.take(rows, exact=True)
        own = learned.of_client(client)
        module = own.module(own.personal(client), own.network_of(client), client)
        outputs = outputs_of(module, x, len(rows)).double().softmax(1)
        p.append(outputs.movedim(1, -1).flatten(0, -2).numpy())
        y.append(targets.flatten().numpy())
    known = np.concatenate(y) >= 0  # others are ignored
    return learned.kind.class_names, np.concatenate(y)[known], np.concatenate(p)[known]


def class_tables(classes: Sequence[str], counts: Mapping[str, list[list[int]]]) -> list[Table]:
    """Returns a table of recalls, a row for each model; of one or two also confusions."""
    title = "Recall of each class, in % of its rows of all clients"
    found = [new_table(["method"], classes, title=title)]
    for label, matrix in counts.items():
        shares = ((row[k], sum(row)) for k, row in enumerate(matrix))
        found[0].add_row(label, *(f"{100 * hits / n:.1f}" if n else "-" for hits, n in shares))
    for label, matrix in counts.items() if len(counts) <= 2 else ():
        found.append(new_table(["class"], classes, title=f"{label}: rows by class and prediction"))
        for name, row in zip(classes, matrix, strict=True):
            found[-1].add_row(name, *map(str, row))
    return found


def reliability(found: Mapping[str, Predicted], *, narrow: bool = False) -> dict[str, Figure]:
    """Draws accuracy against confidence, on all clients' test rows, in a panel for each model."""
    wide = min(len(found), 2 if narrow else 4)
    high = -(-len(found) // wide)
    size = (1 + 2.4 * wide, 1 + 2.4 * high)
    figure, axes = panels(wide, high, size=size, sharex=True, sharey=True)
    for panel, (label, (y, p)) in zip(axes, found.items(), strict=False):
        hits, confidence = p.argmax(1) == y, p.max(1)
        accuracy, mean = calibration_curve(hits, confidence, pos_label=1, n_bins=BINS)
        error = METRICS["ece"].score(torch.from_numpy(p).log(), torch.from_numpy(y))
        panel.plot([0, 1], [0, 1], "--", color="black", lw=0.8)
        panel.plot(mean, accuracy, "o-", ms=3)
        panel.set_title(f"{label}\nECE {error:.3f}", fontsize="medium")
    for blank in axes[len(found) :]:
        blank.set_axis_off()
    figure.supxlabel("confidence", fontsize="medium")
    figure.supylabel("accuracy", fontsize="medium")
    return {"reliability": figure}
