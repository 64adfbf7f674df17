"""The first sentence of a comparison: who wins, and when nobody does."""

import re

import numpy as np
import pytest

import engram
from engram.compare.claims import Claims, in_words
from engram.compare.comparison_folder import find_runs
from engram.compare.differences import Difference
from engram.compare.power import Needed
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


def test_a_winner_is_named_where_every_interval_excludes_zero():
    means = {"ditto": 0.7, "local": 0.6, "fedavg": 0.5}
    shown = [{"ditto", "local"}, {"ditto", "fedavg"}]
    answer, title, *lines = in_words(claims(means, shown, best="ditto", simple=["local"]))
    assert answer == (
        "ditto (accuracy 70.0 %) is better than all others: 10.00 points ahead (5.00 to 15.00) of "
        "the strongest simple reference, local (accuracy 60.0 %)"
    )
    assert title == (
        "  ditto, the best on validation rows, on test rows of 100 clients and 5 seeds:"
    )
    assert lines == [
        "  it is better than local by 10.00 points (5.00 to 15.00); "
        "fedavg by 20.00 points (10.00 to 30.00)"
    ]


def test_a_method_that_beats_the_references_alone_is_no_winner():
    means = {"ditto": 0.7, "apfl": 0.69, "linear model, own": 0.6, "local": 0.5}
    shown = [{"ditto", "linear model, own"}, {"ditto", "local"}]
    simple = ["linear model, own", "local"]
    answer, *_, alike = in_words(claims(means, shown, best="ditto", simple=simple))
    assert answer == (
        "Better than the strongest simple reference, linear model, own (accuracy 60.0 %): ditto "
        "(accuracy 70.0 %), 10.00 points ahead (5.00 to 15.00)"
    )
    assert alike == "  no difference is shown from apfl (-29.00 to 31.00 points)"


def test_no_method_is_better_than_a_reference_whose_interval_holds_zero():
    means = {"ditto": 0.7, "constant, own": 0.72, "fedavg": 0.3}
    shown = [{"ditto", "fedavg"}, {"constant, own", "fedavg"}]
    answer, *_ = in_words(claims(means, shown, best="ditto", simple=["constant, own"]))
    assert answer == (
        "No method is better than the strongest simple reference, constant, own (accuracy 72.0 %): "
        "ditto (accuracy 70.0 %), the best on validation rows, is 2.00 points behind "
        "(-28.00 to 32.00)"
    )


def test_a_method_that_is_ahead_within_its_interval_is_not_shown_to_be_better():
    means = {"ditto": 0.74, "constant, own": 0.72}
    pair = "ditto", "constant, own"
    takes = {pair: Needed(12, 40, 100)}
    found = claims(means, [], best="ditto", simple=["constant, own"], needed=takes)
    answer, _, alike = in_words(found)
    assert answer == (
        "No method is shown to be better than the strongest simple reference, constant, own "
        "(accuracy 72.0 %): ditto (accuracy 74.0 %), the best on validation rows, is 2.00 points "
        "ahead (-28.00 to 32.00); about 12 to 40 seeds would show such a difference"
    )
    assert alike == (
        "  no difference is shown from constant, own (-28.00 to 32.00 points; about 12 to 40 seeds)"
    )
    many = {pair: Needed(60, np.inf, 400, more_clients=True)}
    answer, *_ = in_words(found._replace(needed=many))
    assert answer.endswith(
        "; about 60 to more than 400 clients would show such a difference, more seeds would not"
    )


