"""Report of methods that train a network, side by side: a row per method, over its seeds."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.table import Table

from engram.metrics import Metric
from federation.errors import few, one_line
from federation.files import replace_file
from federation.methods.network import COMMON, UNSEEN, NetworkMethod
from simulations import plots
from simulations.comparison import PLAN, TUNING, Runs, find_runs
from simulations.console import err, out
from simulations.differences import in_words
from simulations.gains import draw_gains
from simulations.options import as_allowed
from simulations.references import read_references
from simulations.reports.base import reports
from simulations.rows import (
    SELECTED,
    comparable,
    differences_from,
    ends,
    others,
    report_rows,
    tail,
)
from strategies.evaluation import center_key

__all__ = ["report_table", "show"]

_FIRST: Final = "gains.png"  # which says whether personalizing is worth it


def report_table(
    rows: Sequence[Mapping[str, Any]],
    metric: Metric,
    beside: Mapping[str, tuple[float, ...]],
) -> Table:
    """Returns a table of a metric.

    Args:
        rows: As ``report_rows`` returns them.
        metric: Which.
        beside: What ``others`` returns.
    """
    name, percent = metric.name, " in %" if metric.percent else ""
    further = list(ends(metric).items())[2:]
    unseen = any(UNSEEN + name in row for row in rows)
    picked = any(row[SELECTED + name] is not None for row in rows)
    median, those = ("median, ", " (of these, medians)") if len(further) > 2 else ("", "")
    common = center_key(name + COMMON, metric)
    also = [" after the round that validation picks;" * picked, " of unseen clients;" * unseen]
    title = (
        f"{name.capitalize()}{percent} on test rows: mean ± sd, {median}{tail(metric)[2:]}th "
        f"percentile and worst of the clients;{''.join(also)} of the common model; sd of "
        f"seeds{those}; KiB that a client receives and sends in a round; milliseconds a round, and "
        "each client's"
    )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("method", no_wrap=True)
    headings = ["mean ± sd", *(heading for heading, _ in further)]
    headings += ["picked"] * picked + ["unseen"] * unseen + ["common", "seeds", "KiB", "ms", "each"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        keys = [name + end for _, end in further]
        keys += [SELECTED + name] * picked + [center_key(UNSEEN + name, metric)] * unseen
        table.add_row(
            row["method"] if row["finished"] else f"{row['method']}...",
            f"{metric.in_words(row[name], 1)} ± {metric.in_words(row[f'{name}-std'], 1)}",
            *(metric.in_words(row.get(key), 1) for key in (*keys, common)),
            metric.in_words(row[f"{name}-seed-std"], 1),
            "-" if row["client-bytes"] is None else f"{row['client-bytes'] / 1024:.0f}",
            *("-" if row[k] is None else f"{row[k]:.1f}" for k in ("ms-per-round", "client-ms")),
        )
    for reference, figures in beside.items():
        mean, spread, *others = (metric.in_words(value, 1) for value in figures)
        blank = ["-"] * (len(headings) - 1 - len(others))
        table.add_row(reference, f"{mean} ± {spread}", *others, *blank)
    return table


@reports(NetworkMethod.plug_in)
def show(folder: Path, as_json: bool) -> None:
    """Draws the plots of a run or a comparison, and prints its tables and its files."""
    runs = find_runs(folder)
    rows = report_rows(runs)
    if rows:
        *chosen, _ = next(iter(runs.values()))[0].metrics  # the last is the loss
        with as_allowed(folder):
            _write(folder, runs, rows, chosen)
        for metric in chosen:
            known = read_references(folder, next(iter(runs.values())), metric.name)
            out.print(report_table(rows, metric, others(runs, metric, known)))
            if found := differences_from(runs, rows, metric, known):
                out.print("\n".join(in_words(*found, metric)), soft_wrap=True, highlight=False)
    _warn(runs, rows)
    pictures = sorted(p.name for p in folder.glob("*.png") if p.name != _FIRST)
    possible = (_FIRST, *pictures, "results.json", "metrics.jsonl", PLAN, f"{TUNING}/")
    files = [name for name in possible if (folder / name).exists()]
    out.print(f"recorded in {folder}: {', '.join(files)}", soft_wrap=True)
    if as_json:
        print(json.dumps({"run": str(folder), "methods": rows}))


def _write(
    folder: Path, runs: Runs, rows: Sequence[Mapping[str, Any]], metrics: Sequence[Metric]
) -> None:
    """Writes the plots, and what a comparison has found."""
    for metric in metrics:
        plots.save(plots.draw_metric(runs, metric), folder / f"{metric.name}.png")
    if any(record.results for records in runs.values() for record in records):
        plots.plot_clients(runs, metrics[0], folder / "clients.png")
    if figure := draw_gains(comparable(runs), metrics[0]):
        plots.save(figure, folder / _FIRST)
    if (folder / PLAN).is_file():
        replace_file(folder / "results.json", json.dumps(rows, indent=2).encode())


def _warn(runs: Runs, rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints what tables do not show: what is missing, and the privacy spent."""
    for record in (record for records in runs.values() for record in records):
        if record.results is None:
            done, total = record.rows()[-1]["round"], record.config["settings"]["num-rounds"]
            err.print(f"{record.folder}: not finished, {done} of {total} rounds", soft_wrap=True)
    for line in dict.fromkeys(_of_clients(runs, rows)):
        err.print(one_line(line), soft_wrap=True)
    for row in rows:
        if row["method"] not in runs:
            continue  # another row is of the same runs
        total = runs[row["method"]][0].config["settings"]["num-clients"]
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


def _of_clients(runs: Runs, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
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
        settings = next(iter(runs.values()))[0].config["settings"]
        seen = settings["num-clients"] - settings["unseen-clients"]
        if row["trained"] < seen:
            trained = f"{row['trained']} of {seen} clients have trained so far"
            yield f"{trained}; the others are served as those that never train"
