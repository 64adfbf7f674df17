"""Things that users bring: networks, losses, metrics and rows, each with the settings it needs.

Four clients have 12, 7, 9 and 1 rows to learn from, which is less than a batch: so each local step
is one of all rows of a client, and a plain loop can repeat it. This file is also a plug-in, which
makes the networks, losses, metrics and data sets known to processes that import no tests.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional

import engram

ROWS = (12, 7, 9, 1)
TESTS = 5


class Case(NamedTuple):
    """Something that a user brings.

    Attributes:
        make: The network.
        rows: ``client -> (x, y)``, its training rows, then its test rows, in tensors as the plain
            loop takes them.
        loss: ``(outputs, targets) -> loss``, of the plain loop.
        settings: Of the run.
        arrays: The rows as the user has them, if that is not what the loop takes.
    """

    make: Any
    rows: Any
    loss: Any
    settings: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it
    arrays: Any = None


def starts(make):
    """A network that is drawn alike by everybody."""

    def made():
        with torch.random.fork_rng():
            torch.manual_seed(5)
            return make()

    return made


def drawn(*shape, client, of=0):
    return np.random.default_rng([of, client]).normal(size=shape).astype(np.float32)


def count(client):
    return ROWS[client] + TESTS


def classes(client, most=3):
    return np.arange(count(client)) % most


def numbers(client, *shape):
    return drawn(count(client), *shape, client=client)


# --- Losses and metrics ----------------------------------------------------------------------

WEIGHTS = torch.tensor([1.0, 5.0, 20.0])
weighted = nn.CrossEntropyLoss(weight=WEIGHTS)


def dice(outputs, targets):
    """A loss of a batch: it is no mean of losses of rows."""
    p, t = outputs.softmax(1), functional.one_hot(targets, outputs.shape[1]).float()
    return 1 - 2 * (p * t).sum() / (p.sum() + t.sum())


def likelihood(outputs, targets):
    """The negative log-likelihood of a normal distribution, which falls below zero."""
    mean, log_variance = outputs[:, 0], outputs[:, 1] - 3
    return 0.5 * (log_variance + (targets - mean) ** 2 * (-log_variance).exp())


def looked_at(outputs, targets):
    """A loss whose value is looked at, which ``vmap`` cannot do."""
    loss = functional.cross_entropy(outputs, targets)
    return 2 * loss if loss.item() > 1 else loss


def likelihood_of_rows(outputs, targets):
    """The likelihood as a metric."""
    return likelihood(outputs, targets).mean()


def distance(outputs, targets):
    """A metric that is wrong if rows are compared with each other."""
    return (outputs - targets).abs().mean()


def off_masks(outputs, targets):
    """The loss of masks as a metric."""
    return masks(outputs, targets)


def masks(outputs, targets):
    """A loss of targets of several axes."""
    return functional.binary_cross_entropy_with_logits(outputs[:, 0], targets)


# --- Networks --------------------------------------------------------------------------------


def linear(inputs, outputs=3):
    return lambda: nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs))


class Sensors(nn.Module):
    """Takes six channels of sixteen steps."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv1d(6, 4, 5), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.conv(x).tanh().mean(-1))


class Recurrent(nn.Module):
    """Takes sixteen steps of six numbers."""

    def __init__(self):
        super().__init__()
        self.net, self.head = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.net(x)[0][:, -1])


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers, self.codes = nn.Linear(4, 5), nn.Embedding(6, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, numbers, codes):
        return self.head((self.numbers(numbers) + self.codes(codes)).tanh())


class Frozen(nn.Module):
    """A frozen body, and buffers that are none of statistics."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8).requires_grad_(False)
        self.register_buffer("waves", torch.randn(8, 8))
        self.register_buffer("order", torch.arange(8).flip(0))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head((self.body(x) @ self.waves).cos()[:, self.order])


class Padded(nn.Module):
    """The mean embedding of tokens that are no padding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 5, padding_idx=0)
        self.head = nn.Linear(5, 3)

    def forward(self, tokens, mask):
        mask = mask.float()[..., None]
        return self.head((self.embed(tokens) * mask).sum(1) / mask.sum(1))


