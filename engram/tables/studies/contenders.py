"""The methods that are compared on a table: references, the simplest first, and MOLAR."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from engram.tables.adaptive_models import Adaptive, AdaptiveClassifier, AdaptiveRegressor
from engram.tables.baselines import (
    DebiasedRegressor,
    IndividualRegressor,
    LassoRegressor,
    PooledRegressor,
)
from engram.tables.families import FamilyName
from engram.tables.model import MultitaskModel
from engram.tables.regressor import MolarClassifier, MolarRegressor
from engram.tables.shrinkage import Option
from engram.tables.studies.references import (
    Constant,
    FixedEffects,
    Mixed,
    Penalized,
    Pooled,
    Robust,
)

Make = Callable[[float], MultitaskModel]
Molar = MolarRegressor | MolarClassifier

GRID: Final = (0.05, 0.35, 0.7, 1.0, 2.0)
"""Values of each method's constant, in units of the noise, as in Appendix J.2."""
_REACHES: Final = (2.0, 3.0, 4.5, 9.0)
"""Values of adaptive MOLAR's threshold, in standard deviations."""
_FOLDS: Final = 4  # of cross-validation of RM and of adaptive MOLAR


class Contender(NamedTuple):
    """A method, with the choices that validation makes."""

    # By the name that tables show, ``constant -> model``. The first variant's constant is tuned;
    # the others reuse it, and those that cannot be fitted are not chosen.
    variants: dict[str, Make]
    grid: Sequence[float]  # of the constant; (0,) if there is none
    folds: int = 1  # by cross-validation within all rows but the tests; 1: on validation rows
    # Whether a larger constant, and a later variant, share more between tasks. Where losses do not
    # tell them from the best, as with few rows, they are chosen, since sharing is safer.
    simplest: bool = False
    # Whether it learns from columns that are constant within tasks, too: as it can without
    # intercepts of the tasks' own that are free.
    site_level: bool = False


def molar(family: FamilyName, option: Option, c: float) -> Molar:
    """Returns MOLAR for a family; undetermined coefficients of a task are the shared ones."""
    options: dict[str, Any] = {"option": option, "c": c, "undetermined": "shared"}
    if family == "logistic":
        return MolarClassifier(**options)
    return MolarRegressor(family=family, **options)


def adaptive(family: FamilyName, c: float, alike: float = 1.0) -> Adaptive:
    """Returns adaptive MOLAR for a family."""
    if family == "logistic":
        return AdaptiveClassifier(c=c, alike=alike)
    return AdaptiveRegressor(family=family, c=c, alike=alike)


def methods_for(family: FamilyName, *, paper: bool = False) -> dict[str, Contender]:
    """Returns the methods that are compared, by name, references first, the simplest of all first.

    Args:
        family: The family of models.
        paper: The paper's methods alone (J.2).
    """
    hard = Contender({"": lambda c: molar(family, "hard", c)}, GRID)
    soft = Contender({"": lambda c: molar(family, "soft", c)}, GRID)
    ours = {"MOLAR, hard": hard, "MOLAR, soft": soft}
    if paper and family != "linear":
        return {"alone": _plain(partial(molar, family, "hard", 0.0)), **ours}
    if paper:
        return {
            "OLS": _plain(IndividualRegressor),
            "LASSO": Contender({"": lambda c: LassoRegressor(c=c)}, GRID),
            "Pool": _plain(PooledRegressor),
            "RM": Contender({"": lambda c: DebiasedRegressor(c=c)}, GRID),
            **ours,
        }
    alike = {"": 1.0, " tested": 0.05, " alike": 0.0}
    return {
        "constant": _plain(partial(Constant, family=family)),
        "pooled": _plain(partial(Pooled, family=family))._replace(site_level=True),
        "fixed effects": _plain(partial(FixedEffects, family=family)),
        "alone": _plain(partial(molar, family, "hard", 0.0)),
        "ridge": _plain(partial(Penalized, family=family)),
        "LASSO": _plain(partial(Penalized, family=family, penalty="lasso")),
        "mixed": Contender(
            {
                " intercepts": lambda c: Mixed(family=family, slopes=False),
                " slopes": lambda c: Mixed(family=family),
            },
            (0.0,),
            _FOLDS,
            site_level=True,
        ),
        "RM": Contender({"": lambda c: Robust(family=family, c=c)}, GRID, _FOLDS),
        **ours,
        "MOLAR, adaptive": Contender(
            {name: partial(adaptive, family, alike=level) for name, level in alike.items()},
            _REACHES,
            _FOLDS,
            simplest=True,
        ),
    }


def _plain(make: Callable[[], MultitaskModel]) -> Contender:
    return Contender({"": lambda c: make()}, (0.0,))
