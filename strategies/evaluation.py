"""Scores of clients, and the figures that summarize them."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Column", "Evaluation", "client_columns", "summary"]

Column = npt.NDArray[np.float64]


class Evaluation(NamedTuple):
    """Scores of all clients, each column in the order of ``clients``, which ascends.

    Attributes:
        clients: Who was scored.
        before: Accuracy of the common model, in [0, 1].
        personalized: Accuracy after personalization.
        own: Accuracy of the model that the client keeps; NaN where it keeps none.
        loss_before: Loss of the common model, in nats.
        loss_personalized: Loss after personalization.
        queries: Rows scored.
    """

    clients: list[int]
    before: Column
    personalized: Column
    own: Column
    loss_before: Column
    loss_personalized: Column
    queries: Column


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


def client_columns(evaluation: Evaluation) -> dict[str, list[Any]]:
    """Returns each client's scores, as ``results.json`` has them."""
    return {
        "ids": evaluation.clients,
        "personalized": evaluation.personalized.tolist(),
        "before": evaluation.before.tolist(),
        "own": _or_none(evaluation.own),
        "queries": evaluation.queries.astype(int).tolist(),
    }


def _or_none(column: Column) -> list[float | None]:
    return [None if np.isnan(value) else value for value in column.tolist()]


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
