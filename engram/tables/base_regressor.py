"""Base of estimators for numbers and counts, whatever fits their regressions."""

from typing import Any, Literal

from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score, r2_score

from engram.core.checks import require
from engram.tables.families import FamilyName
from engram.tables.model import MultitaskModel


class Numbers(RegressorMixin, MultitaskModel):
    """A base that stands before the one with ``_estimate``: linear models, or those of counts."""

    family: Literal["linear", "poisson"]

    @property
    def _family(self) -> FamilyName:
        require(self.family in ("linear", "poisson"), "family", self.family, "linear or poisson")
        return self.family

    def score(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> float:
        """Returns R^2 of the predictions; for counts D^2, the share of deviance explained."""
        found = self.predict(X, task)
        if self._family == "poisson":
            return float(d2_tweedie_score(y, found, sample_weight=sample_weight, power=1))
        return float(r2_score(y, found, sample_weight=sample_weight))
