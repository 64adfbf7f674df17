"""The page of one run."""

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component
from plotly.graph_objects import Figure, Scatter

from engram.compare.comparison_folder import trains_network
from engram.compare.report_rows import picked
from engram.runs.record import RunRecord
from engram.runs.run_list import data_of, entry_of
from engram.scoring.metrics import Metric
from engram.studio.clients import client_columns, client_rows
from engram.studio.nodes import node_rows, progress
from engram.studio.pages.content import PageTable, results_table
from engram.studio.pages.figures import clients, curves
from engram.studio.pages.reproduce_command import repeating, settings_of
from engram.studio.run_index import RunIndex
from engram.studio.widgets import address, choices, facts, graph, grid, plain_table


def one_run(index: RunIndex, query: Mapping[str, Sequence[str]]) -> list[Component]:
    """Shows a run: how far it is, its curve, its clients, its nodes and its settings."""
    name = query["name"][0]
    record = index.record(name)
    config = record.config
    found = [html.H1(name), progress(record), facts(_facts(record)), _links(name)]
    if trains_network(record):
        found += _of_network(index, name, record, query)
    else:
        found += _of_others(name, record, query)
    if nodes := node_rows(record):
        found += [html.H2("Nodes"), grid("nodes", nodes)]
    settings = [row for row in settings_of(record.folder, config["settings"]) if row[1] != row[2]]
    heading = ("", "value", "default")
    table = PageTable("Settings that differ from their defaults", heading, settings)
    again = html.Pre(repeating(record.folder, config))
    return [*found, plain_table(table), html.H2("Repeat it"), again]


def _facts(record: RunRecord) -> dict[str, object]:
    config, results = record.config, record.results or {}
    settings, entry = config["settings"], entry_of(record.folder)
    last = next(reversed(record.rows()), {})
    epsilon = results.get("epsilon", last.get("epsilon"))
    delta = results.get("delta", last.get("delta"))
    speed = results.get("ms-per-round")
    size = results.get("client-bytes")
    return {
        "method": settings["method"],
        "data": data_of(record),
        "seed": settings["seed"],
        "engine": config["engine"],
        "state": entry.state if entry else "",
        "score, last round": entry.score if entry else "",
        "a round": speed and f"{speed:.1f} ms",
        "a client's bytes in a round": size and f"{size:,}",
        "privacy spent": "" if epsilon is None else f"epsilon {epsilon:.3g} at delta {delta:g}",
    }


def _links(name: str) -> Component:
    links: list[Any] = [dcc.Link("who holds which rows", href=address("/data", name=name))]
    parent, _, _ = name.rpartition("/")
    if parent:
        to = address("/compare", name=parent)
        links += [" · ", dcc.Link(f"its comparison, {parent}", href=to)]
    return html.P(links)


def metric_of(record: RunRecord, query: Mapping[str, Sequence[str]]) -> Metric:
    """Returns the metric that a page was asked for; the main one if it was asked for none."""
    wanted = query.get("metric", [""])[0]
    return next((m for m in record.metrics if m.name == wanted), record.metrics[0])


def _of_network(
    index: RunIndex, name: str, record: RunRecord, query: Mapping[str, Sequence[str]]
) -> list[Component]:
    runs = index.runs([name])
    if not runs:
        return [html.P("It has not been evaluated yet.")]
    metric = metric_of(record, query)
    links = {m.name: address("/run", name=name, metric=m.name) for m in record.metrics}
    found = [choices(links, metric.name), graph("curve", curves(runs, metric))]
    if record.results is None:
        return [*found, html.P("Each client's scores are shown when it is finished.")]
    beside = index.around(name)
    rows = client_rows(name, record, beside, metric)
    chosen = picked(record)
    when = (
        "in the last round"
        if chosen is None
        else f"in round {chosen['round']}, which validation rows pick"
    )
    words = f"Scores are of test rows, {when}. Gains are positive where the client is better off."
    found += [html.H2(f"{len(rows)} clients"), html.P(words)]
    if rows:
        found.append(grid("clients", rows, client_columns(rows, metric)))
    if (dots := clients(runs, metric)) is not None:
        found.append(graph("clients", dots))
    return found


def _of_others(name: str, record: RunRecord, query: Mapping[str, Sequence[str]]) -> list[Component]:
    rows = record.rows()
    columns = list(dict.fromkeys(key for row in rows for key in row if _is_number(row[key])))
    columns = [column for column in columns if column != "round"]
    found: list[Component] = []
    if columns:
        main = [metric.name for metric in record.metrics if metric.name in columns]
        chosen = query.get("column", [*main, *columns])[0]
        links = {column: address("/run", name=name, column=column) for column in columns}
        found += [choices(links, chosen), graph("column", drawn_column(record, chosen))]
    if record.results is not None:
        found.append(plain_table(results_table(record.results)))
    return found


def drawn_column(record: RunRecord, column: str) -> Figure:
    """Draws a column of a run's record against rounds."""
    rows = [row for row in record.rows() if _is_number(row.get(column))]
    figure = Figure(Scatter(x=[row["round"] for row in rows], y=[row[column] for row in rows]))
    figure.update_layout(xaxis_title="round", yaxis_title=column)
    return figure


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
