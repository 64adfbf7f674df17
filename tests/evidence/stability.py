"""Whether meta-learning keeps what it has learned: accuracy at its best round and at the end.

``python -m tests.evidence.stability --mnist mnist.npz --notmnist notmnist10k.npz`` trains
LocalMOML, Per-FedAvg and pFedMe for 300 rounds, by default at their default settings: on digits,
12,000 rows of MNIST, notMNIST, and 6,000 drawn color images, whose 3,072 numbers make the loss more
curved than digits do; each with halves of the classes, by a Dirichlet distribution, and at random.
A run that falls by more than two points below its best round is marked.
"""

import logging
import tempfile
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from engram.data.readers.in_memory import hold
from engram.data.readers.npz import read_npz
from engram.settings.errors import RunStopped
from engram.settings.experiment import Experiment
from engram.simulations.engine import simulate

METHODS: Final = ("local-moml", "per-fedavg", "pfedme")
PARTITIONS: Final[dict[str, dict[str, Any]]] = {
    "halves": {},
    "dirichlet": {"dirichlet-alpha": 0.3},
    "iid": {},
}
_EVERY: Final = 10  # rounds
_FALL: Final = 0.02  # of accuracy
_MNIST_ROWS: Final = 12_000


def color_images(rng: np.random.Generator, count: int = 6000) -> dict[str, Any]:
    """Draws images of ten classes, (count, 32, 32, 3) in 0..255: coarse patterns in noise.

    An image is its class's pattern, of a contrast and a brightness of its own.
    """
    patterns = rng.random((10, 8, 8, 3)).repeat(4, axis=1).repeat(4, axis=2) - 0.5
    y = rng.integers(0, 10, count)
    one = (count, 1, 1, 1)
    contrast, brightness = rng.uniform(0.1, 0.35, one), 0.15 * rng.normal(size=one)
    noise = 0.2 * rng.normal(size=(count, *patterns.shape[1:]))
    x = 0.5 + contrast * patterns[y] + brightness + noise
    return {"x": (255 * x.clip(0, 1)).astype(np.uint8), "y": y}


def datasets(mnist: Path | None, notmnist: Path | None) -> dict[str, str]:
    """Returns the settings ``dataset`` of those that there are, by name."""
    found = {"digits": "digits", "color images": hold(color_images(np.random.default_rng(0)))}
    if mnist is not None:
        held = read_npz(mnist)
        some = {"x": held["x_train"][:_MNIST_ROWS], "y": held["y_train"][:_MNIST_ROWS]}
        found["MNIST"] = hold(some)
    if notmnist is not None:
        held = read_npz(notmnist)
        found["notMNIST"] = hold({"x": held["x"], "y": held["y"]})
    return found


def settings(name: str, dataset: str, partition: str, rounds: int) -> dict[str, Any]:
    """Returns the settings that the methods share."""
    small = name == "digits"
    return {
        "dataset": dataset,
        "partition": partition,
        "num-clients": 20 if small else 50,
        "rows-per-class": 8 if small else 10,
        "num-rounds": rounds,
        "eval-every": min(_EVERY, rounds),
        "checkpoint-every": rounds,
    } | PARTITIONS[partition]


def curve(config: dict[str, Any]) -> list[float]:
    """Returns the clients' mean accuracy at the start and after every ten rounds."""
    found: list[float] = []

    def on_round(row: dict[str, Any]) -> None:
        found.extend([row["accuracy"]] if "accuracy" in row else [])

    with tempfile.TemporaryDirectory(prefix="engram-") as folder:
        simulate(Experiment.from_config(config), Path(folder) / "run", on_round=on_round)
    return found


def main(
    mnist: Annotated[Path | None, typer.Option(metavar="NPZ", help="MNIST.")] = None,
    notmnist: Annotated[Path | None, typer.Option(metavar="NPZ", help="notMNIST.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each run.")] = 300,
    given: Annotated[
        list[str] | None, typer.Option("--set", metavar="METHOD.KEY=VALUE", help="A setting.")
    ] = None,
) -> None:
    """Print the accuracy at the best round and at the end."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    own = dict(pair.split("=", 1) for pair in given or [])
    title = f"best round, and the last of {rounds}, in %"
    table = Table("data", "partition", *METHODS, title=title)
    places = [
        (name, dataset, partition)
        for name, dataset in datasets(mnist, notmnist).items()
        for partition in PARTITIONS
    ]
    falls = 0
    for name, dataset, partition in track(places, "training", transient=True):
        cells = []
        for method in METHODS:
            shared = settings(name, dataset, partition, rounds) | {"method": method}
            mine = {key: value for key, value in own.items() if key.startswith(f"{method}.")}
            try:
                accuracies = curve(shared | mine)
            except RunStopped:
                cells.append("diverges *")
                falls += 1
                continue
            best, last = max(accuracies), accuracies[-1]
            fallen = best - last > _FALL
            falls += fallen
            cells.append(f"{100 * best:.1f}, {100 * last:.1f}{' *' if fallen else ''}")
        table.add_row(name, partition, *cells)
    Console().print(table)
    print(f"{falls} of {len(places) * len(METHODS)} runs end more than two points below their best")


if __name__ == "__main__":
    typer.run(main)
