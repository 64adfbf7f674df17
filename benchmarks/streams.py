"""Learners of streams on electricity and on simulated streams: losses, and time per row.

``python -m benchmarks.streams --electricity electricity.npz`` plays all learners of
``stream_peers``, row by row: each row is predicted, and then learned. Peers with a step size are
shown with their defaults, and with the step that is best on the first fifth of the stream.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from math import sqrt
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import numpy as np
import pandas as pd
import typer
from joblib import Parallel, delayed
from rich.table import Table
from scipy.special import expit
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from benchmarks.stream_peers import OURS, PEERS, Peer, Play, finite, named
from engram.cli.console import out
from engram.core.arrays import Array
from engram.online.estimators import OnlineClassifier
from engram.scoring.intervals import student

_SURE: Final = 1e-6  # probabilities are cut to [1e-6, 1 - 1e-6]
_BINS: Final = 10
_OURS: Final = "mixture"
_TURNS: Final = 5
_TUNED_ON: Final = 0.2  # of the rows


class Stream(NamedTuple):
    """Rows (T, d), and targets (T,): numbers, or labels 0 and 1."""

    x: Array
    y: Array
    labels: bool


class LearnerScore(NamedTuple):
    """Worth of a learner's predictions.

    Attributes:
        loss: Mean log loss, or mean squared error.
        other: Share of right labels, or mean absolute error.
        third: Mean distance of probabilities from frequencies, in ten bins of as many rows each; or
            regret: half the sum of squared errors minus that of least squares in hindsight.
        micros: Microseconds of a core per row, to predict and to learn it.
    """

    loss: float
    other: float
    third: float
    micros: float


def sparse(rng: np.random.Generator, rounds: int) -> Stream:
    """1000 columns, of which one informs: log-odds are twice its standard deviations."""
    x = rng.normal(size=(rounds, 1000))
    return Stream(x, _labels(rng, 2 * x[:, 0]), labels=True)


def drifting(rng: np.random.Generator, rounds: int) -> Stream:
    """20 columns; their coefficients, of length 3, turn by a radian in about 1000 rows."""
    x = rng.normal(size=(rounds, 20))
    w = rng.normal(size=20) + np.cumsum(0.03 * rng.normal(size=(rounds, 20)), axis=0)
    w *= 3 / np.linalg.norm(w, axis=1, keepdims=True)
    return Stream(x, _labels(rng, np.vecdot(x, w)), labels=True)


def heavy_tailed(rng: np.random.Generator, rounds: int) -> Stream:
    """20 columns of Student's t (4), in units of 1e-5 to 1e5, with t (3) for noise.

    One cell in 2000 is a million times too large.
    """
    x = rng.standard_t(4, size=(rounds, 20))
    y = x @ rng.normal(size=20) / 4 + rng.standard_t(3, size=rounds)
    x = (x + 10.0 ** rng.integers(-2, 3, 20)) * 10.0 ** rng.integers(-5, 6, 20)
    return Stream(np.where(rng.random(x.shape) < 0.0005, 1e6 * x, x), y, labels=False)


def _labels(rng: np.random.Generator, odds: Array) -> Array:
    return np.where(rng.random(len(odds)) < expit(odds), 1.0, 0.0)


def plain(rng: np.random.Generator, rounds: int) -> Stream:
    """Ten columns, with noise as large as the signal."""
    x = rng.normal(size=(rounds, 10))
    y = x @ rng.normal(size=10) / sqrt(10) + rng.normal(size=rounds)
    return Stream(x, y, labels=False)


SIMULATED: Final[Mapping[str, Callable[[np.random.Generator, int], Stream]]] = {
    "sparse": sparse,
    "drifting": drifting,
    "heavy-tailed": heavy_tailed,
    "plain": plain,
}


def score(stream: Stream, predictions: Array, micros: float) -> LearnerScore:
    """Scores predictions of all rows."""
    p, y = predictions, stream.y
    if not stream.labels:
        loss, columns = float(np.mean((p - y) ** 2)), StandardScaler().fit_transform(stream.x)
        least = float(np.mean((LinearRegression().fit(columns, y).predict(columns) - y) ** 2))
        regret = len(y) * (loss - least) / 2
        return LearnerScore(loss, float(np.mean(np.abs(p - y))), regret, micros)
    p = np.clip(p, _SURE, 1 - _SURE)
    loss = -float(np.mean(np.where(y > 0, np.log(p), np.log1p(-p))))
    bins = np.array_split(np.c_[p, y][np.argsort(p, kind="stable")], _BINS)
    apart = [abs(np.mean(part[:, 0] - part[:, 1])) for part in bins]
    return LearnerScore(loss, float(np.mean((p > 0.5) == (y > 0))), float(np.mean(apart)), micros)


def run(play: Play, rows: Sequence[object], stream: Stream) -> LearnerScore:
    """Predicts and learns rows one after the other."""
    stream = stream._replace(x=stream.x[: len(rows)], y=stream.y[: len(rows)])
    targets, predictions = stream.y.tolist(), np.empty(len(rows))
    begun = time.thread_time()
    for t, (row, y) in enumerate(zip(rows, targets, strict=True)):
        predictions[t] = finite(play(row, y))
    micros = 1e6 * (time.thread_time() - begun) / len(rows)
    return score(stream, predictions, micros)


def compete(name: str, peer: Peer, stream: Stream) -> dict[str, LearnerScore]:
    """Plays a learner with its defaults, and with the step that is best on the first rows."""
    rows = peer.rows(stream.x)
    with np.errstate(all="ignore"):  # what diverges says so by its loss
        found = {name: run(peer.start(stream.labels, None), rows, stream)}
        if peer.steps:
            few = int(_TUNED_ON * len(rows))
            losses = [
                run(peer.start(stream.labels, step), rows[:few], stream).loss for step in peer.steps
            ]
            best = peer.steps[int(np.argmin(losses))]
            found[f"{name}, tuned"] = run(peer.start(stream.labels, best), rows, stream)
    return found


def play_all(stream: Stream, peers: Mapping[str, Peer]) -> dict[str, LearnerScore]:
    """Plays all learners on one stream."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ours, where matrices are left out
        for peer in peers.values():  # what is compiled at the first rows is not timed
            run(peer.start(stream.labels, None), peer.rows(stream.x[:9]), stream)
        return {
            k: v for name, peer in peers.items() for k, v in compete(name, peer, stream).items()
        }


