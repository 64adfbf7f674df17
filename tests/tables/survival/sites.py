"""Sites with proportional hazards, for tests of what they share."""

import numpy as np

from engram.tables.site import Rows
from engram.tables.survival.partial import likelihood_sums, risk_sets

COEF = np.array([0.5, -0.4])


def draw_sites(coefs, size=60, seed=0):
    """Returns rows of sites with these coefficients, shape (M, d), a third of them censored."""
    rng, found = np.random.default_rng(seed), []
    for coef in np.asarray(coefs, dtype=float):
        x = rng.normal(size=(size, len(coef)))
        time = rng.exponential(np.exp(-x @ coef))
        end = np.quantile(time, 0.67)
        found.append(Rows(x, np.minimum(time, end), None, time <= end))
    return found


def with_column(sites, m, column):
    """Returns sites with one more column: that of site m, and 0 elsewhere."""
    extra = [site.x[:, column] * (i == m) for i, site in enumerate(sites)]
    pairs = zip(sites, extra, strict=True)
    return [site._replace(x=np.column_stack([site.x, more])) for site, more in pairs]


def partial_likelihood(rows, beta, ties="efron"):
    """Returns the sums of one stratum."""
    return likelihood_sums(risk_sets(rows, ties), beta)
