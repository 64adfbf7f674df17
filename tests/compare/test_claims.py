"""The answer of a comparison and its table of differences: who wins, and when nobody does."""

import re

import numpy as np
import pytest

import engram
from engram.compare.claims import Claims, answer_of, difference_table
from engram.compare.comparison_folder import find_runs
from engram.compare.differences import Difference, Needed
from engram.compare.references import CONSTANT, LINEAR, POOLED
from engram.compare.report_rows import UNTRAINED
from engram.compare.results import metrics_of, results_of
from engram.scoring.metrics import METRICS

ACCURACY, LOSS = METRICS["accuracy"], METRICS["mae"]


def difference(mean, low, high, clients=20):
    return Difference(mean, low, high, clients, 5)


def claims(means, shown, *, best, simple=(), metric=ACCURACY, seeds=5, clients=100, **more):
    """Claims in which the intervals of the pairs in ``shown`` exclude zero."""
    pairs = {}
    for one, mine in means.items():
        for other, theirs in means.items():
            gap = mine - theirs
            reach = abs(gap) / 2 if {one, other} in shown else 0.3
            pairs[one, other] = difference(gap, gap - reach, gap + reach)
    return Claims(metric, best, means, pairs, simple, seeds, clients, **more)


def told(means, shown, **more):
    return answer_of(claims(means, shown, **more))


def test_a_winner_is_named_where_every_interval_excludes_zero():
    means = {"ditto": 0.7, "local": 0.6, "fedavg": 0.5}
    shown = [{"ditto", "local"}, {"ditto", "fedavg"}]
    found = claims(means, shown, best="ditto", simple=["local"])
    assert answer_of(found) == (
        "ditto beats all others. Versus the best simple baseline (local, accuracy 60.0 %): ditto "
        "70.0 %, +10.0 points (95 % CI 5.0 to 15.0)."
    )
    table = difference_table(found)
    assert table.title == (
        "Accuracy: ditto (best validation score) versus the others, test rows of 100 clients and 5 "
        "seeds"
    )
    assert table.heading == ["versus", "difference", "95 % interval", "needed"]
    local, fedavg = table.rows
    assert local == ["local", "10.0", "5.0 to 15.0", "-"]
    assert fedavg == ["fedavg", "20.0", "10.0 to 30.0", "-"]
    assert table.legend.keys() == {*table.heading[1:]}


def test_a_method_that_beats_the_baselines_alone_is_no_winner():
    means = {"ditto": 0.7, "apfl": 0.69, "own linear model": 0.6, "local": 0.5}
    shown = [{"ditto", "own linear model"}, {"ditto", "local"}]
    simple = ["own linear model", "local"]
    found = claims(means, shown, best="ditto", simple=simple)
    assert answer_of(found) == (
        "Better than the best simple baseline (own linear model, accuracy 60.0 %): ditto 70.0 %, "
        "+10.0 points (95 % CI 5.0 to 15.0)."
    )
    assert difference_table(found).rows[0] == ["apfl", "1.0†", "-29.0 to 31.0", "-"]


def test_no_method_beats_a_baseline_whose_interval_holds_zero():
    means = {"ditto": 0.7, "own constant": 0.72, "fedavg": 0.3}
    shown = [{"ditto", "fedavg"}, {"own constant", "fedavg"}]
    assert told(means, shown, best="ditto", simple=["own constant"]) == (
        "No method beats the best simple baseline (own constant, accuracy 72.0 %). Best validation "
        "score: ditto 70.0 %, -2.0 points (95 % CI -32.0 to 28.0)."
    )


def test_what_would_show_a_difference_is_told_and_is_a_column():
    means = {"ditto": 0.74, "own constant": 0.72}
    pair = "ditto", "own constant"
    found = claims(
        means, [], best="ditto", simple=["own constant"], needed={pair: Needed(12, 40, 100)}
    )
    start = (
        "No method beats the best simple baseline (own constant, accuracy 72.0 %). Best validation "
        "score: ditto 74.0 %, +2.0 points (95 % CI -28.0 to 32.0). Detecting 2.0 points needs "
    )
    assert answer_of(found) == f"{start}about 12 to 40 seeds."
    row = ["own constant", "2.0†", "-28.0 to 32.0", "about 12 to 40 seeds"]
    assert difference_table(found).rows == [row]
    many = found._replace(needed={pair: Needed(60, np.inf, 400, more_clients=True)})
    assert answer_of(many) == f"{start}about 60 to more than 400 clients; more seeds do not help."