def test_what_is_shown_against_one_model_for_all_is_told_before_the_references():
    means = {"fedavg": 0.5, "ditto": 0.7, "apfl": 0.68, "fedrep": 0.65, "local": 0.69}
    shown = [{"fedavg", "ditto"}, {"fedavg", "apfl"}]
    more = {"best": "ditto", "method": "ditto", "simple": ["local"], "common": "fedavg"}
    behind = (
        "No method is shown to be better than the strongest simple reference, local (accuracy "
        "69.0 %): ditto (accuracy 70.0 %), the best on validation rows, is 1.00 points ahead "
        "(-29.00 to 31.00)"
    )
    over = "Better than one model for all, fedavg (accuracy 50.0 %): "
    won = "ditto (accuracy 70.0 %), 20.00 points ahead (10.00 to 30.00)"
    assert in_words(claims(means, shown, **more))[0] == f"{over}{won}; apfl is, too. {behind}"
    three = in_words(claims(means, [*shown, {"fedavg", "fedrep"}], **more))[0]
    assert three == f"{over}{won}; apfl, fedrep are, too. {behind}"
    assert in_words(claims(means, shown[:1], **more))[0] == f"{over}{won}. {behind}"
    apfl = "apfl (accuracy 68.0 %), 18.00 points ahead (9.00 to 27.00)"
    assert in_words(claims(means, shown[1:], **more))[0] == f"{over}{apfl}. {behind}"
    assert in_words(claims(means, [], **more))[0] == behind
    beaten = claims(means, [*shown, {"local", "ditto"}], **more | {"best": "local"})
    assert "one model for all" not in in_words(beaten)[0]


def test_local_training_that_is_best_is_no_method_of_the_federation():
    means = {"local": 0.7, "fedavg": 0.6}
    found = claims(means, [], best="local", simple=["local"], method="fedavg")
    assert in_words(found)[0] == (
        "No method is better than the strongest simple reference, local (accuracy 70.0 %): fedavg "
        "(accuracy 60.0 %), the best method on validation rows, is 10.00 points behind "
        "(-20.00 to 40.00)"
    )


def test_a_reference_that_is_shown_to_be_better_is_named_first():
    means = {"local": 0.7, "fedavg": 0.6, "ditto": 0.5}
    shown = [{"local", "fedavg"}, {"local", "ditto"}]
    more = {"best": "local", "simple": ["local"], "method": "fedavg"}
    behind = (
        "fedavg (accuracy 60.0 %), the best method on validation rows, is 10.00 points behind "
        "(5.00 to 15.00)"
    )
    first = "local (accuracy 70.0 %), the strongest simple reference, is better than"
    assert in_words(claims(means, shown, **more))[0] == f"{first} all methods: {behind}"
    assert in_words(claims(means, shown[:1], **more))[0] == f"{first} the best method: {behind}"


def test_a_method_that_validation_picks_is_told_where_another_one_is_better():
    means = {"ditto": 0.61, "apfl": 0.7, "local": 0.6}
    found = claims(means, [{"apfl", "local"}], best="ditto", simple=["local"], method="ditto")
    assert in_words(found)[0] == (
        "Better than the strongest simple reference, local (accuracy 60.0 %): apfl (accuracy "
        "70.0 %), 10.00 points ahead (5.00 to 15.00); ditto (accuracy 61.0 %), the best on "
        "validation rows, is 1.00 points ahead (-29.00 to 31.00)"
    )


def test_without_a_reference_methods_alone_are_compared():
    means = {"ditto": 0.7, "fedavg": 0.6}
    assert in_words(claims(means, [], best="ditto"))[0] == (
        "No method is shown to be the best; ditto (accuracy 70.0 %) is the best on validation rows"
    )
    assert in_words(claims(means, [{*means}], best="ditto"))[0] == (
        "ditto (accuracy 70.0 %) is better than all others; fedavg is next, 10.00 points behind "
        "(5.00 to 15.00)"
    )


def test_lower_losses_are_better():
    means = {"ditto": 1.0, "local": 2.0}
    found = claims(means, [{"ditto", "local"}], best="ditto", simple=["local"], metric=LOSS)
    assert found.better("ditto", "local")
    assert in_words(found)[0] == (
        "ditto (mae 1) is better than all others: 1 ahead (0.5 to 1.5) of the strongest simple "
        "reference, local (mae 2)"
    )


@pytest.mark.parametrize(("seeds", "clients"), [(1, 20), (5, 2)])
def test_one_seed_or_two_clients_show_nothing_and_are_told_the_least(seeds, clients):
    means, shown = {"ditto": 0.9, "local": 0.1}, [{"ditto", "local"}]
    (line,) = in_words(
        claims(means, shown, best="ditto", simple=["local"], seeds=seeds, clients=clients)
    )
    assert line.startswith(
        "The mean of ditto (accuracy 90.0 %), the best on validation rows, is higher than that of "
        "local (accuracy 10.0 %), the strongest simple reference; "
    )
    assert "better than" not in line
    assert ("2 seeds are the least" in line) == (seeds == 1)
    assert ("3 are the least" in line) == (clients == 2)


