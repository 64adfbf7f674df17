"""Rows and figures of R's survival package, which figures.R wrote."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

HERE = Path(__file__).parent


def figures() -> list[dict[str, Any]]:
    """Every fit of R: coefficients, variance, log-likelihoods, concordance, a survival curve."""
    return json.loads((HERE / "figures.json").read_text())


def rows_of(figure: dict[str, Any]) -> tuple[pd.DataFrame, Any, Any, Any]:
    """Returns columns, event, time and entry, weights and sites of a fit's rows."""
    rows = pd.read_csv(HERE / f"{figure['rows']}.csv")
    weights = rows["weight"].to_numpy(float) if figure["weighted"] else None
    return rows[figure["columns"]], rows, weights, rows["site"].to_numpy()


def variance(figure: dict[str, Any]) -> np.ndarray:
    """Returns R's variance matrix."""
    return np.reshape(figure["variance"], (len(figure["coef"]), -1))
