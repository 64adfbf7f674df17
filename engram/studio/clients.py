"""The page of one client, and rows of a grid of clients: scores, gains and part in the run."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component
from plotly.graph_objects import Figure, Scatter

from engram.compare.colors import looks_of
from engram.compare.comparison_folder import Runs
from engram.compare.report_rows import client_scores, same_clients
from engram.compare.reports.gain_plot import gain_lines
from engram.guards.accounting.client_epsilon import spent_by_client
from engram.runs.participation import ClientShare, participation
from engram.runs.run import Run, took_part
from engram.scoring.evaluation import center
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import COMMON, TUNED
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.studio.run_index import RunIndex
from engram.studio.widgets import address, facts, graph, grid, linked, number

_WHOLE: Final = ("seed", "asked", "took part")
_RULES: Final = {"gain": "params.value > 0", "loss": "params.value < 0"}


def client_rows(name: str, record: Run, beside: Runs, metric: Metric) -> list[dict[str, Any]]:
    """Returns a row for each client of a finished run, with gains over references ``beside`` it."""
    (mine,) = client_scores([record], metric.name)
    bases = _references(record, beside, metric) | _common(record, metric)
    (tuned,) = (
        client_scores([record], metric.name, TUNED) if _has(record, metric, TUNED) else [None]
    )
    called, seed = record.names, record.settings["seed"]
    parts = {share.client: share for share in participation(record.rows())}
    rows = []
    for client in np.flatnonzero(np.isfinite(mine)).tolist():
        page = address("/client", name=name, client=client)
        part = parts.get(client)
        row = {
            "number": client,
            "client": linked(called.get(client, f"client {client}"), page),
            "seed": seed,
            metric.name: _figure(mine[client], metric),
        }
        if tuned is not None:
            row[f"{metric.name}, fine-tuned"] = _figure(tuned[client], metric)
        for base, scores in bases.items():
            row[f"gain over {base}"] = _figure(
                metric.sign * (mine[client] - scores[client]), metric
            )
        row |= {"asked": part.asked if part else 0, "took part": part.took_part if part else 0}
        rows.append(row)
    return rows


def client_columns(rows: Sequence[Mapping[str, Any]], metric: Metric) -> list[dict[str, Any]]:
    """Returns the columns of ``client_rows``."""
    digits = 2 if metric.percent else 4
    return [
        {"field": key, "link": True}
        if key == "client"
        else number(
            key, 0 if key in _WHOLE else digits, cellClassRules=_RULES if "gain" in key else {}
        )
        for key in dict.fromkeys(key for row in rows for key in row)
        if key != "number"
    ]


def _references(record: Run, beside: Runs, metric: Metric) -> dict[str, Any]:
    found = {}
    for label, title, which in gain_lines(beside)[0]:
        same = [
            other
            for other in beside[label]
            if other.results is not None and same_clients(record, other)
        ]
        if same and same[0].folder != record.folder:
            (found[title],) = client_scores(same[:1], metric.name, which)
    return found


def _common(record: Run, metric: Metric) -> dict[str, Any]:
    if not _has(record, metric, COMMON):
        return {}
    (served,), (scores,) = (client_scores([record], metric.name, w) for w in ("", COMMON))
    alike = np.array_equal(served, scores, equal_nan=True)
    return {} if alike else {"its global model": scores}


def _has(record: Run, metric: Metric, which: str) -> bool:
    return metric.name + which in (record.results or {})["clients"]


def _figure(value: float, metric: Metric) -> float | None:
    return round(metric.scale * float(value), 4) if np.isfinite(value) else None


def one_client(index: RunIndex, query: Mapping[str, Sequence[str]]) -> list[Component]:
    """Shows one client's scores, its part in the run, and its gains."""
    name, record = query["name"][0], index.record(query["name"][0])
    client = _number(record, query)
    called = record.names.get(client, f"client {client}")
    share = next((one for one in participation(record.rows()) if one.client == client), None)
    title = html.H1([called, " of ", dcc.Link(name, href=address("/run", name=name))])
    found = [title, facts(_facts(record, client, share))]
    if not record.trains_network:
        return found
    found.append(html.H2("Its score after each round"))
    beside = [
        other
        for records in index.around(name).values()
        for other in records
        if other.settings["seed"] == record.settings["seed"]
    ]
    if record.scores():
        note = "Thin lines: the same client under the other methods. Dots: rounds it trained in."
        found += [graph("history", _history(record, client, beside)), html.P(note)]
    else:
        found.append(html.P("The run has not recorded clients' scores."))
    return found + _gains(index, name, record, client)


