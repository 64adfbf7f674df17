"""Ranks of methods over federations, against scipy and statsmodels."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import friedmanchisquare, norm
from statsmodels.stats.multitest import multipletests

import engram
from engram.settings.errors import Refused

SCORES = {  # of four methods on five federations
    "local": [0.50, 0.60, 0.70, 0.40, 0.50],
    "fedavg": [0.55, 0.58, 0.60, 0.45, 0.52],
    "ditto": [0.70, 0.71, 0.72, 0.65, 0.66],
    "apfl": [0.69, 0.70, 0.75, 0.60, 0.66],
}


@pytest.fixture
def comparisons(tmp_path):
    """Comparisons with given tables, of a run that was recorded."""
    run = engram.simulate(method="fedavg", num_rounds=1, out=tmp_path / "run", progress=False)
    found = {}
    for number in range(5):
        scores = {name: each[number] for name, each in SCORES.items()}
        table = pd.DataFrame({"accuracy": scores})
        table["loss"] = 1 - table["accuracy"]
        found[f"data {number}"] = SimpleNamespace(runs={"fedavg": [run]}, table=table)
    return found


def test_ranks_are_demsars(comparisons):
    found = engram.ranks(comparisons, "local")
    assert [*found.index[:2]] == ["ditto", "apfl"]
    # By hand: with ditto and apfl alike in the last one, 1.5 each.
    assert found["rank"].to_dict() == {"ditto": 1.3, "apfl": 1.7, "fedavg": 3.4, "local": 3.6}
    assert found["friedman"].iloc[0] == pytest.approx(friedmanchisquare(*SCORES.values()).pvalue)
    z = (found["rank"].drop("local") - 3.6) / np.sqrt(4 * 5 / (6 * 5))
    expected = multipletests(2 * norm.sf(z.abs()), method="holm")[1]
    np.testing.assert_allclose(found["p"].drop("local"), expected)
    assert np.isnan(found["p"]["local"])
    assert found["data 0"].to_dict() == {name: each[0] for name, each in SCORES.items()}


def test_lower_losses_have_better_ranks(comparisons):
    found = engram.ranks(comparisons, "local", metric="loss")
    assert found["rank"].to_dict() == {"ditto": 1.3, "apfl": 1.7, "fedavg": 3.4, "local": 3.6}


def test_methods_that_a_comparison_lacks_are_left_out(comparisons):
    comparisons["data 0"].table = comparisons["data 0"].table.drop("apfl")
    assert "apfl" not in engram.ranks(comparisons, "local").index


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"control": "fedper"}, "control must be one of .*, got 'fedper'"),
        ({"control": "local", "metric": "f1"}, "metric must be one of accuracy, loss, got 'f1'"),
    ],
)
def test_a_control_or_metric_that_is_not_there_is_refused_in_a_line(comparisons, given, words):
    with pytest.raises(Refused, match=words):
        engram.ranks(comparisons, **given)


def test_two_federations_are_too_few(comparisons):
    some = dict(list(comparisons.items())[:2])
    with pytest.raises(Refused, match="comparisons must be at least 3 of them, got 2"):
        engram.ranks(some, "local")
