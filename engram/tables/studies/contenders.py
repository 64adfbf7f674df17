"""The methods that are compared on a table: references, the simplest first, and MOLAR."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from engram.core.arrays import Array
from engram.scoring.intervals import mean_and_error
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
_MOST: Final = 8  # constants that are added at either end
_GAIN: Final = 1e-9  # of a loss: less is a tie, as where a larger constant changes nothing any more


class Choice(NamedTuple):
    """A constant chosen by validation."""

    constant: float
    losses: Array  # validation losses with it, by task
    edge: bool  # whether the least loss is at an end all the same: a lower one may lie beyond


def choose(
    losses: Callable[[float], Array],
    grid: Sequence[float],
    *,
    simplest: bool = False,
    widen: bool = True,
) -> Choice:
    """Returns the best constant of a grid that is extended, by its own ratios, where it ends.

    Args:
        losses: The validation losses of a constant, by task. The best has the least mean.
        grid: Ascending and positive, or a single constant of any value, which is not extended.
        simplest: Whether to return the largest constant that ``is_tie`` does not tell from it.
        widen: Whether to extend the grid.
    """
    found = {c: losses(c) for c in grid}
    for _ in range(_MOST if widen and len(grid) > 1 else 0):
        beyond = _beyond(found)
        if beyond is None:
            break
        found[beyond] = losses(beyond)
    best = min(found, key=lambda c: found[c].mean())
    ends = (grid[0], grid[-1])
    edge = len(grid) > 1 and _beyond(found) is not None if widen else best in ends
    if simplest:
        best = max(c for c in found if is_tie(found[c], found[best]))
    return Choice(best, found[best], edge)


def is_tie(own: Array, best: Array) -> bool:
    """Returns whether losses exceed the best ones by at most one standard error, over tasks.

    It is the rule of Breiman, Friedman, Olshen, Stone. Classification and Regression Trees. 1984,
    Sec. 3.4.3, for paired differences.
    """
    gap, error = mean_and_error(own - best)
    return bool(gap <= (0 if error is None else error))


def _beyond(found: dict[float, Array]) -> float | None:
    """Next constant beyond the end with the least loss; None if the least is inside."""
    means = {c: float(each.mean()) for c, each in found.items()}
    low, *_, high = order = sorted(means)
    for end, inner in ((low, order[1:2]), (high, order[-2:-1])):
        least = min(means.values()) >= means[end]
        if least and all(means[end] < means[c] * (1 - _GAIN) for c in inner):
            return end * end / inner[0]
    return None


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
    if family == "logistic":
        return MolarClassifier(option=option, c=c, undetermined="shared")
    return MolarRegressor(family=family, option=option, c=c, undetermined="shared")


def adaptive(family: FamilyName, c: float, alike: float = 1.0) -> Adaptive:
    """Returns adaptive MOLAR for a family."""
    if family == "logistic":
        return AdaptiveClassifier(c=c, alike=alike)
    return AdaptiveRegressor(family=family, c=c, alike=alike)


def methods_for(family: FamilyName, *, paper: bool = False) -> dict[str, Contender]:
    """Returns the methods that are compared, by name, references first, the simplest of all first.

    With ``paper`` they are the paper's methods alone (J.2).
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
    levels: dict[str, Make] = {n: partial(adaptive, family, alike=p) for n, p in alike.items()}
    effects: dict[str, Make] = {
        " intercepts": lambda c: Mixed(family=family, slopes=False),
        " slopes": lambda c: Mixed(family=family),
    }
    return {
        "constant": _plain(partial(Constant, family=family)),
        "pooled": _plain(partial(Pooled, family=family))._replace(site_level=True),
        "fixed effects": _plain(partial(FixedEffects, family=family)),
        "alone": _plain(partial(molar, family, "hard", 0.0)),
        "ridge": _plain(partial(Penalized, family=family)),
        "LASSO": _plain(partial(Penalized, family=family, penalty="lasso")),
        "mixed": Contender(effects, (0.0,), _FOLDS, site_level=True),
        "RM": Contender({"": lambda c: Robust(family=family, c=c)}, GRID, _FOLDS),
        **ours,
        "MOLAR, adaptive": Contender(levels, _REACHES, _FOLDS, simplest=True),
    }


def _plain(make: Callable[[], MultitaskModel]) -> Contender:
    return Contender({"": lambda c: make()}, (0.0,))
