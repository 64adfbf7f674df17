"""Answers of a node under local privacy: all in them has noise, or is not sent.

``engram.cohort.trainer.sending`` clips and noises the slots of an update. Here is the rest
of an answer. How many rows a client has, its training losses and its seconds are not sent: it says
that it has one row, and counts as much as any other client. Scores of metrics whose range is
bounded get noise, others are not sent.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from engram.core.checks import must
from engram.core.streams import Stream
from engram.guards.calibration import noise_multiplier
from engram.guards.guard import Guard
from engram.guards.noise import secret_noise
from engram.guards.presets import protections
from engram.scoring.score_columns import COMMON, TUNED, Column, ranges_of
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.wire.messages import Content
from engram.wire.wire import CLIENTS, METRICS, NOISE, ROSTER, SECONDS, WITHHELD, read_list

_REASON: Final = "too few rows, or others than it can use: its site knows more"


class Covers(NamedTuple):
    """Covers the answers of a training."""

    columns: Sequence[Column]  # of its scores
    guard: Guard  # adds noise to scores
    multiplier: float  # the noise multiplier, which is told beside scores; > 0

    def roster(self, content: Content) -> Content:
        """Returns a node's description without its clients' numbers of rows."""
        entry = dict(content[ROSTER])
        entry["examples"] = [1] * len(read_list(content[ROSTER], "clients", int))
        for key in ("left-out-reasons", "unscored-reasons"):
            entry[key] = [_REASON] * len(read_list(content[ROSTER], key, str))
        return {ROSTER: entry}

    def training(self, content: Content) -> Content:
        """Returns an answer to a round of training that has a noisy update alone."""
        details = dict(content[CLIENTS])
        clients = len(read_list(content[CLIENTS], "ids", int))
        details |= {"examples": [1] * clients, "losses": []}
        details.pop(SECONDS, None)
        metrics, told = {"num-examples": clients}, details
        return {**content, METRICS: metrics, CLIENTS: told}

    def scores(self, content: Content) -> Content:
        """Returns an answer to an evaluation with noise on bounded scores, and NaN for others.

        For its deviation see ``local_noise``. A missing score is the middle of its range before.
        """
        before, withheld = content[CLIENTS], withheld_scores(content, self.columns)
        details = dict(withheld[CLIENTS])
        del details[WITHHELD]
        clients = read_list(before, "ids", int)
        there = [column for column in self.columns if column.name in details]
        deviations = self.guard.report(ranges_of(there))
        bounded = [column for column in there if column.name in deviations]
        scores: dict[str, list[float]] = {}
        drawn = secret_noise(len(bounded) * len(clients), Stream.CLIENT_NOISE, *clients).double()
        for column, normal in zip(bounded, torch.split(drawn, len(clients)), strict=True):
            low, high = column.metric.low, column.metric.high
            values = torch.tensor(read_list(before, column.name, float), dtype=torch.float64)
            values = values.nan_to_num(nan=(low + high) / 2).clamp(low, high)
            scores[column.name] = (values + deviations[column.name] * normal).tolist()
        # Flower's own strategies expect means over clients.
        means = {name: sum(each) / len(each) for name, each in scores.items()}
        metrics = {"num-examples": len(clients), **means}
        told = {**details, NOISE: self.multiplier, **scores}
        return {METRICS: metrics, CLIENTS: told}

    def check_scores(self) -> None:
        """Refuses evaluations of which nothing would be sent.

        Raises:
            Refused: No metric has a range with two ends.
        """
        if not self.guard.report(ranges_of(self.columns)):
            names = ", ".join(dict.fromkeys(column.metric.name for column in self.columns))
            expected = "some whose range has two ends, such as accuracy, where privacy is local"
            raise Refused(must("metrics", names, expected))


class RowCovers:
    """Covers the answers of a training under example privacy.

    Numbers of rows are taken to be known, and are sent. Scores have no noise, and stay.
    """

    def roster(self, content: Content) -> Content:
        """Returns a node's description as it is."""
        return content

    def training(self, content: Content) -> Content:
        """Removes the seconds of an answer: they tell the number of rows."""
        details = dict(content[CLIENTS])
        details.pop(SECONDS, None)
        return {**content, CLIENTS: details}


def covers_of(experiment: Experiment) -> Covers | RowCovers | None:
    """Returns the covers of a training's answers; None without noise of its clients' own."""
    e, guard = experiment, protections(experiment)
    if guard.acts("report"):
        return Covers(scores_of(e), guard, noise_multiplier(e))
    return RowCovers() if e.hides_rows else None


def scores_of(e: Experiment) -> Sequence[Column]:
    """Returns the columns that scores of a network may have; none of other models."""
    return e.own.columns(e, (COMMON, TUNED))


def withheld_scores(content: Content, columns: Sequence[Column]) -> Content:
    """Returns an answer to an evaluation with NaN for scores, and one row for each client.

    Columns that it lacks, and those that nobody here knows, are not sent.
    """
    before = content[CLIENTS]
    clients = read_list(before, "ids", int)
    missing: dict[str, list[float]] = {
        column.name: [math.nan] * len(clients) for column in columns if column.name in before
    }
    details = {"server-round": before["server-round"], "ids": clients, **missing}
    told = {**details, "queries": [1] * len(clients), WITHHELD: True}
    return {METRICS: {"num-examples": len(clients)}, CLIENTS: told}
