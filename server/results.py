"""What a run found: per-client scores, and the figures that summarize them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from strategies.federated import Column, Evaluation

__all__ = ["results", "summary"]


def summary(evaluation: Evaluation) -> dict[str, Any]:
    """Returns the figures of one evaluation, over all clients.

    ``accuracy``, ``accuracy-std``, ``accuracy-median`` and ``accuracy-p10`` are the mean, the
    standard deviation, the median and the 10th percentile over clients of the personalized
    accuracy, in [0, 1]; ``accuracy-before`` is the mean before personalization; ``accuracy-own``
    the mean over the ``own-clients`` clients that keep a model of their own of that model's
    accuracy, and None if there are none; ``scored`` the number of clients that all of this is
    about; ``loss`` and ``loss-before`` are means, in nats, and None if a client's are not finite.

    Scores are what clients say. All count alike, however many queries they claim: one of n who
    lies moves a mean accuracy by 1 / n at most, and a mean loss by 104 / n, since screening bounds
    it; fewer than half do not move the median out of the range of the others.
    """
    own = evaluation.own[~np.isnan(evaluation.own)]
    return {
        "accuracy": float(evaluation.personalized.mean()),
        "accuracy-std": float(evaluation.personalized.std()),
        "accuracy-median": float(np.median(evaluation.personalized)),
        "accuracy-p10": float(np.percentile(evaluation.personalized, 10)),
        "accuracy-before": float(evaluation.before.mean()),
        "accuracy-own": float(own.mean()) if own.size else None,
        "own-clients": int(own.size),
        "scored": len(evaluation.clients),
        "loss": _finite(evaluation.loss_personalized.mean()),
        "loss-before": _finite(evaluation.loss_before.mean()),
    }


def results(
    method: str, evaluation: Evaluation, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns what ``results.json`` holds: the last evaluation, the clients, and the speed.

    Args:
        method: Its name.
        evaluation: The evaluation after the last round.
        rows: The run's metrics.
    """
    times = [row["ms"] for row in rows if "ms" in row]
    return {
        "method": method,
        "rounds": rows[-1]["round"],
        **summary(evaluation),
        "ms-per-round": float(np.median(times)),
        "clients": {
            "ids": evaluation.clients,
            "personalized": evaluation.personalized.tolist(),
            "before": evaluation.before.tolist(),
            "own": _or_none(evaluation.own),
            "queries": evaluation.queries.astype(int).tolist(),
        },
    }


def _or_none(column: Column) -> list[float | None]:
    return [None if np.isnan(value) else value for value in column.tolist()]


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
