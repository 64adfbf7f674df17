"""MOLAR: multitask linear models by weighted medians and shrinkage, and baselines.

Huang, Xu, Lee, Hassani, Bastani, Dobriban. Optimal Multitask Linear Regression and Contextual
Bandits under Sparse Heterogeneity. 2024. Equations and algorithms in this folder are numbered as in
that paper.
"""

from typing import TYPE_CHECKING

from engram.lazy import attach

if TYPE_CHECKING:
    from engram.molar.adaptive_models import AdaptiveClassifier, AdaptiveRegressor
    from engram.molar.baselines import (
        DebiasedRegressor,
        IndividualRegressor,
        LassoRegressor,
        PooledRegressor,
    )
    from engram.molar.regressor import MolarClassifier, MolarRegressor

__all__ = [
    "AdaptiveClassifier",
    "AdaptiveRegressor",
    "DebiasedRegressor",
    "IndividualRegressor",
    "LassoRegressor",
    "MolarClassifier",
    "MolarRegressor",
    "PooledRegressor",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "AdaptiveClassifier": "engram.molar.adaptive_models",
        "AdaptiveRegressor": "engram.molar.adaptive_models",
        "DebiasedRegressor": "engram.molar.baselines",
        "IndividualRegressor": "engram.molar.baselines",
        "LassoRegressor": "engram.molar.baselines",
        "MolarClassifier": "engram.molar.regressor",
        "MolarRegressor": "engram.molar.regressor",
        "PooledRegressor": "engram.molar.baselines",
    },
)
