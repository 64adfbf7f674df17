"""Online convex optimization: learners that play against a stream of losses.

Contains one learner for losses of unknown curvature (``universal``), its components and baselines;
and linear models of rows, whose best one is a mixture (``mixture``).
"""

from typing import TYPE_CHECKING

from engram.lazy import attach

if TYPE_CHECKING:
    from engram.online.estimators import OnlineClassifier as OnlineClassifier
    from engram.online.estimators import OnlineRegressor as OnlineRegressor
    from engram.online.play import least_totals as least_totals
    from engram.online.play import play_stream as play_stream
    from engram.online.play import regrets as regrets
    from engram.online.universal import universal_ensemble as universal_ensemble

__getattr__, __dir__, __all__ = attach(__name__, __file__)
