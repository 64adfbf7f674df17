"""Notes a node's rounds, in its log and in its audit."""

from collections.abc import Mapping
from logging import DEBUG, INFO, WARNING, getLogger
from pathlib import Path
from typing import Any, Final, NamedTuple

from engram.client.requests import round_of
from engram.settings.errors import AWAITED, REFUSED, EngramError, few, one_line
from engram.sites.audit import ANSWERS, ENDED, EXPORTED, Audit
from engram.wire.messages import EVALUATE, TRAIN, Error, Question, Reply
from engram.wire.wire import CLIENTS, COLUMNS, METRICS, MODEL, config_of

_log = getLogger("flwr.engram")

_DONE: Final = {TRAIN: "trained", EVALUATE: "scored"}
_TOLD: Final = {COLUMNS: "described the columns of its table", MODEL: "scored a given model"}
_REFUSED: Final = {
    "healed": "its log was mended",
    "ledger": "its ledger was mended",
    "policy": "its policy was accepted",
    ENDED: "its work was ended",
}
_ROWS: Final = "num-examples"  # key of a reply's metrics; the others are a loss, or scores
_MOST: Final = 3  # metrics that a line names; JSON has all

_said: Final[dict[Path, str]] = {}  # last line about the answers of each log's node


class Exchanged(NamedTuple):
    """The run of a message, and the cost of its answer."""

    run: int
    training: str  # the name that its memories have
    method: str
    received: int  # bytes of the message
    sent: int  # bytes of the reply
    seconds: float  # from the message to the reply
    epsilon: float | None = None  # of the site's data with the reply; None if it is not counted
    metrics: Mapping[str, Any] | None = None  # figures before noise; None for those of the reply


def noted(
    question: Question, reply: Reply, exchanged: Exchanged, audit: Audit, *, counts: bool
) -> Reply:
    """Logs the answer to a message, and returns it; of refusals that are alike, the first.

    What the audit cannot have is replaced by an error: nothing else leaves the site unnoted.

    ``counts`` says whether it counts as a round of the day.
    """
    fields = _fields(question, reply, exchanged)
    if fields is None:
        return reply
    words = in_words(fields)
    repeated, _said[audit.folder] = _said.get(audit.folder) == words, words
    level = INFO if "why" not in fields else DEBUG if repeated else WARNING
    _log.log(level, "%s", words, extra={"fields": fields})
    try:
        audit.append(_bounded(fields), trained=counts)
    except OSError as error:
        told = f"this site's log cannot be written ({error.strerror}), so that nothing leaves it"
        _log.error("%s: make room in %s", told, audit.folder)
        return Reply(question, {}, Error(REFUSED, f"{told}: the site makes room"))
    return reply


def _fields(question: Question, reply: Reply, exchanged: Exchanged) -> dict[str, Any] | None:
    kind = question.kind
    told = {key: value for key, value in exchanged._asdict().items() if value is not None}
    fields: dict[str, Any] = {"kind": kind, **told}
    if reply.error:
        if reply.error.code == AWAITED:  # asked every few seconds, and said once
            return None
        return fields | {"why": one_line(reply.error.reason or "no reason given")}
    for asked in (COLUMNS, MODEL):
        if asked in config_of(question.content):
            return fields | {"kind": asked}
    if kind not in _DONE:
        return None
    records = reply.content
    details = records.get(CLIENTS)
    clients: Any = details.get("ids", []) if details is not None else []
    metrics = {**metrics_of(reply), **fields.get("metrics", {})}
    rows = metrics.pop(_ROWS, 0)
    try:
        number = round_of(question.content)
    except EngramError:  # some other server's
        number = 0
    return fields | {"round": number, "clients": clients, "rows": rows, "metrics": metrics}


def in_words(fields: Mapping[str, Any]) -> str:
    """Returns a line about a round: run, method, round, clients, rows, loss, bytes, seconds."""
    begin = f"run {fields['run']}" if "run" in fields else "this node"
    begin += f", {fields['method']}" if "method" in fields else ""
    if fields["kind"] in ANSWERS:
        return f"{begin}: {fields['kind']} by this site"
    if fields["kind"] == EXPORTED:
        told = f"client {fields['client']} of training {fields['training']}"
        return f"{begin}: what {told} remembers was exported to {fields['folder']}"
    if "why" in fields:
        return f"{begin}: {_REFUSED.get(fields['kind'], 'refused')}: {fields['why']}"
    if fields["kind"] in _TOLD:
        return f"{begin}: {_TOLD[fields['kind']]}; {fields['sent']} bytes sent"
    some = list(fields["metrics"].items())[:_MOST]
    epsilon = f"; epsilon {fields['epsilon']:.4g} so far" if "epsilon" in fields else ""
    clients = fields["clients"]
    return (
        f"{begin}, round {fields['round']}: {_DONE[fields['kind']]} clients "
        f"{clients if isinstance(clients, str) else few(clients)} on {fields['rows']} rows in "
        f"{fields['seconds']:.2f} s{''.join(f', {name} {value:.4g}' for name, value in some)}; "
        f"{fields['received']} bytes received, {fields['sent']} sent{epsilon}"
    )


def metrics_of(reply: Reply) -> dict[str, Any]:
    """Returns the figures of a reply, with the number of rows behind it; none of an error."""
    return dict(reply.content.get(METRICS, {})) if not reply.error else {}


def _bounded(fields: Mapping[str, Any]) -> dict[str, Any]:
    if "why" in fields:  # so that refusals for the same reason are alike
        return {key: fields[key] for key in ("kind", "run", "training", "method", "why")}
    found = dict(fields) | {"seconds": round(fields["seconds"], 3)}
    return found | ({"clients": few(fields["clients"])} if "clients" in fields else {})
