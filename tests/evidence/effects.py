"""Coverage of intervals where values are missing: multiple imputation, and complete cases.

``python -m tests.evidence.effects`` simulates one site with 40 events in 100 rows: a number and a
class of which 30 % of the values are missing, the number's more often where a third column, which
is complete, is high. Rows have classes, or survival times whose imputation knows the event and the
Nelson-Aalen estimate. It prints the share of intervals of level 0.95 that cover each coefficient,
and their mean length.
"""

from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import typer
from scipy.special import expit

from engram.core.arrays import Array, Bools
from engram.scoring.intervals import quantile
from engram.tables.effects.imputation import impute, pool_estimates, rubin
from engram.tables.intervals import own_interval
from engram.tables.site import Rows, estimate_site
from engram.tables.survival.baseline import baseline_hazard
from engram.tables.survival.newton import NoMaximum, fit

EFFECTS: Final = np.array([0.5, 0.7, -0.4])
ROWS: Final = 100
EVENTS: Final = 40
MISSING: Final = 0.3
WAYS: Final = ("nothing missing", "complete cases", "multiple imputation")
_SHIFT: Final = -0.983  # logit of the share MISSING, averaged over a normal column
_DRAWS: Final = 20


class Sample(NamedTuple):
    """A simulated site: columns as they are, which values are missing, and the outcome."""

    x: Array
    missing: Bools
    y: Array  # classes, or times
    event: Array  # 1 for events; the classes themselves


def draw(rng: np.random.Generator, *, survival: bool) -> Sample:
    """Draws a site with ``EVENTS`` events on average, or exactly of survival times."""
    z = rng.normal(size=(ROWS, 3)) @ np.linalg.cholesky(0.6 * np.eye(3) + 0.4).T
    x = np.column_stack([z[:, 0], z[:, 1] > 0, z[:, 2]]).astype(np.float64)
    missing = np.zeros(x.shape, dtype=bool)
    missing[:, 0] = rng.random(ROWS) < expit(_SHIFT + x[:, 2])
    missing[:, 1] = rng.random(ROWS) < MISSING
    eta = x @ EFFECTS
    if not survival:
        y = (rng.random(ROWS) < expit(eta - 0.85)).astype(np.float64)
        return Sample(x, missing, y, y)
    times = rng.exponential(np.exp(-eta))
    end = np.sort(times)[EVENTS - 1]  # of the study
    return Sample(x, missing, np.minimum(times, end), (times <= end).astype(np.float64))


def intervals(sample: Sample, way: str, *, survival: bool, seed: int) -> Array:
    """Returns lower and upper limits of the three coefficients, shape (2, 3)."""
    x, some = sample.x, ~sample.missing.any(axis=1)
    if way == "complete cases":
        sample = Sample(x[some], sample.missing[some], sample.y[some], sample.event[some])
    tables = [Rows(sample.x, sample.y)]
    if way == "multiple imputation":
        holes = Rows(np.where(sample.missing, np.nan, x), sample.y)
        beside = None
        if survival:  # Breslow's estimate without effects is that of Nelson and Aalen
            own = baseline_hazard(Rows(x, sample.y, None, sample.event > 0), np.zeros(3))
            beside = np.column_stack([sample.event, own.cumulative_hazard(0.0)(sample.y)])
        tables = impute(holes, draws=_DRAWS, seed=seed, beside=beside)
    if survival:
        try:
            fits = [fit([rows._replace(event=sample.event > 0)]) for rows in tables]
        except NoMaximum:
            return np.full((2, 3), np.nan)
        coef, covariance, freedom = fits[0].coef, fits[0].covariance, np.inf
        if len(fits) > 1:
            coefs = np.stack([one.coef for one in fits])
            covariances = np.stack([one.covariance for one in fits])
            coef, covariance, freedom = rubin(coefs, covariances, EVENTS - 3.0)
        half = quantile(0.975, freedom) * np.sqrt(np.diag(covariance))
        return np.stack([coef - half, coef + half])
    sites = [estimate_site(rows.with_ones(), family="logistic") for rows in tables]
    site = pool_estimates(sites) if len(sites) > 1 else sites[0]
    return np.stack(own_interval(site))[:, :3]


def coverage(trials: int, *, survival: bool, first: int = 0) -> dict[str, Array]:
    """Returns by way the share of intervals that cover, and their mean length, shape (2, 3).

    Trials in which some table's likelihood has no maximum have no intervals, and count for none.
    """
    found: dict[str, list[Any]] = {way: [] for way in WAYS}
    for trial in range(first, first + trials):
        sample = draw(np.random.default_rng([17, trial]), survival=survival)
        for way in WAYS:
            low, high = intervals(sample, way, survival=survival, seed=trial)
            if np.isfinite([low, high]).all():
                found[way].append([(low <= EFFECTS) & (high >= EFFECTS), high - low])
    return {way: np.mean(each, axis=0) for way, each in found.items()}


def main(trials: Annotated[int, typer.Option(min=1)] = 1000) -> None:
    """Prints coverage and length by outcome and way."""
    print(f"{'outcome':<10}{'way':<22}{'coverage':<24}{'length':<24}")
    for survival in (False, True):
        for way, (covered, length) in coverage(trials, survival=survival).items():
            numbers = [" ".join(f"{value:.3f}" for value in each) for each in (covered, length)]
            outcome = "survival" if survival else "classes"
            print(f"{outcome:<10}{way:<22}{numbers[0]:<24}{numbers[1]:<24}")


if __name__ == "__main__":
    typer.run(main)
