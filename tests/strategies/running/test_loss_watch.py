"""Warnings of losses and scores: when they come, what they name, and that each comes once."""

import pytest

from engram.runs.run import Run
from engram.scoring.score_columns import columns_of
from engram.scoring.scorekeeping import Scorekeeper, Scoring
from engram.scoring.tasks import CLASSIFICATION
from engram.settings.families import METHODS, family
from engram.simulations.engine import simulate
from engram.strategies.running.rounds import LossWatch
from tests.support import small


def watch(losses):
    seen = LossWatch("fedavg.eta")
    for number, loss in enumerate(losses, start=1):
        seen.see(number, loss)


def test_it_comes_once_and_says_since_when_and_what_to_do(lines):
    watch([2.0, 1.0, 0.6, 0.3, 0.1, 0.1, 0.1, *[60.0] * 9])
    # Means of five rounds: least in round 7, (0.6 + 0.3 + 3 * 0.1) / 5; then one of five is 60.
    (line,) = lines
    assert line == (
        "round 8: the median training loss is 12.1, and was 0.24 in round 7 (means of 5 rounds): "
        "the run may diverge; if inputs and targets are of usual size, lower fedavg.eta"
    )


@pytest.mark.parametrize(
    "losses",
    [
        [2.3, 1.0, 0.5, 0.2, 0.1, 0.05, 0.01, 0.001, 0.0001, 0.002, 0.003],  # small ones differ
        [2.3, 2.0, 0.2, 2.2, 0.3, 2.1, 0.2, 1.9],  # cohorts differ
        [0.2, 0.5, 1.0, 1.5],  # less than ten times
        [],
    ],
)
def test_it_does_not_come_for_nothing(lines, losses):
    watch(losses)
    assert lines == []


def test_a_run_shows_it_every_loss_and_names_its_step_sizes(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(LossWatch, "see", lambda self, *found: seen.append((self._lower, *found)))
    simulate(small(method="local-moml"), tmp_path / "run")
    rows = Run.open(tmp_path / "run").rows()
    lower = "local-moml.alpha or local-moml.eta"
    told = "train-loss-median"  # which no single client owns
    assert seen == [(lower, r["round"], r[told]) for r in rows if told in r]
    assert len(seen) == 4


def test_every_method_says_what_its_step_sizes_are():
    for name in family("local"):
        assert f"{name}.eta" in METHODS[name].step_sizes()
    assert METHODS["fedadam"].step_sizes() == ["fedadam.eta", "fedadam.server-eta"]
    assert METHODS["apfl"].step_sizes() == ["apfl.eta"]  # its alpha is none


INF, NAN = float("inf"), float("nan")
NAMES = {0: "north", 1: "south", 2: "west"}
METRIC = CLASSIFICATION.metric
TUNED = "round 7: fine-tuning diverged for clients [{}]: if their inputs and targets are of usual "


def take(*evaluations, private=False):
    """Keeps evaluations of three clients, by column."""
    columns = tuple(columns_of((METRIC,), {"": False}))
    scores = Scorekeeper(Scoring((METRIC,), columns, private=private), 3)
    for each in evaluations:
        named = (each | {"queries": [5, 5, 5]}).items()
        scores.take(7, {i: {name: x[i] for name, x in named} for i in range(3)}, NAMES)


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
        ({"loss": [1.0, NAN, 1.0]}, ["round 7: clients [south] keep their scores to themselves"]),
    ],
)
def test_a_warning_names_the_clients(columns, expected, warnings_of_engram):
    take(columns)
    said = [text for text in warnings_of_engram.messages if "the mean loss" not in text]
    assert said == expected


def test_who_tells_no_score_is_named_once_and_not_where_nobody_does(warnings_of_engram):
    some, more = {"loss": [1.0, NAN, 1.0]}, {"loss": [1.0, NAN, NAN]}
    take(some, some, more)
    assert [text[9:] for text in warnings_of_engram.messages] == [
        "clients [south] keep their scores to themselves",
        "clients [west] keep their scores to themselves",
    ]
    warnings_of_engram.clear()
    take(more, private=True)
    assert not warnings_of_engram.messages


def test_a_client_that_dominates_the_mean_is_named(warnings_of_engram):
    take({"loss": [1.0, 1.1, 10**6]})
    (text,) = warnings_of_engram.messages
    assert text == (
        "round 7: the mean loss is what clients [west] say, and no others; its median counts"
    )
