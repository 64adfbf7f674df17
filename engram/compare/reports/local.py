"""Report of methods that train a network, side by side: a row per method, over its seeds."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from engram.cli.console import as_allowed, err, in_text, out, tell_files
from engram.compare.claims import difference_table, differences_of
from engram.compare.comparison_folder import PLAN, TUNING, Runs, find_runs
from engram.compare.figures import save
from engram.compare.plots import draw_metric
from engram.compare.reports.base import REPORTS, Report
from engram.compare.reports.figure_files import network_figures
from engram.compare.results import Results, metric_called, metrics_of, results_of
from engram.compare.text_tables import TextTable, method_table
from engram.link.console import WHOLE
from engram.runs.run import Run
from engram.settings.errors import few, one_line
from engram.settings.files import replace_file
from engram.settings.network import NetworkMethod

_FIRST: Final = "gains.png"  # which says whether personalizing is worth it


def tables_of(results: Results) -> list[TextTable]:
    """Returns the table of models and baselines and, of a comparison, that of differences."""
    found = [method_table(results.rows, results.metric, results.beside, results.notes)]
    differences = difference_table(results.claims) if results.claims else None
    return [*found, differences] if differences else found


def show_table(table: TextTable) -> None:
    """Prints a table and the lines below it, without costs where the terminal is narrow."""
    fitted, drawn = table.fitted(out.width)
    out.print(drawn)
    out.print("\n".join(fitted.words), soft_wrap=True, highlight=False)


def shown(folder: Path, runs: Runs) -> str:
    """Formats the tables of the main metric as `engram show`, and the answer of several."""
    metric = next(iter(runs.values()))[0].metrics[0]
    (results,) = results_of(folder, runs, [metric])
    found = [results.answer] * (len(runs) > 1)
    for table in tables_of(results):
        found += [in_text(table.fitted(WHOLE)[1]), *table.words]
    return "\n".join(found)


def drawn(runs: Runs, name: str) -> Figure:
    """Draws a metric of runs, by default the first."""
    return draw_metric(runs, metric_called(name, next(iter(runs.values()))[0].metrics))


def show(folder: Path, as_json: bool) -> None:
    """Draws the plots of a run or a comparison, and prints its tables and its files."""
    runs = find_runs(folder)
    found = results_of(folder, runs, metrics_of(runs)) if runs else []
    rows = found[0].rows if found else []
    if found:
        with as_allowed(folder):
            _write(folder, runs, rows)
    for results in found:
        first, *differences = tables_of(results)
        show_table(first)
        if differences or (folder / PLAN).is_file():
            out.print(f"\n{results.answer}", soft_wrap=True, highlight=False)
        for table in differences:
            show_table(table)
    _warn(runs, rows)
    pictures = sorted(p.name for p in folder.glob("*.png") if p.name != _FIRST)
    data = ("results.json", "metrics.jsonl", PLAN, f"{TUNING}/")
    tell_files(folder, [_FIRST, *pictures, *data])
    if as_json:
        print(json.dumps({"run": str(folder), "methods": rows} | _compared(found)))


def _compared(found: Sequence[Results]) -> dict[str, Any]:
    claims = {results.metric.name: results.claims for results in found if results.claims}
    differences = {
        metric: {
            name: {
                key: value if np.isfinite(value) else None
                for key, value in (gain._asdict() | {"shown": gain.shown}).items()
            }
            | {"needed": str(own.needed.get((own.best, name), ""))}
            for name, gain in differences_of(own).items()
        }
        for metric, own in claims.items()
    }
    best = {metric: own.best for metric, own in claims.items()}
    return {"answer": found[0].answer, "best": best, "differences": differences} if claims else {}


def _write(folder: Path, runs: Runs, rows: Sequence[Mapping[str, Any]]) -> None:
    for name, figure in network_figures(folder, runs).items():
        save(figure, folder / f"{name}.png")
    if (folder / PLAN).is_file():
        replace_file(folder / "results.json", json.dumps(rows, indent=2).encode())


def _warn(runs: Runs, rows: Sequence[Mapping[str, Any]]) -> None:
    for record in (record for records in runs.values() for record in records):
        if record.results is None:
            done, total = record.done, record.settings["num-rounds"]
            err.print(f"{record.folder}: not finished, {done} of {total} rounds", soft_wrap=True)
    for line in dict.fromkeys(client_lines(runs, rows)):
        err.print(one_line(line), soft_wrap=True)
    for row in rows:
        if row["method"] not in runs:
            continue  # another row is of the same runs
        total = row["members"]
        told = []
        if row["scored"] < total:
            told.append(f"only {row['scored']} of {total} clients were scored")
        if row["left-out"]:
            told.append(f"{row['left-out']} times a client was left out")
        if row["epsilon"] is not None:
            most = f"epsilon {row['epsilon']:.4g} at delta {row['delta']:g}"
            told.append(f"privacy spent, on the client asked most often: {most}")
        for words in told:
            err.print(f"{row['method']}: {words}", soft_wrap=True)


def client_lines(runs: Runs, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields lines about clients of any of the runs."""
    for record in (record for records in runs.values() for record in records):
        results = record.results or {}
        for metric, clients in results.get("outlying", {}).items():
            far = few(clients, record.names)
            yield f"the mean {metric} is what clients {far} say; its median counts"
        for key, words in (("left-out", "took no part"), ("unscored", "was not scored")):
            for name, why in results.get(key, {}).items():
                yield f"client {name} {words}: {why}"
    for row in rows:
        first = next(iter(runs.values()))[0]
        unseen = first.settings["unseen-clients"]
        scored, seen = row["scored"] - unseen, row["members"] - unseen
        for metric in first.metrics:
            count = row.get(f"{metric.name}-clients")
            if count is not None and count < scored:
                why = ", too few for a mean" if row[metric.name] is None else ""
                have = f"{count} of {scored} clients have the score {metric.name}"
                yield f"{row['method']}: {have}{why}"
        if row["trained"] < seen:
            never = f"{seen - row['trained']} of {seen} clients were never sampled"
            yield f"{never}; they get the global model, which most methods fine-tune for them"


def _curve(record: Run, name: str) -> Figure:
    return drawn({record.method.name: [record]}, name)


def _text(record: Run) -> str:
    runs = {record.method.name: [record]}
    return shown(record.folder, runs) if record.is_evaluated else ""


REPORTS[NetworkMethod.plug_in] = Report(show, curve=_curve, text=_text)
