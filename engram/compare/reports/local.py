"""Report of methods that train a network, side by side: a row per method, over its seeds."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.table import Table

from engram.cli.console import err, out, tell_files
from engram.cli.options import as_allowed
from engram.compare.comparison_folder import PLAN, TUNING, Runs, find_runs
from engram.compare.plots import save
from engram.compare.report_rows import WORSE, ends, tail, told_round
from engram.compare.reports.base import reports
from engram.compare.reports.figure_files import network_figures
from engram.compare.results import metrics_of, results_of
from engram.compare.share_worse import LEAST_SEEDS
from engram.scoring.evaluation import center_key
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import COMMON, UNSEEN
from engram.settings.errors import few, one_line
from engram.settings.files import replace_file
from engram.settings.network import NetworkMethod

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
    harm = any(row.get(name + WORSE) is not None for row in rows)
    noisy = any(row.get(f"{name}-noise") is not None for row in rows)
    median, those = ("median, ", " (the median)") if len(further) > 2 else ("", "")
    common = center_key(name + COMMON, metric)
    worse = (
        " share of clients that are served worse than by their own training"
        f"{without_interval(rows, name)};" * harm
    )
    title = (
        f"{name.capitalize()}{percent} on test rows {told_round(rows[0])}, means over clients"
        f"{' that train' * unseen}:{worse} {'sd of the noise in a mean, ' * noisy}"
        f"mean ± sd, {median}{tail(metric)[2:]}th "
        f"percentile and worst of the clients;{' of unseen clients;' * unseen} of the common model"
        f"{those}; sd of the mean over seeds; KiB that a "
        "client receives and sends in a round; milliseconds a round, and each client's"
    )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    longest = max(len(row["method"]) + 3 * (not row["finished"]) for row in rows)
    table.add_column("method", no_wrap=True, min_width=longest)
    headings = ["worse"] * harm + ["noise"] * noisy
    headings += ["mean ± sd", *(end for end, _ in further)]
    headings += ["unseen"] * unseen + ["common", "seeds", "KiB", "ms", "each"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        keys = [name + end for _, end in further] + [center_key(UNSEEN + name, metric)] * unseen
        table.add_row(
            row["method"] if row["finished"] else f"{row['method']}...",
            *[share_in_words(row, name)] * harm,
            *[metric.in_words(row.get(f"{name}-noise"), 1)] * noisy,
            _spread(*(metric.in_words(row[key], 1) for key in (name, f"{name}-std"))),
            *(metric.in_words(row.get(key), 1) for key in (*keys, common)),
            metric.in_words(row[f"{name}-seed-std"], 1),
            "-" if row["client-bytes"] is None else f"{row['client-bytes'] / 1024:.0f}",
            *("-" if row[k] is None else f"{row[k]:.1f}" for k in ("ms-per-round", "client-ms")),
        )
    for reference, figures in beside.items():
        mean, spread, *others, seeds = (metric.in_words(value, 1) for value in figures)
        before = ["-"] * (harm + noisy)
        cells = [*before, _spread(mean, spread), *others, *["-"] * (unseen + 1), seeds]
        table.add_row(reference, *cells, *["-"] * (len(headings) - len(cells)))
    return table


def _spread(mean: str, spread: str) -> str:
    return mean if "-" in (mean, spread) else f"{mean} ± {spread}"


def share_in_words(row: Mapping[str, Any], name: str) -> str:
    """Returns the share of clients that a row serves worse than their own training, in percent."""
    key = name + WORSE
    if row.get(key) is None:
        return "-"
    ends = ("",) if row[f"{key}-low"] is None else ("", "-low", "-high")
    share, *interval = (f"{100 * row[key + end]:.0f}" for end in ends)
    return f"{share} ({'-'.join(interval)})" if interval else share


def without_interval(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Returns why the share of clients that are served worse has no interval; "" if it has one."""
    few = any(row.get(f"{name}{WORSE}-low", 0) is None for row in rows)
    return f", with an interval from {LEAST_SEEDS} seeds on" if few else ""


@reports(NetworkMethod.plug_in)
def show(folder: Path, as_json: bool) -> None:
    """Draws the plots of a run or a comparison, and prints its tables and its files."""
    runs = find_runs(folder)
    found = results_of(folder, runs, metrics_of(runs)) if runs else []
    rows = found[0].rows if found else []
    if found:
        with as_allowed(folder):
            _write(folder, runs, rows)
    for results in found:
        out.print(report_table(rows, results.metric, results.beside))
        if words := results.words or [results.answer] * (folder / PLAN).is_file():
            out.print("\n".join(words), soft_wrap=True, highlight=False)
    for name, why in found[0].notes.items() if found else ():
        out.print(f"{name}: {why}", soft_wrap=True, highlight=False)
    _warn(runs, rows)
    pictures = sorted(p.name for p in folder.glob("*.png") if p.name != _FIRST)
    data = ("results.json", "metrics.jsonl", PLAN, f"{TUNING}/")
    tell_files(folder, [_FIRST, *pictures, *data])
    if as_json:
        print(json.dumps({"run": str(folder), "methods": rows}))


def _write(folder: Path, runs: Runs, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the plots, and what a comparison has found."""
    for name, figure in network_figures(folder, runs).items():
        save(figure, folder / f"{name}.png")
    if (folder / PLAN).is_file():
        replace_file(folder / "results.json", json.dumps(rows, indent=2).encode())


def _warn(runs: Runs, rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints what tables do not show: what is missing, and the privacy spent."""
    for record in (record for records in runs.values() for record in records):
        if record.results is None:
            done, total = record.rows()[-1]["round"], record.config["settings"]["num-rounds"]
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
        unseen = first.config["settings"]["unseen-clients"]
        scored, seen = row["scored"] - unseen, row["members"] - unseen
        for metric in first.metrics:
            count = row.get(f"{metric.name}-clients")
            if count is not None and count < scored:
                why = ", too few for a mean" if row[metric.name] is None else ""
                have = f"{count} of {scored} clients have the score {metric.name}"
                yield f"{row['method']}: {have}{why}"
        if row["trained"] < seen:
            trained = f"{row['trained']} of {seen} clients have trained so far"
            yield f"{trained}; the others are served as those that never train"
