"""The page that compares runs: of a comparison, or any that are chosen on the first page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dash import html
from dash.development.base_component import Component

from engram.compare.comparison_folder import Runs, runs_of
from engram.compare.report_rows import finished
from engram.compare.reports.gain_plot import gain_lines
from engram.compare.reports.local import tables_of
from engram.compare.results import results_of
from engram.studio.clients import client_columns, client_rows
from engram.studio.one_run import metric_of
from engram.studio.pages.figures import titled_figures, titled_gains
from engram.studio.run_index import RunIndex
from engram.studio.widgets import address, choices, graph, grid, plain_table


def comparing(index: RunIndex, query: Mapping[str, Sequence[str]]) -> list[Component]:
    """Shows runs side by side: a table, curves with bands over seeds, gains, and each client."""
    folder, names = _asked(index, query)
    title = query["name"][0] if "name" in query else f"{len(names)} runs"
    others = [name for name in names if not index.record(name).trains_network]
    runs = index.runs(name for name in names if name not in others)
    found: list[Component] = [html.H1(title)]
    if others:
        found.append(html.P(f"Not of methods that train networks: {', '.join(others)}"))
    if not runs:
        return [*found, html.P("None of them has been evaluated yet.")]
    record = next(iter(runs.values()))[0]
    metric = metric_of(record, query)
    own = {key: list(value) for key, value in query.items() if key != "metric"}
    links = {m.name: address("/compare", **own, metric=m.name) for m in record.metrics}
    (results,) = results_of(folder, runs, [metric])
    found += [choices(links, metric.name), *map(plain_table, tables_of(results))]
    figures = titled_gains(runs, results) | titled_figures(runs, metric)
    for number, (heading, figure) in enumerate(figures.items()):
        found += [html.H2(heading), graph(f"compared-{number}", figure)]
    return found + _clients(index, runs, query)


def _asked(index: RunIndex, query: Mapping[str, Sequence[str]]) -> tuple[Path, list[str]]:
    if "name" not in query:
        return index.folder, list(query.get("run", ()))
    name = query["name"][0]
    folder = index.path(name)
    return folder, [f"{name}/{run.name}" for run in runs_of(folder)]


def _clients(index: RunIndex, runs: Runs, query: Mapping[str, Sequence[str]]) -> list[Component]:
    if not (ended := finished(runs)):
        return []
    references = {label for label, _, _ in gain_lines(ended)[0]}
    first = next((label for label in ended if label not in references), next(iter(ended)))
    label = next((one for one in query.get("of", ()) if one in ended), first)
    own = {key: list(value) for key, value in query.items() if key != "of"}
    links = {one: address("/compare", **own, of=one) for one in ended}
    metric = metric_of(ended[label][0], query)
    rows = []
    for record in ended[label]:
        name = str(record.folder.relative_to(index.folder))
        rows += client_rows(name, record, ended, metric)
    grids = [grid("clients", rows, client_columns(rows, metric))] if rows else []
    return [html.H2("What each client gains"), choices(links, label), *grids]