def table(title: str, labels: bool, found: Sequence[Mapping[str, LearnerScore]]) -> Table:
    """Prints means over streams, and paired intervals of 95 % of the loss minus ours."""
    heads = (
        ("log loss", "right, %", "calibration")
        if labels
        else ("squared error", "absolute", "regret")
    )
    shown = Table("learner", *heads, "loss - ours", "us a row", title=title)
    ours = np.array([scores[_OURS].loss for scores in found])
    for name in found[0]:
        loss, other, third, micros = np.mean([scores[name] for scores in found], axis=0)
        own = np.array([scores[name].loss for scores in found])
        gap = student(own - ours)
        limits = f" ({gap.low:.4f} to {gap.high:.4f})" if np.isfinite(gap.low) else ""
        shown.add_row(
            name,
            f"{loss:.4g}",
            f"{100 * other:.1f}" if labels else f"{other:.4g}",
            f"{third:.3f}" if labels else f"{third:.4g}",
            "" if name == _OURS else f"{gap.mean:.4f}{limits}",
            f"{micros:.0f}",
        )
    return shown


def times(dim: int, peers: Mapping[str, Peer], turns: int) -> Table:
    """Prints microseconds of a core per row of ``dim`` columns: medians of turns of 500 rows."""
    heads = ("predict and learn", "learn_one", "partial_fit of 500")
    shown = Table("learner", *heads, title=f"us a row, d = {dim}")
    x = np.random.default_rng(0).normal(size=(500, dim))
    stream = Stream(x, (x[:, 0] > 0).astype(np.float64), labels=True)
    rows, frame, pays = named(x), pd.DataFrame(named(x)), stream.y > 0
    for name, peer in peers.items():
        spent = []
        for _ in range(turns):
            micros = [run(peer.start(True, None), peer.rows(x), stream).micros]
            if name in OURS:
                model = OnlineClassifier(**OURS[name])
                model.partial_fit(frame[:9], pays[:9], [False, True])
                begun = time.thread_time()
                for row, label in zip(rows, pays, strict=True):
                    model.learn_one(row, label)
                middle = time.thread_time()
                model.partial_fit(frame, pays)
                ends = time.thread_time()
                micros += [1e6 * (middle - begun) / len(x), 1e6 * (ends - middle) / len(x)]
            spent.append(micros)
        shown.add_row(name, *(f"{value:.1f}" for value in np.median(spent, axis=0)))
    return shown


def main(
    electricity: Annotated[
        Path | None, typer.Option(help="The file with arrays x and y; left out if none.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=50, help="Rows of a simulated stream.")] = 5000,
    seeds: Annotated[int, typer.Option(min=1, help="Draws of each simulated stream.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Draws played at once.")] = 1,
) -> None:
    """Prints a table for each stream, and times."""
    peers = {k: peer for k, peer in PEERS.items() if not peer.package or find_spec(peer.package)}
    for name in PEERS.keys() - peers.keys():
        out.print(f"{name} is left out, as it is not installed")
    for name, draw in SIMULATED.items():
        drawn = [draw(np.random.default_rng(seed), rounds) for seed in range(seeds)]
        found = Parallel(jobs)(delayed(play_all)(stream, peers) for stream in drawn)
        out.print(table(f"{name}, {seeds} draws of {rounds}", drawn[0].labels, found))
    if electricity is not None:
        with np.load(electricity) as file:
            stream = Stream(file["x"].astype(np.float64), file["y"].astype(np.float64), labels=True)
        out.print(table(f"electricity, {len(stream.x)}", True, [play_all(stream, peers)]))
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in ``play_all``
        for dim in (10, 100):
            out.print(times(dim, peers, _TURNS))


if __name__ == "__main__":
    typer.run(main)
