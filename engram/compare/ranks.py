"""Ranks of methods over several federations, and whether they differ."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pandas as pd

from engram.compare.suite.ranks import ranks as ranks_of_scores
from engram.core.checks import must
from engram.runs.record import RunRecord
from engram.runs.results import metric_called
from engram.settings.errors import Refused

if TYPE_CHECKING:
    from engram.compare.comparison_api import Comparison

_LEAST: Final = 3  # methods, and federations, for Friedman's test


def ranks(
    comparisons: "Mapping[str, Comparison]", control: str, *, metric: str = ""
) -> pd.DataFrame:
    """Ranks methods by their mean scores over several federations (Demsar, JMLR 2006).

    Friedman's test asks whether all methods are alike; each is then compared with one control, by
    the normal distribution of differences of mean ranks, with Holm's correction. The federations
    are what is drawn at random: with few of them, only large differences of ranks are shown.

    Args:
        comparisons: By the name of the federation; at least three.
        control: The row that the others are compared with, such as that of training alone.
        metric: What is compared; by default each comparison's first.

    Returns:
        A row for each method that all comparisons have, the best first: a column for each
        federation with its score in the round that the comparison shows, ``rank``, its mean rank
        (1 is the best), ``p`` against the control, corrected, and ``friedman``, the p-value of all
        methods, the same in each row.

    Raises:
        Refused: There are too few federations or methods, or no such control or metric.
    """
    if len(comparisons) < _LEAST:
        raise Refused(must("comparisons", len(comparisons), f"at least {_LEAST} of them"))
    columns, signs = {}, {}
    for name, comparison in comparisons.items():
        columns[name], signs[name] = _scores(comparison, metric)
    table = pd.DataFrame(columns).dropna()
    if len(table) < _LEAST:
        expected = f"comparisons that have at least {_LEAST} methods in common"
        raise Refused(must("comparisons", ", ".join(table.index) or "none", expected))
    if control not in table.index:
        raise Refused(must("control", control, f"one of {', '.join(table.index)}"))
    scores = {name: list(row) for name, row in table.iterrows()}
    friedman, found = ranks_of_scores(scores, [signs[name] > 0 for name in table], control)
    table["rank"] = pd.Series({name: rank.mean for name, rank in found.items()})
    table["p"] = pd.Series({name: rank.p for name, rank in found.items()}, dtype=float)
    table["friedman"] = friedman
    return table.sort_values("rank")


def _scores(comparison: "Comparison", metric: str) -> "tuple[pd.Series[float], int]":
    (first, *_), *_ = comparison.runs.values()
    chosen = metric_called(metric, RunRecord.open(first.folder).metrics)
    return comparison.table[chosen.name].astype(float), chosen.sign
