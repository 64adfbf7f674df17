"""Clients that come later: meta-learned, fine-tuned, and by themselves, on Omniglot's alphabets.

``python -m tests.evidence.unseen --omniglot omniglot28.npz`` makes each alphabet a client, which
has 14 of its characters to tell apart. Ten alphabets never train: each has 1, 5 or 10 drawings of
each to learn from, and is scored on 8 others. The model that it starts from is the common one of a
method, or, by itself, the initial one; then it makes gradient steps on its own drawings. Where
clients keep their last layers, as in FedRep, a newcomer has the common body under the initial last
layer. Step sizes, and the number of these steps, are chosen for each method and number of drawings
on other splits of the alphabets, with the same budget.
"""

import itertools
import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from engram.client.memory import RamStore
from engram.cohort.trainer.chunks import score
from engram.cohort.trainer.trainer import Trainer
from engram.cohort.trainer.worker_pool import training_from_now_on
from engram.compare.differences import Difference, pairwise
from engram.core import streams
from engram.core.slots import unflat
from engram.core.streams import Stream, torch_generator
from engram.core.types import Params
from engram.data.federated import FederatedData, model_for
from engram.data.load_federation import federated_data
from engram.data.readers.in_memory import hold
from engram.data.readers.npz import read_npz
from engram.networks.registry import model as network_named
from engram.runs.run import Run
from engram.scoring.score_columns import TUNED
from engram.settings.errors import UNNAMED, DataError, RunStopped
from engram.settings.experiment import Experiment
from engram.simulations.engine import simulate

CLASSES: Final = 14  # characters of the smallest alphabet
SHOTS: Final = (1, 5, 10)
_TRAIN, _TEST = 12, 8  # drawings of a character
_UNSEEN: Final = 10
ALONE: Final = "by itself"
CNN: Final = "omniglot-cnn"


class Network(NamedTuple):
    """A network, and among what its settings are chosen."""

    settings: dict[str, str | int]
    learned: dict[str, list[dict[str, float]]]  # by method
    tuning: list[tuple[int, float]]  # numbers of newcomers' steps, and their size


def _sizes(etas: Sequence[float], **more: Sequence[float]) -> list[dict[str, float]]:
    grid = {"eta": etas, **more}
    return [dict(zip(grid, each, strict=True)) for each in itertools.product(*grid.values())]


def cnn() -> nn.Sequential:
    """Returns three convolutions, each of which halves the image, and a dense layer."""
    convolutions = [nn.Conv2d(n, 32, 3, stride=2, padding=1) for n in (1, 32, 32)]
    below = [layer for own in convolutions for layer in (own, nn.ReLU())]
    return nn.Sequential(*below, nn.Flatten(), nn.Linear(4 * 4 * 32, CLASSES))


NETWORKS: Final = {
    "mlp": Network(
        {"model": "mlp", "hidden": "200,100"},
        {
            "fedavg": _sizes((0.03, 0.1, 0.3)),
            "fedbabu": _sizes((0.03, 0.1, 0.3)),
            "fedrep": _sizes((0.03, 0.1, 0.3)),
            "per-fedavg": _sizes((0.03, 0.1, 0.3), alpha=(0.03, 0.1)),
            "local-moml": _sizes((0.03, 0.1, 0.3), alpha=(0.03, 0.1)),
        },
        list(itertools.product((50, 200, 800), (0.03, 0.1, 0.3, 1.0))),
    ),
    "cnn": Network(
        {"model": CNN},
        {name: _sizes((0.1, 0.3)) for name in ("fedavg", "fedbabu", "fedrep")}
        | {name: _sizes((0.1,), alpha=(0.03, 0.1)) for name in ("per-fedavg", "local-moml")},
        list(itertools.product((50, 200), (0.03, 0.1, 0.3))),
    ),
}


def drawings(path: str | Path) -> npt.NDArray[Any]:
    """Returns the drawings of 14 characters of each alphabet, (alphabet, character, drawing, ...).

    Raises:
        DataError: The file is not Omniglot's.
    """
    held = read_npz(Path(path))
    try:
        x, y, alphabet = held["x"], held["y"], held["alphabet"]
    except KeyError as error:
        raise DataError(f"{path} must hold x, y and alphabet, and lacks {error}") from error
    found = []
    for name in np.unique(alphabet):
        characters = np.unique(y[alphabet == name])[:CLASSES]
        found.append(np.stack([x[y == c][: _TRAIN + _TEST] for c in characters]))
    return np.stack(found)