def test_methods_that_beat_the_global_model_are_told_before_the_baselines():
    means = {"fedavg": 0.5, "ditto": 0.7, "apfl": 0.68, "fedrep": 0.65, "local": 0.69}
    shown = [{"fedavg", "ditto"}, {"fedavg", "apfl"}]
    more = {"best": "ditto", "method": "ditto", "simple": ["local"], "common": "fedavg"}
    behind = (
        "No method beats the best simple baseline (local, accuracy 69.0 %). Best validation score: "
        "ditto 70.0 %, +1.0 points (95 % CI -29.0 to 31.0)."
    )
    over = "Better than the global model (fedavg, accuracy 50.0 %): "
    won = "ditto 70.0 %, +20.0 points (95 % CI 10.0 to 30.0)"
    assert told(means, shown, **more) == f"{over}{won}; also apfl. {behind}"
    three = [*shown, {"fedavg", "fedrep"}]
    assert told(means, three, **more) == f"{over}{won}; also apfl, fedrep. {behind}"
    apfl = "apfl 68.0 %, +18.0 points (95 % CI 9.0 to 27.0)"
    assert told(means, shown[1:], **more) == f"{over}{apfl}. {behind}"
    assert told(means, [], **more) == behind
    beaten = told(means, [*shown, {"local", "ditto"}], **more | {"best": "local"})
    assert "global model" not in beaten


def test_local_training_that_is_best_is_no_method_of_the_federation():
    means = {"local": 0.7, "fedavg": 0.6}
    assert told(means, [], best="local", simple=["local"], method="fedavg") == (
        "No method beats the best simple baseline (local, accuracy 70.0 %). Best method by "
        "validation: fedavg 60.0 %, -10.0 points (95 % CI -40.0 to 20.0)."
    )


def test_a_baseline_that_is_shown_to_be_better_is_named_first():
    means = {"local": 0.7, "fedavg": 0.6, "ditto": 0.5}
    shown = [{"local", "fedavg"}, {"local", "ditto"}]
    more = {"best": "local", "simple": ["local"], "method": "fedavg"}
    first = "The best simple baseline (local, accuracy 70.0 %) beats"
    behind = "Best method by validation: fedavg 60.0 %, -10.0 points (95 % CI -15.0 to -5.0)."
    assert told(means, shown, **more) == f"{first} all methods. {behind}"
    assert told(means, shown[:1], **more) == f"{first} the best method. {behind}"


def test_the_best_validation_score_is_told_where_another_method_is_better():
    means = {"ditto": 0.61, "apfl": 0.7, "local": 0.6}
    assert told(means, [{"apfl", "local"}], best="ditto", simple=["local"], method="ditto") == (
        "Better than the best simple baseline (local, accuracy 60.0 %): apfl 70.0 %, +10.0 points "
        "(95 % CI 5.0 to 15.0). Best validation score: ditto 61.0 %, +1.0 points (95 % CI -29.0 to "
        "31.0)."
    )


def test_without_a_baseline_methods_alone_are_compared():
    means = {"ditto": 0.7, "fedavg": 0.6}
    assert told(means, [], best="ditto") == (
        "No method beats all others. Best validation score: ditto (accuracy 70.0 %)."
    )
    assert told(means, [{*means}], best="ditto") == (
        "ditto (accuracy 70.0 %) beats all others. Closest: fedavg 60.0 %, -10.0 points (95 % CI "
        "-15.0 to -5.0)."
    )


def test_lower_losses_are_better():
    means = {"ditto": 1.0, "local": 2.0}
    found = claims(means, [{"ditto", "local"}], best="ditto", simple=["local"], metric=LOSS)
    assert found.better("ditto", "local")
    assert answer_of(found) == (
        "ditto beats all others. Versus the best simple baseline (local, mae 2): ditto 1, +1 (95 % "
        "CI 0.5 to 1.5)."
    )
    assert difference_table(found).rows == [["local", "1", "0.5 to 1.5", "-"]]


