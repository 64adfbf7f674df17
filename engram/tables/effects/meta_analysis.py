"""Meta-analysis of one coefficient over sites: fixed and random effects, and heterogeneity.

Site m has an estimate y with a known variance v. With weights ``w = 1 / v``, Cochran's
``Q = sum w (y - mu)^2`` tests that all have one effect; ``I2 = (Q - (k - 1)) / Q`` is the share of
the estimates' variation that is not chance (Higgins and Thompson 2002). The scatter tau2 of the
sites' true effects is DerSimonian and Laird's (1986),

    (Q - (k - 1)) / (sum w - sum w^2 / sum w),

or that of restricted likelihood (``heterogeneity.restricted``), both at least 0.

Fixed effects weigh sites by w: they are about these sites alone, or about sites that do not differ.
Random effects weigh by ``1 / (v + tau2)``: they are about the mean of such sites. Their variance is
Hartung and Knapp's (2001), ``sum w (y - mu)^2 / ((k - 1) sum w)``, with Student's k - 1 degrees of
freedom. A prediction interval is where a further site's true effect lies.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from scipy.special import chdtrc

from engram.core.arrays import Array
from engram.core.checks import require
from engram.scoring.intervals import quantile
from engram.tables.effects.summary import Summary, shown_p, summarize
from engram.tables.heterogeneity import restricted

Scatter = Literal["REML", "DL"]
_NONE: Final = "-: the site's rows do not determine it: it has no part in the figures below"


class MetaAnalysis(NamedTuple):
    """A coefficient's estimates by site, and the effects over all sites; ``print`` shows both."""

    name: str  # of the coefficient
    sites: Summary  # a line for each site
    effects: Summary  # over all sites: a line for fixed effects, and one for random effects
    predicted: tuple[float, float]  # interval of a further site's effect
    q: float  # Cochran's Q
    freedom: int  # its degrees of freedom, k - 1
    p_value: float  # of the hypothesis that all sites have one effect
    i2: float  # share of variation that is not chance, in [0, 1)
    tau2: float  # scatter of the sites' true effects
    tau2_dl: float  # the same, by DerSimonian and Laird
    shared: float  # the coefficient that a model shares between the sites; NaN without one

    def __str__(self) -> str:
        low, high, shared = self.effects.printed(np.array([*self.predicted, self.shared]))
        lines = [
            str(self.sites),
            "",
            str(self.effects),
            f"a further site {low:.4g} .. {high:.4g}",
            f"heterogeneity  Q {self.q:.2f} ({self.freedom} df), p {shown_p(self.p_value)}; "
            f"I2 {100 * self.i2:.0f} %; tau2 {self.tau2:.4g} (DerSimonian-Laird "
            f"{self.tau2_dl:.4g})",
        ]
        if not np.isnan(shared):
            lines.append(f"the model shares {shared:.4g}")
        return "\n".join(lines)


def meta_analysis(
    name: str,
    sites: Sequence[str],
    coef: Array,
    error: Array,
    *,
    freedom: Array | float = np.inf,
    level: float = 0.95,
    scatter: Scatter = "REML",
    ratio: str = "",
    simultaneous: bool = False,
    shared: float = np.nan,
) -> MetaAnalysis:
    """Combines sites' estimates of one coefficient, of any model.

    Args:
        name: The coefficient's name.
        sites: Names of the k sites.
        coef: Their estimates, shape (k,).
        error: Their standard errors, shape (k,); infinite where there is no estimate.
        freedom: Degrees of freedom of these, for the sites' own intervals, shape (k,) or a number.
        level: Level of the intervals, in (0, 1).
        scatter: The estimate of tau2 that random effects have.
        ratio: What exponentials are called, such as ``hazard ratio``; empty for none.
        simultaneous: Whether the sites' intervals (Sidak's) and p-values (Holm's) hold at once.
        shared: The coefficient that a model shares between the sites, to be shown.

    Raises:
        ValueError: If fewer than two sites have an estimate with an error above 0.
    """
    require(0 < level < 1, "level", level, "in (0, 1)")
    require(scatter in ("REML", "DL"), "scatter", scatter, "REML or DL")
    some = np.isfinite(error) & (error > 0)
    if some.sum() < 2:
        raise ValueError(f"column {name} needs estimates of at least 2 sites, got {some.sum()}")
    title, known = f"{name}: own estimates of {len(sites)} sites", np.diag(error**2)
    lines = summarize(title, sites, coef, known, freedom, level, simultaneous, ratio)
    lines = lines._replace(first="site", none=_NONE)
    y, v = coef[some], error[some] ** 2
    w, k = 1 / v, int(some.sum())
    mean = float(w @ y / w.sum())
    q = float(w @ (y - mean) ** 2)
    dl = max(0.0, (q - (k - 1)) / float(w.sum() - w @ w / w.sum()))
    tau2 = float(restricted(y[:, None], v[:, None])[0]) if scatter == "REML" else dl
    wide = 1 / (v + tau2)
    center = float(wide @ y / wide.sum())
    variance = float(wide @ (y - center) ** 2 / ((k - 1) * wide.sum()))
    both = np.array([mean, center]), np.diag([1 / w.sum(), variance])
    title, names = f"{name}: effects over {k} sites", ("fixed effects", "random effects")
    effects = summarize(title, names, *both, np.array([np.inf, k - 1.0]), level, ratio=ratio)
    reach = float(quantile((1 + level) / 2, k - 1)) * (tau2 + variance) ** 0.5
    return MetaAnalysis(
        name,
        lines,
        effects._replace(first="effects"),
        (center - reach, center + reach),
        q,
        k - 1,
        float(chdtrc(k - 1, q)),
        max(0.0, 1 - (k - 1) / q) if q else 0.0,
        tau2,
        dl,
        shared,
    )
