"""The benchmark: comparisons on several federations, in one folder, and the methods' ranks."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich.table import Table

from engram.arguments import REFERENCES
from engram.cli.console import as_allowed, new_table, out, tell_files
from engram.cli.progress import Execute
from engram.client.hosts import Engine
from engram.compare.claims import scores_of
from engram.compare.comparison_folder import BENCHMARK, find_runs, read_benchmark, read_published
from engram.compare.comparison_run import begin_comparison, go_on
from engram.compare.figures import panels, save
from engram.compare.ranks import Rank, rank_methods
from engram.compare.references import read_references
from engram.compare.report_rows import comparable
from engram.compare.settings_for_methods import settings_of_each
from engram.compare.suite.federation_rows import written
from engram.compare.suite.federations import Federation
from engram.runs.run import Run
from engram.runs.run_places import make_folder
from engram.scoring.metrics import Metric
from engram.settings.errors import Refused
from engram.settings.files import replace_file

CONTROL: Final = "local"
"""The method that others are compared with: without it, nobody says whether a federation pays."""

_LEVEL: Final = 0.05


def begin_benchmark(
    folder: Path,
    chosen: Mapping[str, Federation],
    methods: Sequence[str],
    overrides: Mapping[str, Any],
    *,
    seeds: int,
    trials: int | None,
) -> None:
    """Writes a benchmark's data and plans into its folder, once all of them can be run.

    Published federations have the published settings and no references but methods; without
    ``trials`` methods are not tuned.

    Raises:
        Refused: Some of it is impossible. Nothing is left of what was written.
    """
    try:
        for name, federation in chosen.items():
            asked = federation._replace(settings={**federation.settings, **overrides})
            each = settings_of_each(methods, written(name, asked, folder / name))
            tuned = None if trials is None else (trials, None)
            references = () if federation.split else tuple(REFERENCES)
            begin_comparison(folder / name, "vectorized", each, seeds, tuned, references)
    except BaseException:
        for name in chosen:
            shutil.rmtree(folder / name, ignore_errors=True)
        raise
    plan = {
        "federations": {name: one.about for name, one in chosen.items()},
        "published": {name: dict(one.published) for name, one in chosen.items() if one.split},
    }
    make_folder(folder)
    replace_file(folder / BENCHMARK, json.dumps(plan, indent=2).encode())


def run_benchmark(
    folder: Path,
    execute: Callable[[str, Engine], Execute],
    again: str,
    processes: int | None = None,
) -> list[str]:
    """Runs the rest of a benchmark; returns the runs that stopped, with reasons."""
    stopped = []
    for name in read_benchmark(folder):
        part = folder / name
        lines = go_on(part, partial(execute, name), again, processes)
        stopped += [f"{name}: {line}" for line in lines]
    return stopped


class Found(NamedTuple):
    """A federation's result.

    Attributes:
        name: The federation's.
        about: The task, and whose rows a client has.
        clients: Clients that are scored.
        metric: The metric.
        scores: Of each method and reference, the mean over seeds of the mean over clients (the
            median, of an unbounded metric) on test rows, at the best round.
        best_test: Of each method on a published split, the mean over seeds of the highest accuracy
            of all clients' test rows in any round: as published, picked on the rows that it is of.
        published: Accuracies that are published for such a split, in %.
    """

    name: str
    about: str
    clients: int
    metric: Metric
    scores: Mapping[str, float]
    best_test: Mapping[str, float]
    published: Mapping[str, str]


def found_in(folder: Path) -> list[Found]:
    """Results of the federations with finished comparisons."""
    found, published = [], read_published(folder)
    for name, about in read_benchmark(folder).items():
        runs = comparable(find_runs(folder / name))
        if not runs:
            continue
        records = next(iter(runs.values()))
        metric = records[0].metrics[0]
        beside = read_references(folder / name, records, metric.name)
        each = scores_of(runs, metric, beside)
        center = np.nanmean if metric.center == "mean" else np.nanmedian
        scores = {
            label: float(np.mean([center(seed) for seed in seeds])) for label, seeds in each.items()
        }
        clients = min(int(np.isfinite(seeds).sum(axis=1).min()) for seeds in each.values())
        as_theirs = runs if name in published else {}
        best = {label: _best_on_test(records, metric) for label, records in as_theirs.items()}
        found.append(Found(name, about, clients, metric, scores, best, published.get(name, {})))
    return found


def _best_on_test(records: Sequence[Run], metric: Metric) -> float:
    best = []
    for record in records:
        scored = record.finished["clients"]
        rows = dict(zip(scored["ids"], scored["queries"], strict=True))
        each = [
            np.average(row[metric.name], weights=[rows[client] for client in row["ids"]])
            for row in record.scores()
        ]
        best.append(max(each))
    return float(np.mean(best))


def ranked(found: Sequence[Found]) -> tuple[float, dict[str, Rank]]:
    """Ranks the methods that every federation has, against ``CONTROL``.

    Raises:
        Refused: There are too few methods or federations.
    """
    everywhere = [name for name in found[0].scores if all(name in one.scores for one in found)]
    scores = {name: [one.scores[name] for one in found] for name in everywhere}
    try:
        return rank_methods(scores, [one.metric.better == "higher" for one in found], CONTROL)
    except ValueError as error:
        raise Refused(f"no ranks are to be had: {error}") from error


def rank_table(friedman: float, of: Mapping[str, Rank], federations: int) -> Table:
    """Returns a table of ranks."""
    title = (
        f"Mean ranks on {federations} federations, 1 the best, with 95 % intervals; p: against "
        f"{CONTROL}, adjusted for all (Holm). Friedman's test of any difference: p = {friedman:.2g}"
    )
    table = new_table(["method"], ["rank", "interval", "p"], title=title, padding=(0, 1))
    for name, rank in of.items():
        p = "-" if rank.p is None else f"{rank.p:.2g}"
        table.add_row(name, f"{rank.mean:.2f}", f"{rank.low:.2f} to {rank.high:.2f}", p)
    return table


def score_table(found: Sequence[Found]) -> pd.DataFrame:
    """Returns the scores, a row for each method and a column for each federation."""
    columns: dict[str, Mapping[str, Any]] = {}
    for one in found:
        columns[f"{one.name} ({one.metric.name})"] = one.scores
        if one.best_test:
            columns[f"{one.name} (best-test, as published)"] = one.best_test
            columns[f"{one.name} (published, %)"] = one.published
    table = pd.DataFrame(columns)
    return table[table.index.isin([name for one in found for name in one.scores])]


def published_table(one: Found) -> Table:
    """Returns a table of methods on a published split, with the published figures."""
    title = f"{one.name}: {one.metric.name} (%)"
    table = new_table(["method"], ["last round", "best-test", "published"], title=title)
    for name, best in one.best_test.items():
        figures = (f"{100 * value:.2f}" for value in (one.scores[name], best))
        table.add_row(name, *figures, one.published.get(name, "-"))
    return table


def draw_ranks(of: Mapping[str, Rank], federations: int) -> Figure:
    """Draws mean ranks with their intervals; those that differ from the control are dark."""
    figure, (axes,) = panels(1, size=(6.5, 1.2 + 0.28 * len(of)), grid="x")
    for row, rank in enumerate(of.values()):
        differs = rank.p is not None and rank.p < _LEVEL
        color = "black" if differs else "tab:blue" if rank.p is None else "0.6"
        axes.plot([rank.low, rank.high], [row, row], color=color, lw=1.5)
        axes.plot([rank.mean], [row], "o", color=color, ms=5)
    axes.set_yticks(range(len(of)), list(of))
    axes.invert_yaxis()
    axes.axvline(of[CONTROL].mean, color="tab:blue", lw=0.8, ls=":")
    axes.set_xlabel(f"mean rank on {federations} federations, with its 95 % interval; 1 is best")
    axes.set_title(f"black: differs from {CONTROL} (Holm, 5 %)", fontsize=9)
    return figure


def show_benchmark(folder: Path, as_json: bool) -> None:
    """Prints and draws the results of a benchmark's finished federations."""
    found = found_in(folder)
    told: dict[str, Any] = {"run": str(folder)}
    if len(found) > 1:
        friedman, ranking = ranked(found)
        with as_allowed(folder):
            save(draw_ranks(ranking, len(found)), folder / "ranks.png")
        out.print(rank_table(friedman, ranking, len(found)))
        each = {name: rank._asdict() for name, rank in ranking.items()}
        told |= {"friedman": friedman, "ranks": each}
    else:
        out.print("no ranks: they need two finished federations", soft_wrap=True)
    with as_allowed(folder):
        score_table(found).to_csv(folder / "scores.csv", index_label="method")
    if any(one.best_test for one in found):
        line = "best-test is as published: the best round, picked on all clients' test rows"
        out.print(line, soft_wrap=True)
    for one in found:
        if one.best_test:
            out.print(published_table(one))
        best = max(one.scores, key=lambda name: one.metric.sign * one.scores[name])
        value = one.metric.with_unit(one.scores[best])
        words = f"{one.metric.center} {one.metric.name} {value} of {best}"
        line = f"{one.name}, {one.clients} clients: best {words}"
        out.print(line, soft_wrap=True, highlight=False)
    names = [BENCHMARK, "ranks.png", "scores.csv", *(f"{one.name}/" for one in found)]
    tell_files(folder, names)
    if as_json:
        scores = {one.name: {"metric": one.metric.name, "scores": one.scores} for one in found}
        for one in found:
            if one.best_test:
                scores[one.name] |= {"best-test": one.best_test, "published": one.published}
        print(json.dumps({**told, "federations": scores}))