def federation(images: npt.NDArray[Any], shots: int, unseen: Sequence[int]) -> str:
    """Makes a data set: unseen clients have so many drawings of each character to learn from."""
    parts: dict[str, list[npt.NDArray[Any]]] = {
        f"{name}_{part}": [] for name in ("x", "y", "task") for part in ("train", "test")
    }
    for client, own in enumerate(images):
        kept = shots if client in unseen else _TRAIN
        for part, rows in (("train", own[:, :kept]), ("test", own[:, _TRAIN:])):
            count = rows.shape[1]
            parts[f"x_{part}"].append(rows.reshape(-1, *rows.shape[2:]))
            parts[f"y_{part}"].append(np.repeat(np.arange(len(own)), count))
            parts[f"task_{part}"].append(np.full(len(own) * count, client))
    return hold({name: np.concatenate(each) for name, each in parts.items()})


def settings(
    dataset: str, network: Network, seed: int, rounds: int, count: int, **more: Any
) -> Experiment:
    """Returns the experiment, which the methods share but for their own settings."""
    shared = {
        "dataset": dataset,
        "partition": "natural",
        "num-clients": count,
        "unseen-clients": _UNSEEN,
        "validation-fraction": 0.0,
        "clients-per-round": 10,
        "local-steps": 10,
        "batch-size": 14,
        "num-rounds": rounds,
        "eval-every": rounds,
        "checkpoint-every": rounds,
        "seed": seed,
    }
    return Experiment.from_config(shared | network.settings | more)


def unseen_of(seed: int, count: int) -> list[int]:
    """Returns the clients that never train."""
    shared = {"num-clients": count, "unseen-clients": _UNSEEN, "clients-per-round": 1}
    return sorted(streams.unseen(Experiment.from_config(shared | {"seed": seed}), UNNAMED))


def learned(
    images: npt.NDArray[Any],
    network: Network,
    method: str,
    own: Mapping[str, float],
    seed: int,
    rounds: int,
) -> Params:
    """Returns the common model that a method learns from the clients that train."""
    count = len(images)
    dataset = federation(images, 1, unseen_of(seed, count))
    mine = {f"{method}.{key}": value for key, value in own.items()}
    e = settings(dataset, network, seed, rounds, count, method=method, **mine)
    with tempfile.TemporaryDirectory(prefix="engram-") as folder:
        simulate(e, Path(folder) / "run")
        checkpoint = Run.open(Path(folder) / "run").load_checkpoint()
    found: Params = unflat(checkpoint.model)["model"] if checkpoint is not None else {}
    return found


def newcomers(
    images: npt.NDArray[Any],
    network: Network,
    model: Params | None,
    seed: int,
    shots: int,
    tuning: Sequence[tuple[int, float]],
) -> list[npt.NDArray[np.float64]]:
    """Returns the unseen clients' accuracies, for each number of steps and step size.

    They start from ``model``; what it lacks, or all if it is None, is the initial model's.
    """
    count = len(images)
    unseen = unseen_of(seed, count)
    dataset = federation(images, shots, unseen)
    found, data = [], None
    for steps, lr in tuning:
        own = {"adapt-steps": steps, "adapt-lr": lr}
        e = settings(dataset, network, seed, 1, count, method="fedavg", **own)
        data = data or federated_data(e)
        found.append(_scored(e, data, model, unseen))
    return found


def _scored(
    e: Experiment, data: FederatedData, model: Params | None, clients: list[int]
) -> npt.NDArray[np.float64]:
    initial = model_for(e, data.kind).init(torch_generator(e.seed, Stream.MODEL))
    start = {**initial, **(model or {})}
    scores = score(Trainer(e, data, RamStore()), {"model": start}, clients, server_round=0)
    return scores.columns["accuracy" + TUNED].double().numpy()