def test_one_seed_or_two_clients_show_nothing_and_are_told_the_least():
    means, shown = {"ditto": 0.9, "local": 0.1}, [{"ditto", "local"}]
    for seeds, clients, few in [
        (1, 20, "1 seed: 2 are needed, better 5"),
        (5, 2, "2 clients: 3 are needed"),
    ]:
        found = claims(means, shown, best="ditto", simple=["local"], seeds=seeds, clients=clients)
        assert answer_of(found) == (
            "Best validation score (accuracy): ditto 90.0 %; best simple baseline: local 10.0 %. "
            f"No difference can be shown with {few}."
        )
        assert difference_table(found) is None


def test_few_clients_or_skewed_differences_are_cautioned():
    for clients, skewness, warned in [(99, 0.2, True), (100, 1.1, True), (100, 0.9, False)]:
        means = {"ditto": 0.7, "fedavg": 0.6}
        found = claims(means, [], best="ditto", clients=clients, skewness=skewness)
        caution = f"caution: more than 5 % .*{skewness}" if warned else ""
        assert re.match(caution, "".join(difference_table(found).notes))
        assert bool(difference_table(found).notes) == warned


def test_scores_that_few_clients_have_show_no_interval():
    means = {"ditto": 0.9, "local": 0.1}
    found = claims(means, [], best="ditto")
    few = difference(0.8, -np.inf, np.inf, clients=2)
    found = found._replace(pairs={("ditto", "local"): few, ("local", "ditto"): few.turned})
    assert difference_table(found).rows == [["local", "80.0†", "-", "3 clients (has 2)"]]


def federation(kind, clients=12):
    """Rows that a simple model predicts best, and the settings that say what they are.

    Classes: each client has one of its own most often, and inputs of noise. Values: likewise, each
    has a mean of its own. Own lines: each client's classes follow a direction of its own, and
    methods train for one step. One line: all follow the same direction, and have few rows.
    """
    rng, found = np.random.default_rng(0), []
    rows, columns = (24, 12) if kind == "one line" else (60, 4)
    line = rng.normal(size=columns)
    for client in range(clients):
        x = rng.normal(size=(rows, columns)).astype(np.float32)
        if kind == "classes":
            usual = np.full(rows, client % 3)
            y = np.where(rng.random(rows) < 0.7, usual, rng.integers(0, 3, rows))
        elif kind == "values":
            y = 5 * rng.normal() + rng.normal(size=rows)
        else:
            y = x @ (line if kind == "one line" else rng.normal(size=columns)) > 0
        found.append((x, y.astype(np.float32 if kind == "values" else np.int64)))
    classes = {"num_classes": 3 if kind == "classes" else 2}
    return found, {"task": "regression"} if kind == "values" else classes


@pytest.mark.parametrize(
    ("kind", "winner", "seeds"),
    [
        ("classes", CONSTANT, 1),
        pytest.param("values", CONSTANT, 2, marks=pytest.mark.full),
        pytest.param("own lines", LINEAR, 2, marks=pytest.mark.full),
        ("one line", POOLED, 2),
    ],
)
def test_the_first_sentence_says_that_a_simple_reference_wins(tmp_path, kind, winner, seeds):
    data, told = federation(kind)
    few = {"local_steps": 1, "hidden": "4", "eval_every": 1, "clients_per_round": 6}
    few |= {"num_rounds": 1, "progress": False, "out": tmp_path / "runs"}
    found = engram.compare(data, methods=["ditto"], seeds=seeds, **few, **told)
    runs = find_runs(found.folder)
    (results,) = results_of(found.folder, runs, metrics_of(runs)[:1])
    claims, answer = results.claims, results.answer
    name, mean = claims.metric.name, claims.metric.in_words(claims.means[winner], 1)
    score = f"{mean}{' %' if claims.metric.percent else ''}"
    assert claims.strongest == winner
    assert f": {claims.method} " in answer
    assert claims.method not in claims.simple
    assert {UNTRAINED, "local"} <= {*claims.simple} & claims.means.keys()
    before = [run.metrics.loc[0, f"{name}-common"] for run in found.runs["fedavg"]]
    assert claims.means[UNTRAINED] == pytest.approx(np.mean(before))
    if seeds == 1:
        assert f"; best simple baseline: {winner} {score}. No difference can be shown" in answer
    else:
        assert f"he best simple baseline ({winner}, {name} {score})" in answer
    assert str(found).startswith(answer + "\n")
    assert found.summary().attrs["answer"] == answer
    assert found.summary().loc[winner, name] == pytest.approx(claims.means[winner])