@pytest.mark.parametrize(
    ("metric", "reference", "how"),
    [(ACCURACY, 0.95, "higher than"), (LOSS, 0.5, "lower than"), (LOSS, 0.9, "the same as")],
)
def test_one_seed_describes_which_mean_is_better_and_claims_nothing(metric, reference, how):
    means = {"ditto": 0.9, "linear": reference, "local": 0.8}
    (line,) = in_words(claims(means, [], best="ditto", simple=["linear"], metric=metric, seeds=1))
    one, other = line.split(f" is {how} that of ")
    assert ("linear" in one) == (how != "the same as")
    assert ("ditto" in other) == (how != "the same as")
    assert other.endswith(
        "; one seed shows no difference, whatever it is: 2 seeds are the least, 5 are better"
    )


@pytest.mark.parametrize(
    ("clients", "skewness", "told"), [(99, 0.2, True), (100, 1.1, True), (100, 0.9, False)]
)
def test_few_clients_or_skewed_differences_are_cautioned(clients, skewness, told):
    means = {"ditto": 0.7, "fedavg": 0.6}
    more = {"best": "ditto", "clients": clients, "skewness": skewness}
    last = in_words(claims(means, [], **more))[-1]
    start = "  more than 5 % of comparisons may make a false claim where"
    assert last.startswith(start) == (f"(here up to {skewness})" in last) == told


def test_scores_that_few_clients_have_are_told_apart_from_nothing():
    means = {"ditto": 0.9, "local": 0.1}
    found = claims(means, [], best="ditto")
    few = difference(0.8, -np.inf, np.inf, clients=2)
    found = found._replace(pairs={("ditto", "local"): few, ("local", "ditto"): few.turned})
    assert in_words(found)[-1] == "  fewer than 3 clients have the scores of local (2)"


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


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize(
    ("kind", "winner"),
    [("classes", CONSTANT), ("values", CONSTANT), ("own lines", LINEAR), ("one line", POOLED)],
)
def test_the_first_sentence_says_that_a_simple_reference_wins(tmp_path, kind, winner, seeds):
    data, told = federation(kind)
    few = {"local_steps": 1, "hidden": "4", "eval_every": 1, "clients_per_round": 6}
    found = engram.compare(
        data,
        methods=["ditto"],
        seeds=seeds,
        num_rounds=1,
        out=tmp_path / "runs",
        progress=False,
        **few,
        **told,
    )
    runs = find_runs(found.folder)
    (results,) = results_of(found.folder, runs, metrics_of(runs)[:1])
    claims, answer = results.claims, results.answer
    name, mean = claims.metric.name, claims.metric.in_words(claims.means[winner], 1)
    score = f"{winner} ({name} {mean}{' %' if claims.metric.percent else ''})"
    assert claims.strongest == winner
    assert score in answer
    assert f"{claims.method} ({name} " in answer
    assert claims.method not in claims.simple
    assert {UNTRAINED, "local"} <= {*claims.simple} & claims.means.keys()
    before = [run.metrics.loc[0, f"{name}-common"] for run in found.runs["fedavg"]]
    assert claims.means[UNTRAINED] == pytest.approx(np.mean(before))
    first = {
        f"{score}, the strongest simple reference, is better than ",
        f"No method is better than the strongest simple reference, {score}: ",
    }
    if seeds == 1:
        assert answer.startswith(f"The mean of {score}, the strongest simple reference, is ")
        assert "one seed shows no difference" in answer
    else:
        assert answer.startswith(tuple(first))
        assert re.search(r" behind \(\S+ to \S+\)", answer)
    assert str(found).startswith(answer + "\n")
    assert found.summary().attrs["answer"] == answer
    assert found.summary().loc[winner, name] == pytest.approx(claims.means[winner])
