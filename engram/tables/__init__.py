"""MOLAR: multitask linear models by weighted medians and shrinkage, and baselines.

Huang, Xu, Lee, Hassani, Bastani, Dobriban. Optimal Multitask Linear Regression and Contextual
Bandits under Sparse Heterogeneity. 2024. Equations and algorithms in this folder are numbered as in
that paper. ``engram.tables.survival`` has Cox's model.
"""

from typing import TYPE_CHECKING

from engram.lazy import attach

if TYPE_CHECKING:
    from engram.tables.adaptive_models import AdaptiveClassifier as AdaptiveClassifier
    from engram.tables.adaptive_models import AdaptiveRegressor as AdaptiveRegressor
    from engram.tables.baselines import DebiasedRegressor as DebiasedRegressor
    from engram.tables.baselines import IndividualRegressor as IndividualRegressor
    from engram.tables.baselines import LassoRegressor as LassoRegressor
    from engram.tables.baselines import PooledRegressor as PooledRegressor
    from engram.tables.regressor import MolarClassifier as MolarClassifier
    from engram.tables.regressor import MolarRegressor as MolarRegressor
    from engram.tables.survival.regressor import CoxRegressor as CoxRegressor
    from engram.tables.survival.regressor import survival_target as survival_target

__getattr__, __dir__, __all__ = attach(__name__, __file__)