def _number(record: Run, query: Mapping[str, Sequence[str]]) -> int:
    text, count = query.get("client", ["0"])[0], record.clients
    if not (text.isdecimal() and int(text) < count):
        raise Refused(f"client must be in 0..{count - 1}, got {text}")
    return int(text)


def _facts(record: Run, client: int, share: ClientShare | None) -> dict[str, object]:
    told = _last_scores(record, client) if record.trains_network else {}
    if share is not None:
        why = "; ".join(f"{reason} ({times})" for reason, times in share.reasons.items())
        told |= {"asked in": f"{share.asked} rounds", "took part in": f"{share.took_part} rounds"}
        told |= {"why not": why, "privacy spent": _epsilon(record, client)}
    return told


def _last_scores(record: Run, client: int) -> dict[str, object]:
    main, last = record.metrics[0], next(reversed(record.scores()), {}).get("round")
    told: dict[str, object] = {}
    for title, which in ((f"{main.name}, last round", ""), ("of the global model", COMMON)):
        found = dict(record.scores_of(client, main.name + which))
        if last in found:
            told[title] = main.with_unit(found[last], 1)
    return told


def _epsilon(record: Run, client: int) -> str:
    spent = spent_by_client(record).get(client)
    if spent is None:
        return ""
    delta = Experiment.from_config(record.settings).delta
    return f"epsilon {spent:.3g} at delta {delta:g}"


def _history(record: Run, client: int, beside: Sequence[Run]) -> Figure:
    main, figure = record.metrics[0], Figure()
    others = [other for other in beside if other.folder != record.folder]
    looks = looks_of(one.method.name for one in (record, *others))
    first = min(1, len(others))  # see curve_points
    for other in others:
        if points := _curve(other, client, "", first):
            method = other.method.name
            thin = {"width": 1, "color": looks[method].color}
            figure.add_trace(_line(points, method, line=thin, opacity=0.8, hoverinfo="name+y"))
    everyone = [
        (row["round"], center(np.array(row[main.name], float), main))
        for row in record.scores()
        if row["round"] >= first and any(value is not None for value in row.get(main.name, ()))
    ]
    lines = {f"{main.center} of all clients": (everyone, "#888", "dot")}
    own = looks[record.method.name].color
    lines["global model"] = (_curve(record, client, COMMON, first), own, "dash")
    lines["as it is served"] = (_curve(record, client, "", first), own, "solid")
    for name, (points, color, dash) in lines.items():
        if points:
            figure.add_trace(_line(points, name, line={"color": color, "dash": dash, "width": 2.5}))
    took = [row["round"] for row in record.rows() if client in took_part(row)]
    low = min([y for points, *_ in lines.values() for _, y in points], default=0.0)
    marks = {"symbol": "circle", "size": 4, "color": own}
    hover = "trained in round %{x}<extra></extra>"
    below = [(x, low * main.scale) for x in took]
    dots = _line(below, "trained", mode="markers", marker=marks, hovertemplate=hover)
    figure.add_trace(dots)
    figure.update_layout(xaxis_title="communication round", yaxis_title=main.name + main.unit)
    for trace in figure.data[:-1]:
        trace.y = [main.scale * y for y in trace.y]
    return figure


def _line(points: Sequence[tuple[int, float]], name: str, **more: Any) -> Scatter:
    return Scatter(x=[x for x, _ in points], y=[y for _, y in points], name=name, **more)


def _curve(record: Run, client: int, which: str, first: int) -> list[tuple[int, float]]:
    points = record.scores_of(client, record.metrics[0].name + which)
    return [point for point in points if point[0] >= first]


def _gains(index: RunIndex, name: str, record: Run, client: int) -> list[Component]:
    if record.results is None:
        return []
    beside = index.around(name)
    found = []
    for metric in record.metrics:
        rows = client_rows(name, record, beside, metric)
        own = [row for row in rows if row["number"] == client]
        found += [grid(f"own-{metric.name}", own, client_columns(own, metric))] if own else []
    return [html.H2("In the end"), *found]
