"""MOLAR: multitask linear models by weighted medians and shrinkage, and baselines.

Huang, Xu, Lee, Hassani, Bastani, Dobriban. Optimal Multitask Linear Regression and Contextual
Bandits under Sparse Heterogeneity. 2024. Equations and algorithms in this folder are numbered as in
that paper.
"""

from typing import TYPE_CHECKING

from engram.lazy import attach

if TYPE_CHECKING:
    from engram.molar.adaptive_models import AdaptiveClassifier as AdaptiveClassifier
    from engram.molar.adaptive_models import AdaptiveRegressor as AdaptiveRegressor
    from engram.molar.baselines import DebiasedRegressor as DebiasedRegressor
    from engram.molar.baselines import IndividualRegressor as IndividualRegressor
    from engram.molar.baselines import LassoRegressor as LassoRegressor
    from engram.molar.baselines import PooledRegressor as PooledRegressor
    from engram.molar.regressor import MolarClassifier as MolarClassifier
    from engram.molar.regressor import MolarRegressor as MolarRegressor

__getattr__, __dir__, __all__ = attach(__name__, __file__)
