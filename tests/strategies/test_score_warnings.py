"""Warnings of scores: each names its clients; one of clients without scores comes once."""

import pytest

from engram.scoring.score_columns import columns_of
from engram.scoring.scorekeeping import Scorekeeper, ScoreWarnings, Scoring
from engram.scoring.tasks import CLASSIFICATION

INF, NAN = float("inf"), float("nan")
NAMES = {0: "north", 1: "south", 2: "west"}
METRIC = CLASSIFICATION.metric
TUNED = "round 7: fine-tuning diverged for clients [{}]: if their inputs and targets are of usual "


def kept(**columns):
    """The scores of three clients."""
    models = tuple(which for which in ("-common", "-tuned") if f"loss{which}" in columns)
    scoring = Scoring((METRIC,), tuple(columns_of((METRIC,), {"": False})), models)
    scores = Scorekeeper(scoring, 3)
    columns["queries"] = [5, 5, 5]
    scores.take(7, {i: {n: column[i] for n, column in columns.items()} for i in range(3)})
    return scores


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"loss": [1.0, 1.1, 0.9]}, []),
        (
            {"loss": [1.0, INF, INF]},
            ["round 7: the loss on test rows is not finite for clients [south, west]"],
        ),
        (
            {"loss": [INF, 1.0, INF], "loss-common": [INF, 1.0, 1.0]},
            [
                "round 7: the common model's loss on test rows is not finite for clients [north]",
                "round 7: the loss on test rows is not finite for clients [west]",
            ],
        ),
        (
            {"loss": [1.0, INF, 1.0], "loss-tuned": [INF, INF, 1.0]},
            [
                "round 7: the loss on test rows is not finite for clients [south]",
                TUNED.format("north") + "size, lower adapt-lr",
            ],
        ),
        (
            {"loss": [1.0, NAN, 1.0]},
            ["round 7: clients [south] keep their scores to themselves"],
        ),
    ],
)
def test_a_warning_names_the_clients(columns, expected, warnings_of_engram):
    ScoreWarnings(private=False).see(7, kept(**columns), NAMES)
    said = [text for text in warnings_of_engram.messages if "the mean loss" not in text]
    assert said == expected


def test_who_tells_no_score_is_named_once_and_not_where_nobody_does(warnings_of_engram):
    some, more = kept(loss=[1.0, NAN, 1.0]), kept(loss=[1.0, NAN, NAN])
    warnings = ScoreWarnings(private=False)
    for scores in (some, some, more):
        warnings.see(7, scores, NAMES)
    assert [text[9:] for text in warnings_of_engram.messages] == [
        "clients [south] keep their scores to themselves",
        "clients [west] keep their scores to themselves",
    ]
    warnings_of_engram.clear()
    ScoreWarnings(private=True).see(7, more, NAMES)
    assert not warnings_of_engram.messages


def test_a_client_that_dominates_the_mean_is_named(warnings_of_engram):
    ScoreWarnings(private=False).see(7, kept(loss=[1.0, 1.1, 10**6]), NAMES)
    (text,) = warnings_of_engram.messages
    assert text == (
        "round 7: the mean loss is what clients [west] say, and no others; its median counts"
    )
