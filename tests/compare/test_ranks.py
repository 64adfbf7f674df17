"""Ranks over federations, against pandas, scipy and statsmodels."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

import engram
from engram.compare.ranks import rank_methods
from engram.scoring.intervals import holm
from engram.settings.errors import Refused
from tests.samples import entry

_RNG = np.random.default_rng(0)
_SHIFTS = {"a": 0, "b": 1, "c": 0.3, "d": 2}
_SCORES = {name: list(_RNG.normal(shift, 1, 14).round(1)) for name, shift in _SHIFTS.items()}


def test_ranks_are_means_with_students_intervals():
    _, found = rank_methods(_SCORES, [True] * 14, "a")
    each = pd.DataFrame(_SCORES).rank(axis=1, ascending=False)
    assert list(found) == list(each.mean().sort_values().index)
    for name, rank in found.items():
        low, high = stats.t.interval(0.95, 13, each[name].mean(), stats.sem(each[name]))
        assert rank[:3] == pytest.approx((each[name].mean(), max(1, low), min(4, high)))


def test_methods_that_tie_everywhere_do_not_differ():
    friedman, found = rank_methods({"a": [1, 2], "b": [1, 2], "c": [1, 2]}, [True, True], "a")
    assert friedman == 1
    assert {rank.mean for rank in found.values()} == {2.0}
    assert found["b"].p == found["c"].p == 1


def test_a_false_difference_is_as_rare_as_the_level_says():
    for federations, methods in [(2, 12), (3, 6), (5, 25), (10, 6)]:
        rng = np.random.default_rng(1)
        names = [str(number) for number in range(methods)]
        wrong = 0
        for _ in range(400):
            scores = {name: list(rng.normal(size=federations)) for name in names}
            _, found = rank_methods(scores, [True] * federations, names[0])
            wrong += any(rank.p is not None and rank.p < 0.05 for rank in found.values())
        with entry(federations, methods):
            assert wrong <= stats.binom.ppf(0.999, 400, 0.05)


def test_holm_is_statsmodels():
    for seed in range(5):
        p = np.random.default_rng(seed).uniform(0, 0.1, 7)
        found = np.delete(holm(np.insert(p, 3, np.nan)), 3)  # NaN is no hypothesis
        assert found == pytest.approx(multipletests(p, method="holm")[1])


def test_too_few_are_refused():
    for scores in ({"a": [1, 2], "b": [2, 1]}, {"a": [1], "b": [2], "c": [3]}):
        with pytest.raises(ValueError, match="at least 3 methods and 2 federations, got"):
            rank_methods(scores, [True] * len(scores["a"]), "a")


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
    assert found["friedman"].iloc[0] == pytest.approx(
        stats.friedmanchisquare(*SCORES.values()).pvalue
    )
    z = (found["rank"].drop("local") - 3.6) / np.sqrt(4 * 5 / (6 * 5))
    expected = multipletests(2 * stats.norm.sf(z.abs()), method="holm")[1]
    np.testing.assert_allclose(found["p"].drop("local"), expected)
    assert np.isnan(found["p"]["local"])
    assert found["data 0"].to_dict() == {name: each[0] for name, each in SCORES.items()}


def test_lower_losses_have_better_ranks(comparisons):
    found = engram.ranks(comparisons, "local", metric="loss")
    assert found["rank"].to_dict() == {"ditto": 1.3, "apfl": 1.7, "fedavg": 3.4, "local": 3.6}


def test_methods_that_a_comparison_lacks_are_left_out(comparisons):
    comparisons["data 0"].table = comparisons["data 0"].table.drop("apfl")
    assert "apfl" not in engram.ranks(comparisons, "local").index


def test_what_cannot_be_ranked_is_refused_in_a_line(comparisons):
    for given, words in [
        ({"control": "fedper"}, "control must be one of .*, got 'fedper'"),
        ({"control": "local", "metric": "f1"}, "metric must be one of accuracy, loss, got 'f1'"),
    ]:
        with pytest.raises(Refused, match=words):
            engram.ranks(comparisons, **given)
    two = dict(list(comparisons.items())[:2])
    with pytest.raises(Refused, match="comparisons must be at least 3 of them, got 2"):
        engram.ranks(two, "local")
