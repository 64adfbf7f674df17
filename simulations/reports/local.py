"""What runs found, side by side: one row a method, over its seeds."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from federation.files import replace_file
from federation.methods.local import LocalMethod
from server.record import RunRecord
from simulations import plots
from simulations.comparison import PLAN, Runs, find_runs
from simulations.console import err, out
from simulations.reports.base import reports

__all__ = ["report_rows", "report_table", "show"]


def report_rows(runs: Runs) -> list[dict[str, Any]]:
    """Returns the figures of each method, from the last evaluation of each of its runs.

    Each is a mean over runs; ``accuracy-std`` is the standard deviation over clients, and
    ``accuracy-seed-std`` that of the mean accuracy over runs (None for one run). ``rounds`` are
    those of the run that has the fewest, ``left-out`` counts the times that a client was asked
    to train and gave no usable reply, ``epsilon`` (at ``delta``) is the most that a private run
    spent on a client, and ``finished`` says whether all rounds are done.
    """
    return [_row(method, records) for method, records in runs.items()]


def _row(method: str, records: Sequence[RunRecord]) -> dict[str, Any]:
    curves = [record.rows() for record in records]
    # A finished run may have been scored once more than its metrics tell, when it was resumed
    # because its last evaluation had failed.
    last = [
        {**row, "round": row["rounds"]}
        if (row := record.results) is not None
        else [row for row in rows if "accuracy" in row][-1]
        for record, rows in zip(records, curves, strict=True)
    ]

    def over_runs(key: str) -> float | None:
        values = [row[key] for row in last if row[key] is not None]
        return float(np.mean(values)) if values else None

    keys = ("accuracy", "accuracy-std", "accuracy-p10", "accuracy-before", "accuracy-own")
    trained = [row for rows in curves for row in rows if "ms" in row]
    return {
        "method": method,
        "runs": len(records),
        "rounds": min(row["round"] for row in last),
        "finished": all(record.results is not None for record in records),
        **{key: over_runs(key) for key in keys},
        "accuracy-seed-std": _deviation([row["accuracy"] for row in last]),
        "own-clients": min(row["own-clients"] for row in last),
        "scored": min(row["scored"] for row in last),
        "ms-per-round": float(np.median([row["ms"] for row in trained])) if trained else None,
        "left-out": sum(row["left-out"] for row in trained),
        "epsilon": max((row["epsilon"] for row in trained if "epsilon" in row), default=None),
        "delta": max((row["delta"] for row in trained if "delta" in row), default=None),
    }


def _deviation(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


_TITLE = (
    "Accuracy in %: mean ± sd and 10th percentile over all clients, personalized;\n"
    "before personalizing; of the models that clients keep; milliseconds a round"
)


def report_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the figures as a table; accuracies in percent."""
    table = Table(title=_TITLE, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("method", no_wrap=True)
    headings = ("rounds", "personal ± sd", "p10", "before", "own", "± seeds", "ms")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["method"],
            f"{row['rounds']}{'' if row['finished'] else '...'}",
            f"{_percent(row['accuracy'])} ± {_percent(row['accuracy-std'])}",
            _percent(row["accuracy-p10"]),
            _percent(row["accuracy-before"]),
            _percent(row["accuracy-own"]),
            _percent(row["accuracy-seed-std"]),
            "-" if row["ms-per-round"] is None else f"{row['ms-per-round']:.1f}",
        )
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


@reports(LocalMethod.plug_in)
def show(folder: Path, as_json: bool) -> None:
    """Draws the plots of a run, or a comparison, and prints its table and where everything is."""
    runs = find_runs(folder)
    rows = report_rows(runs)
    if rows:
        plots.plot_accuracy(runs, folder / "accuracy.png")
        if any(record.results for records in runs.values() for record in records):
            plots.plot_clients(runs, folder / "clients.png")
        if (folder / PLAN).is_file():
            replace_file(folder / "results.json", json.dumps(rows, indent=2).encode())
        out.print(report_table(rows))
    for records in runs.values():
        for record in records:
            if record.results is None:
                done, total = record.rows()[-1]["round"], record.config["settings"]["num-rounds"]
                err.print(f"{record.folder}: not finished, {done} of {total} rounds")
    for row in rows:
        total = runs[row["method"]][0].config["settings"]["num-clients"]
        if row["scored"] < total:
            err.print(f"{row['method']}: only {row['scored']} of {total} clients were scored")
        if 0 < row["own-clients"] < total:
            kept = f"{row['own-clients']} of {total} clients keep a model so far"
            err.print(f"{row['method']}: {kept}; `own` is theirs")
        if row["left-out"]:
            err.print(f"{row['method']}: {row['left-out']} times a client was left out")
        if row["epsilon"] is not None:
            most = f"epsilon {row['epsilon']:.4g} at delta {row['delta']:g}"
            err.print(f"{row['method']}: privacy spent, on the client asked most often: {most}")
    files = [name for name in _SHOWN if (folder / name).is_file()]
    out.print(f"recorded in {folder}: {', '.join(files)}", soft_wrap=True)
    if as_json:
        print(json.dumps({"run": str(folder), "methods": rows}))


_SHOWN = ("accuracy.png", "clients.png", "results.json", "metrics.jsonl")
