"""Nodes of a run: who is waited for, who was late, and the cost of each one."""

import shlex
from collections.abc import Mapping
from typing import Any, Final

from dash import html
from dash.development.base_component import Component

from engram.data.file_models import read_stored
from engram.runs.folder_records import Progress
from engram.runs.progress import PROGRESS
from engram.runs.record import RunRecord
from engram.server.status import participation
from engram.settings.errors import Refused

_KINDS: Final = {"train": "trains", "evaluate": "evaluates", "query": "asks who is there"}
_LAST: Final = 20  # absences that are listed


def progress(record: RunRecord) -> Component:
    """Shows how many rounds are done, and whom the present one waits for."""
    settings, rows = record.config["settings"], record.rows()
    done, total = (rows[-1]["round"] if rows else 0), settings.get("num-rounds", 1)
    if record.results is not None:
        return html.Div(hidden=True)
    words = [f"{done} of {total} rounds are done"]
    told, state = _told(record), record.state
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


def node_rows(record: RunRecord) -> list[dict[str, Any]]:
    """Returns a row for each node of a run on nodes; none of a run in one process."""
    told, names = _told(record), record.names
    if not record.held:
        told = {**told, "kind": "", "waiting": []}  # nobody asks them any more
    shares = {share.client: share for share in participation(record.rows())}
    suspended = next(reversed(record.rows()), {}).get("suspended", {})
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


def absences(record: RunRecord) -> list[dict[str, Any]]:
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


def _told(record: RunRecord) -> Mapping[str, Any]:
    path = record.folder / PROGRESS
    try:
        return read_stored(path, Progress) if path.is_file() else {}
    except Refused:
        return {}


def _now(told: Mapping[str, Any], node: int) -> str:
    if node in told["waiting"]:
        return "at work"
    return "has answered" if node in told["answered"] and told["kind"] else ""
