"""Each client's score and gains, as rows of a grid."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from engram.compare.comparison_folder import Runs
from engram.compare.gain_plot import gain_lines
from engram.compare.report_rows import client_scores, same_clients
from engram.runs.record import RunRecord
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import COMMON, TUNED
from engram.server.status import participation
from engram.studio.widgets import address, linked, number

_WHOLE: Final = ("seed", "asked", "took part")
_RULES: Final = {"gain": "params.value > 0", "loss": "params.value < 0"}


def client_rows(name: str, record: RunRecord, beside: Runs, metric: Metric) -> list[dict[str, Any]]:
    """Returns a row for each client that a run has scored.

    Args:
        name: The run's folder below the board's.
        record: The run, which is finished.
        beside: The runs of its comparison, whose references the gains are over.
        metric: By what clients are scored.
    """
    (mine,) = client_scores([record], metric.name)
    bases = _references(record, beside, metric) | _common(record, metric)
    (tuned,) = (
        client_scores([record], metric.name, TUNED) if _has(record, metric, TUNED) else [None]
    )
    called, seed = record.names, record.config["settings"]["seed"]
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


def _references(record: RunRecord, beside: Runs, metric: Metric) -> dict[str, Any]:
    """Returns each client's score by the references of the same seed and data."""
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


def _common(record: RunRecord, metric: Metric) -> dict[str, Any]:
    """Returns each client's score by the run's global model, if that does not serve all clients."""
    if not _has(record, metric, COMMON):
        return {}
    (served,), (scores,) = (client_scores([record], metric.name, w) for w in ("", COMMON))
    alike = np.array_equal(served, scores, equal_nan=True)
    return {} if alike else {"its global model": scores}


def _has(record: RunRecord, metric: Metric, which: str) -> bool:
    """Returns whether a finished run has scores of a model."""
    return metric.name + which in (record.results or {})["clients"]


def _figure(value: float, metric: Metric) -> float | None:
    return round(metric.scale * float(value), 4) if np.isfinite(value) else None
