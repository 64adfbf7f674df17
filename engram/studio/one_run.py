"""The page of one run, and the rows of its nodes: traffic, time, absences."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dash import dcc, html
from dash.development.base_component import Component
from plotly.graph_objects import Figure, Scatter

from engram.compare.text_tables import TextTable, results_table
from engram.runs.participation import participation
from engram.runs.run import Run
from engram.runs.run_list import data_of, entry_of
from engram.scoring.metrics import Metric
from engram.studio.clients import client_columns, client_rows
from engram.studio.pages.figures import clients, curves
from engram.studio.pages.reproduce_command import repeating, settings_of
from engram.studio.run_index import RunIndex
from engram.studio.widgets import address, choices, facts, graph, grid, plain_table

_KINDS: Final = {"train": "trains", "evaluate": "evaluates", "query": "asks who is there"}
_LAST: Final = 20  # absences that are listed


def one_run(index: RunIndex, query: Mapping[str, Sequence[str]]) -> list[Component]:
    """Shows a run: how far it is, its curve, its clients, its nodes and its settings."""
    name = query["name"][0]
    record = index.record(name)
    config = record.config
    found = [html.H1(name), progress(record), facts(_facts(record)), _links(name)]
    if record.trains_network:
        found += _of_network(index, name, record, query)
    else:
        found += _of_others(name, record, query)
    if nodes := node_rows(record):
        found += [html.H2("Nodes"), grid("nodes", nodes)]
    settings = [row for row in settings_of(record.folder, config["settings"]) if row[1] != row[2]]
    heading = ("", "value", "default")
    table = TextTable("Settings that differ from their defaults", heading, settings)
    again = html.Pre(repeating(record.folder, config))
    return [*found, plain_table(table), html.H2("Repeat it"), again]


def _facts(record: Run) -> dict[str, object]:
    config, results = record.config, record.results or {}
    settings, entry = config["settings"], entry_of(record.folder)
    last = record.last_row
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


def metric_of(record: Run, query: Mapping[str, Sequence[str]]) -> Metric:
    """Returns the metric that a page was asked for; the main one if it was asked for none."""
    wanted = query.get("metric", [""])[0]
    return next((m for m in record.metrics if m.name == wanted), record.metrics[0])


def _of_network(
    index: RunIndex, name: str, record: Run, query: Mapping[str, Sequence[str]]
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
    chosen = record.picked()
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


def _of_others(name: str, record: Run, query: Mapping[str, Sequence[str]]) -> list[Component]:
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


def drawn_column(record: Run, column: str) -> Figure:
    """Draws a column of a run's record against rounds."""
    rows = [row for row in record.rows() if _is_number(row.get(column))]
    figure = Figure(Scatter(x=[row["round"] for row in rows], y=[row[column] for row in rows]))
    figure.update_layout(xaxis_title="round", yaxis_title=column)
    return figure


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def progress(record: Run) -> Component:
    """Shows how many rounds are done, and whom the present one waits for."""
    done, total = record.done, record.settings.get("num-rounds", 1)
    if record.results is not None:
        return html.Div(hidden=True)
    words = [f"{done} of {total} rounds are done"]
    told, state = record.progress, record.state
    if state == "waiting":
        words.append("it waits to be started again")
    elif state == "stopped":
        server = shlex.quote(record.federation)
        on = f"--federation {server} --out" if record.federation else "--resume"
        words.append(f"it has stopped: engram run {on} {record.folder} goes on")
    elif told.get("kind"):
        waiting, answered = told["waiting"], told["answered"]
        kind = str(told["kind"]).partition(".")[0]
        what = _KINDS.get(kind, kind)
        there = f"{len(answered)} of {len(waiting) + len(answered)} nodes have answered"
        words.append(f"now it {what}: {there}")
    bar = html.Progress(value=str(done), max=str(total))
    return html.Div([bar, html.Span("; ".join(words))], className="progress", id="progress")


def node_rows(record: Run) -> list[dict[str, Any]]:
    """Returns a row for each node of a run on nodes; none of a run in one process."""
    told, names = record.progress, record.names
    if not record.held:
        told = {**told, "kind": "", "waiting": []}  # nobody asks them any more
    shares = {share.client: share for share in participation(record.rows())}
    suspended = record.last_row.get("suspended", {})
    rows = []
    for node, own in told.get("nodes", {}).items():
        clients = [shares[client] for client in own["clients"] if client in shares]
        reasons: dict[str, int] = {}
        for share in clients:
            for reason, times in share.reasons.items():
                reasons[reason] = reasons.get(reason, 0) + times
        if node in suspended:
            reasons[f"left out until {suspended[node]['until']}: {suspended[node]['reason']}"] = 1
        rows.append(
            {
                "clients": ", ".join(names.get(one, f"client {one}") for one in own["clients"]),
                "node": node,
                "now": _now(told, int(node)),
                "asked": sum(share.asked for share in clients),
                "took part": sum(share.took_part for share in clients),
                "late": own["late"],
                "why not": "; ".join(f"{why} ({times})" for why, times in reasons.items()),
                "MiB sent": round(own["bytes-sent"] / 2**20, 3),
                "MiB received": round(own["bytes-received"] / 2**20, 3),
                "seconds at work": round(own["seconds-training"], 2),
                "seconds in transit": round(own["seconds-transfer"], 2),
            }
        )
    return rows


def absences(record: Run) -> list[dict[str, Any]]:
    """Returns the last times that clients had no part in rounds, and why, the latest first."""
    names, going, found = record.names, {}, []
    for row in record.rows():
        away = {(int(client), why) for client, why in row.get("absent", {}).items()}
        for client, why in away:
            if (client, why) not in going:
                called = names.get(client, f"client {client}")
                going[client, why] = {"client": called, "because": why, "from round": row["round"]}
                found.append(going[client, why])
            going[client, why]["to round"] = row["round"]
        going = {key: spell for key, spell in going.items() if key in away}
    return sorted(found, key=lambda spell: spell["to round"], reverse=True)[:_LAST]


def _now(told: Mapping[str, Any], node: int) -> str:
    if node in told["waiting"]:
        return "at work"
    return "has answered" if node in told["answered"] and told["kind"] else ""