class Tied(nn.Module):
    """An embedding that is also the last layer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.net = nn.GRU(5, 5, batch_first=True)
        self.head = nn.Linear(5, 7)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.net(self.embed(tokens))[0])


# --- Rows ------------------------------------------------------------------------------------


def text(client):
    rng = np.random.default_rng([3, client])
    tokens = rng.integers(1, 9, (count(client), 6))
    lengths = rng.integers(1, 7, count(client))
    return tokens * (np.arange(6) < lengths[:, None])


def codes(client):
    return np.random.default_rng([4, client]).integers(6, size=count(client))


def phrases(client):
    return np.random.default_rng([5, client]).integers(7, size=(count(client), 9))


def grey(client):
    return np.random.default_rng([6, client]).integers(256, size=(count(client), 8)).astype("uint8")


def next_token(outputs, targets):
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


SORTS = np.array(["apple", "pear", "plum"])
VECTORS = {"x": lambda c: numbers(c, 4), "y": classes}
REGRESSION = {"task": "regression", "standardize": "none"}
cross_entropy = functional.cross_entropy

CASES = {
    "class-weighted loss": Case(linear(4), VECTORS, weighted, {"loss": "class-weighted-loss"}),
    "batch loss": Case(linear(4), VECTORS, dice, {"loss": "batch-loss"}),
    "negative loss": Case(
        linear(4, 2),
        VECTORS | {"y": lambda c: 0.1 * numbers(c)},
        likelihood_of_rows,
        REGRESSION | {"eta": 0.02, "loss": "negative-loss", "metrics": "likelihood-of-rows"},
    ),
    "loss with item": Case(linear(4), VECTORS, looked_at, {"loss": "loss-with-item"}),
    "own metric": Case(
        linear(4, 1),
        VECTORS | {"y": numbers},
        lambda outputs, targets: functional.mse_loss(outputs[:, 0], targets),
        REGRESSION | {"metrics": "distance"},
    ),
    "masks": Case(
        lambda: nn.Conv2d(2, 1, 3, padding=1),
        {"x": lambda c: numbers(c, 2, 5, 5), "y": lambda c: (numbers(c, 5, 5) > 0) * 1.0},
        masks,
        {"task": "regression", "loss": "masks", "metrics": "off-masks", "standardize": "none"},
    ),
    "sequence, channels first": Case(
        Sensors, {"x": lambda c: numbers(c, 6, 16), "y": classes}, cross_entropy
    ),
    "sequence, time first": Case(
        Recurrent, {"x": lambda c: numbers(c, 16, 6), "y": classes}, cross_entropy
    ),
    "volume": Case(
        lambda: nn.Sequential(nn.Conv3d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)),
        {"x": lambda c: numbers(c, 1, 4, 4, 4), "y": classes},
        cross_entropy,
    ),
    "two inputs": Case(
        TwoInputs,
        {"x.numbers": lambda c: numbers(c, 4), "x.codes": codes, "y": classes},
        cross_entropy,
    ),
    "string labels": Case(
        linear(4), VECTORS, cross_entropy, {}, VECTORS | {"y": lambda c: SORTS[classes(c)]}
    ),
    "named clients": Case(linear(4), VECTORS, cross_entropy),
    "frozen layers and buffers": Case(Frozen, VECTORS, cross_entropy),
    "padded text": Case(
        Padded, {"x.tokens": text, "x.mask": lambda c: text(c) > 0, "y": classes}, cross_entropy
    ),
    "tied weights": Case(
        Tied,
        {"x": lambda c: phrases(c)[:, :-1], "y": lambda c: phrases(c)[:, 1:]},
        next_token,
        {"task": "next-token", "num_classes": 7},
    ),
    "mixed types": Case(
        linear(8),
        {"x": lambda c: grey(c).astype("float32") / 255, "y": classes},
        cross_entropy,
        {"dataset": "mixed-types"},
    ),
    "frames with columns in another order": Case(
        linear(4), VECTORS, cross_entropy, {"dataset": "frames", "standardize": "none"}
    ),
    "frames, standardized": Case(
        linear(4), VECTORS, cross_entropy, {"dataset": "frames", "standardize": "federation"}
    ),
}
NAMES = np.array([11, 3, 2, 0])  # of "named clients"


def mixed_types(client):
    """One client's rows are bytes, and the others' are numbers from 0 to 1."""
    rows = grey(client)
    return (rows if client == 1 else rows.astype("float32") / 255), classes(client)


def frames(client):
    """Columns are in another order at every client; they are taken in that of their names."""
    columns = ["age", "days", "dose", "weight"]
    frame = pd.DataFrame(numbers(client, 4), columns=columns)
    return frame[columns[client:] + columns[:client]], classes(client)


def register():
    """Makes all of it known, by names."""
    for name, case in CASES.items():
        engram.model(starts(case.make), name.replace(" ", "-").replace(",", ""))
    for function, name in (
        (weighted, "class-weighted-loss"),
        (dice, "batch-loss"),
        (likelihood, "negative-loss"),
        (looked_at, "loss-with-item"),
        (masks, "masks"),
    ):
        engram.loss(function, name)
    for function in (likelihood_of_rows, distance, off_masks):
        engram.metric(better="lower")(function)
    engram.data(mixed_types)
    engram.data(frames)


if __name__ == "cases":  # as a plug-in, which imports no tests
    register()