def chosen(
    images: npt.NDArray[Any], network: Network, seeds: Sequence[int], rounds: int
) -> dict[str, Any]:
    """Chooses each method's settings, and the steps of its newcomers, by the seeds' splits.

    Returns:
        By method, its settings and, for each number of shots, the steps and their size.
    """
    found = {}
    grids: dict[str, list[dict[str, float]]] = {**network.learned, ALONE: [{}]}
    for method, grid in grids.items():
        best: dict[int, tuple[float, Any, Any]] = {}
        for own in track(grid, f"choosing: {method}", transient=True):
            try:
                models = {
                    seed: learned(images, network, method, own, seed, rounds) if own else None
                    for seed in seeds
                }
            except RunStopped:  # with too long steps, which are not chosen
                continue
            for shots in SHOTS:
                each = [
                    newcomers(images, network, models[s], s, shots, network.tuning) for s in seeds
                ]
                means = np.mean(each, axis=(0, 2))  # seeds, tuning, clients
                at = int(np.argmax(means))
                best[shots] = max(
                    best.get(shots, (-1.0, None, None)),
                    (float(means[at]), own, network.tuning[at]),
                    key=lambda known: known[0],
                )
        found[method] = {shots: {"own": own, "tuned": t} for shots, (_, own, t) in best.items()}
    return found


def compare(
    images: npt.NDArray[Any],
    network: Network,
    choices: Mapping[str, Any],
    seeds: Sequence[int],
    rounds: int,
) -> dict[int, dict[str, list[npt.NDArray[np.float64]]]]:
    """Returns the newcomers' accuracies: by shots, by method, for each seed."""
    found: dict[int, dict[str, list[npt.NDArray[np.float64]]]] = {
        shots: {method: [] for method in choices} for shots in SHOTS
    }
    models: dict[str, Params | None] = {}
    for seed in track(seeds, "testing", transient=True):
        for method, by_shots in choices.items():
            for shots, choice in by_shots.items():
                key = f"{method} {choice['own']} {seed}"
                if key not in models:
                    own = choice["own"]
                    models[key] = (
                        learned(images, network, method, own, seed, rounds) if own else None
                    )
                start, tuned = models[key], [choice["tuned"]]
                (scores,) = newcomers(images, network, start, seed, shots, tuned)
                found[shots][method].append(scores)
    return found


def rows(
    found: Mapping[int, Mapping[str, Any]], choices: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Returns a row for each number of shots and method, with its gain over learning by itself."""
    told = []
    for shots, methods in found.items():
        pairs = pairwise(methods)
        for method, scores in methods.items():
            each = np.array([own.mean() for own in scores])
            gain = pairs.get((method, ALONE), Difference(0.0, 0.0, 0.0, 0, 0))._asdict()
            told.append(
                {
                    "shots": shots,
                    "method": method,
                    "accuracy": float(np.concatenate(scores).mean()),
                    "worst": float(np.concatenate(scores).min()),
                    "seeds": float(each.std(ddof=1)) if len(each) > 1 else None,
                    "gain": gain,
                    "settings": choices[method][shots],
                }
            )
    return told


def table(told: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the rows as a table."""
    found = Table("shots", "method", "accuracy", "worst", "gain over itself alone", "steps x size")
    for row in told:
        gain = row["gain"]
        ends = f"{100 * gain['low']:.1f} to {100 * gain['high']:.1f}"
        steps, lr = row["settings"]["tuned"]
        found.add_row(
            str(row["shots"]),
            row["method"],
            f"{100 * row['accuracy']:.1f}",
            f"{100 * row['worst']:.1f}",
            f"{100 * gain['mean']:.1f} ({ends})",
            f"{steps} x {lr:g}",
        )
    return found


def main(
    omniglot: Annotated[Path, typer.Option(metavar="NPZ", help="Omniglot's 28 x 28 drawings.")],
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each run.")] = 300,
    seeds: Annotated[int, typer.Option(min=1, help="Splits to test on.")] = 5,
    tuned_on: Annotated[int, typer.Option(min=1, help="Splits to choose by.")] = 2,
    model: Annotated[Literal["mlp", "cnn"], typer.Option(help="What is trained.")] = "mlp",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON as well.")] = False,
) -> None:
    """Compare what newcomers reach: from meta-learned models, from FedAvg's, and by themselves."""
    logging.getLogger("flwr.engram").setLevel(logging.WARNING)
    training_from_now_on(1)
    network_named(cnn, CNN)
    images, network = drawings(omniglot), NETWORKS[model]
    choices = chosen(images, network, range(1000, 1000 + tuned_on), rounds)
    told = rows(compare(images, network, choices, range(seeds), rounds), choices)
    Console().print(table(told))
    if as_json:
        print(json.dumps(told))


if __name__ == "__main__":
    typer.run(main)
