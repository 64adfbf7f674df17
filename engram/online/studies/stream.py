"""Federated online learning: the regret of servers of clients with streams.

In round t each client takes the gradient of its next row at the round's model. Regret is the sum
over rounds of the mean loss of these rows at that model, less that of the best fixed model.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from rich.table import Table
from scipy.optimize import minimize
from scipy.special import log_softmax

from engram.cli.console import new_table
from engram.compare.figures import COLORS, finish, panels
from engram.core.arrays import Array
from engram.core.types import Params
from engram.data.federated import FederatedData
from engram.data.load_federation import federated_data
from engram.online.studies.server_steps import STEPS, first_model, train_rounds, tune
from engram.online.studies.settings import UniversalStreamSettings
from engram.settings.errors import Refused, RunStopped
from engram.settings.experiment import Experiment
from engram.settings.fingerprint import source_root
from engram.settings.settings_files import read_settings
from engram.simulations.job_pool import Pool, Row, Tell
from engram.studies.study import Report

_PRESET: Final = source_root() / "engram" / "simulations" / "presets" / "online.toml"
_RUNS: Final = 11  # of the initial grid
SHARES: Final = (0.25, 1.0, 4.0)  # of the default radius, since the right one is unknown
_CAPTION: Final = """\
Sum over rounds of the mean loss (nats) of the round's rows at the round's
model, less that of the best fixed model of all, and of the best within the
default radius of the first model. Tuned: the best step size in hindsight, on
a grid of factors of 2; of the ensemble nothing is tuned."""


class StreamOfRounds(NamedTuple):
    """The rows of all rounds."""

    x: Array  # inputs, and 1, shape (rounds, rows, features + 1)
    y: npt.NDArray[np.int64]  # classes, shape (rounds, rows)
    # Weights of a round's rows, shape (rows,): proportional to the number of rows that a row's
    # client holds, with sum 1.
    weights: Array
    start: Array  # the model of round 1, shape (classes, features + 1)

    def losses(self, models: Array) -> Array:
        """Returns each round's loss in nats, (rounds,).

        Models have shape (rounds, classes, features + 1), or (1, ...) for the same in all rounds.
        """
        log_shares = log_softmax(self.x @ models.transpose(0, 2, 1), axis=2)
        picked = np.take_along_axis(log_shares, self.y[..., None], axis=2)[..., 0]
        return picked @ -self.weights


class Course(NamedTuple):
    """The losses of a server with a certain step size."""

    name: str  # the server's name in ``STEPS``
    size: float  # its step size or radius
    way: str  # ``default``, ``tuned``, or a radius's ratio to the default one
    losses: Array  # losses of its rounds, in nats
    # Sums of losses by size, if tuned; infinite where it diverged.
    tried: dict[float, float]


def read_stream(dataset: str, rounds: int | None) -> tuple[Experiment, FederatedData]:
    """Returns the federation of ``simulations/presets/online.toml`` on a data set's rows.

    By default there are as many rounds as the client with the fewest rows can fill.

    Raises:
        Refused: If there are not enough rows for so many rounds.
        DataError: As ``federated_data``.
    """
    settings = read_settings(_PRESET) | {"dataset": dataset}
    e = Experiment.from_config(settings)
    data = federated_data(e)
    most = min(len(rows) for rows in data.train.rows) // e.batch_size
    rounds = most if rounds is None else rounds
    if not 1 <= rounds <= most:
        raise Refused(f"--rounds must be 1 to {most}, the rows of each client, got {rounds}")
    return Experiment.from_config(settings | {"num-rounds": rounds}), data


def stream_of(e: Experiment, data: FederatedData) -> StreamOfRounds:
    """Returns the rows of a federation of linear models, by rounds."""
    clients = range(e.num_clients)
    numbers = [
        np.concatenate([data.train.next_rows(c, t, e.batch_size) for c in clients])
        for t in range(1, e.num_rounds + 1)
    ]
    x, y = data.train.take(torch.from_numpy(np.stack(numbers)))
    x = x.flatten(2).double()
    held = np.array([len(rows) for rows in data.train.rows], dtype=np.float64)
    return StreamOfRounds(
        torch.cat([x, torch.ones_like(x[..., :1])], dim=2).numpy(force=True),
        y.numpy(force=True),
        np.repeat(held / held.sum() / e.batch_size, e.batch_size),
        _matrix(first_model(e, data)),
    )


def _matrix(model: Params) -> Array:
    weight, bias = (model[f"dense0.{name}"].numpy(force=True) for name in ("weight", "bias"))
    return np.column_stack([weight, bias]).astype(np.float64)


def best_fixed(stream: StreamOfRounds, radius: float = np.inf) -> Array:
    """Returns the model with the least total loss within ``radius`` of the first one.

    By L-BFGS, and by sequential quadratic programming if the radius binds.

    Raises:
        RunStopped: If the solver fails.
    """
    shape = stream.start.shape
    x, y = stream.x.reshape(-1, shape[1]), stream.y.reshape(-1)
    weights = np.tile(stream.weights, len(stream.x)) / len(stream.x)

    def value(offset: Array) -> tuple[float, Array]:
        logits = x @ (stream.start + offset.reshape(shape)).T
        logits -= logits.max(axis=1, keepdims=True)
        p = np.exp(logits)
        total = p.sum(axis=1, keepdims=True)
        loss = weights @ (np.log(total[:, 0]) - logits[np.arange(len(y)), y])
        p /= total
        p[np.arange(len(y)), y] -= 1
        return float(loss), ((p * weights[:, None]).T @ x).ravel()

    zero = np.zeros(stream.start.size)
    options = {"maxiter": 10_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-10}
    found = minimize(value, zero, jac=True, method="L-BFGS-B", options=options)
    length = float(np.linalg.norm(found.x))
    if length > radius:
        inside = {"type": "ineq", "fun": lambda z: radius**2 - z @ z, "jac": lambda z: -2 * z}
        begin = found.x * (radius / length)
        tight = {"maxiter": 1000, "ftol": 1e-12}
        found = minimize(value, begin, jac=True, method="SLSQP", constraints=inside, options=tight)
    if not found.success:
        raise RunStopped(f"the best fixed model was not found: {found.message}")
    return np.asarray(stream.start + found.x.reshape(shape))


def courses(
    name: str,
    e: Experiment,
    data: FederatedData,
    stream: StreamOfRounds,
    tell: Callable[[Array], None] = lambda losses: None,
) -> list[Course]:
    """Plays a server with its default step size, and with the best one in hindsight.

    The ensemble is not tuned, but played with the ``SHARES`` of its default radius. ``tell`` is
    called with each run's losses.
    """
    step, kept = STEPS[name], dict[float, Array]()

    def total(size: float) -> float:
        trained = train_rounds(e, data, step, size)
        kept[size] = stream.losses(np.stack([_matrix(each.model) for each in trained]))
        tell(kept[size])
        return float(kept[size].sum())

    if name == "universal":
        for share in SHARES:
            total(share * step.default)
        ways = {size: f"x {size / step.default:g}" for size in kept}
        ways[step.default] = "default"
        return [Course(name, size, way, kept[size], {}) for size, way in ways.items()]
    tried = tune(total, step.default)
    best = min(tried, key=tried.__getitem__)
    named = {"default": step.default, "tuned": best}
    return [
        Course(name, size, way, kept[size], tried if way == "tuned" else {})
        for way, size in named.items()
        if size in kept  # it has not diverged
    ]


class StreamResults(NamedTuple):
    """The results of all servers."""

    experiment: Experiment  # the federation's settings
    courses: list[Course]  # each server's losses
    best: Array  # losses of the best fixed model, by rounds
    best_in_ball: Array  # those of the best model within the default radius of the first one


def work(settings: UniversalStreamSettings, pool: Pool) -> StreamResults:
    """Plays all servers."""
    e, data = read_stream(f"npz:{settings.path}", settings.rounds)
    stream = stream_of(e, data)
    fixed = [best_fixed(stream, radius) for radius in (float("inf"), e.server_radius)]
    best, best_in_ball = (stream.losses(model[None]) for model in fixed)
    found: list[Course] = []
    for name, step in STEPS.items():
        total = len(SHARES) if name == "universal" else _RUNS
        tell = _teller(pool.new_line(step.title, total), total, best)
        found += courses(name, e, data, stream, tell)
    return StreamResults(e, found, best, best_in_ball)


def _teller(line: Tell, total: int, best: Array) -> Callable[[Array], None]:
    """Returns a function that counts runs and shows their regret; grids may exceed ``total``."""
    counted = count(1)
    return lambda losses: line(min(next(counted), total), f"regret {(losses - best).sum():.1f}")


def report(settings: UniversalStreamSettings, found: StreamResults) -> Report:
    """Makes the table and the plot."""
    e, rows = found.experiment, summarize(found.courses, found.best, found.best_in_ball)
    told = f"{settings.path}: {e.num_rounds} rounds of {e.num_clients} rows"
    picture = _draw(found.courses, found.best)
    return Report([told, _CAPTION, _table(rows)], {"rows": rows}, {"regret.png": picture})


def summarize(courses: Sequence[Course], best: Array, best_in_ball: Array) -> list[Row]:
    """Returns a row for each course.

    Losses of the best fixed models are by rounds.

    Returns:
        ``server``, ``size`` (step size or radius), ``way`` (as ``Course`` has it), ``mean-loss``,
        ``regret``, ``regret-in-ball``, ``tried`` (sums of losses by size, None where it diverged).
    """
    return [
        {
            "server": course.name,
            "size": course.size,
            "way": course.way,
            "rounds": len(course.losses),
            "mean-loss": float(course.losses.mean()),
            "regret": float((course.losses - best).sum()),
            "regret-in-ball": float((course.losses - best_in_ball).sum()),
            "tried": {f"{s:g}": x if np.isfinite(x) else None for s, x in course.tried.items()},
        }
        for course in courses
    ]


def _label(name: str, size: float, way: str) -> str:
    kind = "radius" if name == "universal" else "step"
    return f"{STEPS[name].title}, {kind} {size:g} ({way})"


def _table(rows: Sequence[Row]) -> Table:
    found = new_table(["server"], ["mean loss", "regret", "in the ball"])
    for row in rows:
        cells = (f"{row['mean-loss']:.4f}", f"{row['regret']:.1f}", f"{row['regret-in-ball']:.1f}")
        found.add_row(_label(row["server"], row["size"], row["way"]), *cells)
    return found


def _draw(courses: Sequence[Course], best: Array) -> bytes:
    figure, (axes,) = panels(1, size=(9, 4.5))
    colors = dict(zip(STEPS, COLORS, strict=False))
    styles = {"default": "-", "tuned": "--", "x 0.25": ":", "x 4": "-."}
    rounds = np.arange(1, len(best) + 1)
    for course in courses:
        regret, color = np.cumsum(course.losses - best), colors[course.name]
        label = _label(course.name, course.size, course.way)
        axes.plot(rounds, regret, styles[course.way], color=color, label=label)
    axes.set(xlabel="round", ylabel="regret (nats), against the best fixed model of all")
    return finish(figure, axes)
