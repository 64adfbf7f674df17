"""Report of methods that train a network, side by side: a row per method, over its seeds."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from engram.metrics import Metric
from federation.files import replace_file
from federation.methods.local import COMMON, KEPT, LocalMethod
from server.record import RunRecord
from simulations import plots
from simulations.comparison import PLAN, Runs, find_runs
from simulations.console import err, out
from simulations.reports.base import reports

__all__ = ["report_rows", "report_table", "show"]


def report_rows(runs: Runs) -> list[dict[str, Any]]:
    """Returns a row for each method, from the last evaluation of each of its runs.

    The entries of ``strategies.evaluation.summary`` are means over runs. So ``accuracy-std`` is the
    standard deviation over clients, and ``accuracy-seed-std`` that of the mean accuracy over runs
    (None for one run). ``rounds`` are those of the run with the fewest, ``left-out`` counts how
    often a client was asked to train and gave no usable reply, ``epsilon`` (at ``delta``) is the
    most that a private run spent on a client, and ``finished`` says whether all rounds are done.
    """
    return [_row(method, records) for method, records in runs.items()]


def _row(method: str, records: Sequence[RunRecord]) -> dict[str, Any]:
    curves, metrics = [record.rows() for record in records], records[0].metrics
    # The results of a run that was resumed because its last evaluation had failed have scores that
    # its metrics lack.
    last = [
        {**row, "round": row["rounds"]}
        if (row := record.results) is not None
        else [row for row in rows if metrics[0].name in row][-1]
        for record, rows in zip(records, curves, strict=True)
    ]

    def over_runs(key: str) -> list[float]:
        return [row[key] for row in last if row[key] is not None]

    figures: dict[str, float | None] = {}
    for metric in metrics:
        name = metric.name
        for key in (name, f"{name}-std", _tail(metric), name + COMMON, name + KEPT):
            figures[key] = float(np.mean(values)) if (values := over_runs(key)) else None
        figures[f"{name}-seed-std"] = _deviation(over_runs(name))
    trained = [row for rows in curves for row in rows if "ms" in row]
    return {
        "method": method,
        "runs": len(records),
        "rounds": min(row["round"] for row in last),
        "finished": all(record.results is not None for record in records),
        **figures,
        "own-clients": min(row["own-clients"] for row in last),
        "scored": min(row["scored"] for row in last),
        "ms-per-round": float(np.median([row["ms"] for row in trained])) if trained else None,
        "left-out": sum(row["left-out"] for row in trained),
        "epsilon": max((row["epsilon"] for row in trained if "epsilon" in row), default=None),
        "delta": max((row["delta"] for row in trained if "delta" in row), default=None),
    }


def _tail(metric: Metric) -> str:
    """Returns the key of the percentile of clients that are worse off."""
    return f"{metric.name}-p{10 if metric.better == 'higher' else 90}"


def _deviation(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def report_table(rows: Sequence[Mapping[str, Any]], metric: Metric) -> Table:
    """Returns a table of a metric."""
    name, tail = metric.name, _tail(metric)
    percent, th = " in %" if metric.percent else "", tail.removeprefix(f"{name}-p")
    title = (
        f"{name.capitalize()}{percent}: mean ± sd and {th}th percentile over all clients, "
        "personalized;\nbefore personalizing; of the models that clients keep; milliseconds a round"
    )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("method", no_wrap=True)
    for heading in ("rounds", "personal ± sd", f"p{th}", "before", "own", "± seeds", "ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["method"],
            f"{row['rounds']}{'' if row['finished'] else '...'}",
            f"{metric.in_words(row[name])} ± {metric.in_words(row[f'{name}-std'])}",
            *(metric.in_words(row[k]) for k in (tail, name + COMMON, name + KEPT)),
            metric.in_words(row[f"{name}-seed-std"]),
            "-" if row["ms-per-round"] is None else f"{row['ms-per-round']:.1f}",
        )
    return table


@reports(LocalMethod.plug_in)
def show(folder: Path, as_json: bool) -> None:
    """Draws the plots of a run or a comparison, and prints its tables and its files."""
    runs = find_runs(folder)
    rows = report_rows(runs)
    if rows:
        *chosen, _ = next(iter(runs.values()))[0].metrics  # the last is the loss
        for metric in chosen:
            plots.draw_metric(runs, metric).savefig(folder / f"{metric.name}.png", dpi=150)
        if any(record.results for records in runs.values() for record in records):
            plots.plot_clients(runs, chosen[0], folder / "clients.png")
        if (folder / PLAN).is_file():
            replace_file(folder / "results.json", json.dumps(rows, indent=2).encode())
        for metric in chosen:
            out.print(report_table(rows, metric))
    _warn(runs, rows)
    pictures = sorted(path.name for path in folder.glob("*.png"))
    files = [n for n in (*pictures, "results.json", "metrics.jsonl") if (folder / n).is_file()]
    out.print(f"recorded in {folder}: {', '.join(files)}", soft_wrap=True)
    if as_json:
        print(json.dumps({"run": str(folder), "methods": rows}))


def _warn(runs: Runs, rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints what tables do not show: what is missing, and the privacy spent."""
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
