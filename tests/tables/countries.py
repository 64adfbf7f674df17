"""Six countries, of which two differ from the others."""

import numpy as np
import pandas as pd

COUNTRIES = np.array(["AUT", "BEL", "CAN", "DNK", "ESP", "FIN"])
BETA = np.array([1.0, -2.0, 0.5])


def frame(seed=0, rows=120):
    """Six countries; in Spain the first coefficient differs, and in Finland the intercept."""
    rng = np.random.default_rng(seed)
    country = np.repeat(COUNTRIES, rows)
    x = rng.normal(size=(len(country), 3)) * [1.0, 2.0, 0.5]
    eta = x @ BETA + 0.3 - 4 * (country == "ESP") * x[:, 0] + 5 * (country == "FIN")
    data = pd.DataFrame(x, columns=["income", "age", "hours"])
    data["country"] = country
    return data, eta, rng


def linear(seed=0, rows=120):
    data, eta, rng = frame(seed, rows)
    return data, eta + 0.4 * rng.normal(size=len(eta))


def classes(seed=0):
    data, eta, rng = frame(seed, rows=400)
    probability = 1 / (1 + np.exp(-eta))
    return data, np.where(rng.random(len(eta)) < probability, "yes", "no")
