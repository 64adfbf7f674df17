"""Online convex optimization: learners that play against a stream of losses.

Contains one learner for losses of unknown curvature (``universal``), its components and baselines;
and linear models of rows, whose best one is a mixture (``mixture``).
"""

from typing import TYPE_CHECKING

from engram.lazy import attach

if TYPE_CHECKING:
    from engram.online.estimators import OnlineClassifier, OnlineRegressor
    from engram.online.universal import universal_ensemble

__all__ = ["OnlineClassifier", "OnlineRegressor", "universal_ensemble"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "OnlineClassifier": "engram.online.estimators",
        "OnlineRegressor": "engram.online.estimators",
        "universal_ensemble": "engram.online.universal",
    },
)
