"""Accuracy against epsilon, for common models and for models with personal parts.

``python -m benchmarks.private`` trains on digits, or the rows of ``--data npz:FILE``, with
central privacy, Poisson sampling and adaptive clipping, at several targets of epsilon and without
privacy. Personal parts never leave their clients, and so have no noise. Each run is a line of
``cells.jsonl``, in the folder ``--out``; a benchmark that was stopped goes on from there.
"""

import json
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final, NamedTuple

import typer
from matplotlib.figure import Figure

from benchmarks.harness import numbers_table, percent, start
from engram.cli.console import out as console
from engram.settings.experiment import Experiment
from engram.simulations.engine import simulate

_CELLS: Final = "cells.jsonl"
_PRIVATE: Final = {
    "privacy": "central",
    "sampling": "poisson",
    "clip": 0.1,
    "clip_quantile": 0.5,
}


class Cell(NamedTuple):
    """One run.

    Attributes:
        data: The data set, or the file.
        clients: Number of clients.
        rounds: Number of rounds.
        method: The method.
        epsilon: The target; 0 without privacy.
        seed: The seed.
        accuracy: Mean over clients of the served models' accuracy.
    """

    data: str
    clients: int
    rounds: int
    method: str
    epsilon: float
    seed: int
    accuracy: float = 0.0


def experiment(cell: Cell) -> Experiment:
    """Returns the settings of a cell: half of the clients are expected in a round."""
    shared: dict[str, Any] = {
        "num_clients": cell.clients,
        "clients_per_round": cell.clients // 2,
        "partition": "dirichlet",
        "dirichlet_alpha": 0.3,
        "hidden": "40",
        "norm": "group",
        "batch_size": 10,
        "num_rounds": cell.rounds,
        "eval_every": cell.rounds,
        "checkpoint_every": cell.rounds,
        "validation_fraction": 0.0,
    }
    private = _PRIVATE | {"epsilon": cell.epsilon} if cell.epsilon else {}
    own: Any = {"method": cell.method, "dataset": cell.data, "seed": cell.seed}
    return Experiment(**(shared | private | own))


def known(folder: Path) -> list[Cell]:
    """Returns the cells that an earlier run of the benchmark has recorded."""
    file = folder / _CELLS
    if not file.is_file():
        return []
    return [Cell(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def by_seed(cells: Sequence[Cell]) -> Iterator[tuple[str, float, list[float]]]:
    """Yields method, epsilon (0 for none) and the accuracies of seeds, in the order of cells."""
    for method, epsilon in dict.fromkeys((cell.method, cell.epsilon) for cell in cells):
        some = [c.accuracy for c in cells if (c.method, c.epsilon) == (method, epsilon)]
        yield method, epsilon, some


def draw(cells: Sequence[Cell], file: Path) -> None:
    """Plots mean accuracy against epsilon; dashed lines are the methods without privacy."""
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    found = [(name, at, 100 * fmean(some)) for name, at, some in by_seed(cells)]
    for i, method in enumerate(dict.fromkeys(name for name, _, _ in found)):
        points = sorted((at, mean) for name, at, mean in found if name == method and at)
        axes.plot(*zip(*points, strict=True), "o-", color=f"C{i}", label=method) if points else None
        for name, at, mean in found:
            if name == method and not at:
                axes.axhline(mean, color=f"C{i}", linestyle="--", linewidth=1)
    axes.set(xscale="log", xlabel="epsilon at delta 1e-5", ylabel="accuracy, %")
    targets = sorted({at for _, at, _ in found if at})
    axes.set_xticks(targets, [f"{at:g}" for at in targets])
    axes.minorticks_off()
    axes.legend()
    figure.savefig(file, dpi=200)


def main(
    data: Annotated[str, typer.Option(help="Data set, or a file, as npz:PATH.")] = "digits",
    methods: Annotated[str, typer.Option(help="Methods, with commas.")] = "fedavg,fedper,ditto",
    epsilons: Annotated[str, typer.Option(help="Targets, with commas; 0: none.")] = "0,1,2,4,8",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each.")] = 3,
    clients: Annotated[int, typer.Option(min=2, help="Number of clients.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a run.")] = 60,
    out: Annotated[Path, typer.Option(help="Folder of cells and plot.")] = Path("private"),
) -> None:
    """Trains what is not recorded yet, prints mean accuracies, and draws them."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    out.mkdir(parents=True, exist_ok=True)
    wanted = [
        Cell(data, clients, rounds, method, float(epsilon), seed)
        for method in methods.split(",")
        for epsilon in epsilons.split(",")
        for seed in range(seeds)
    ]
    done = {cell._replace(accuracy=0.0): cell for cell in known(out)}
    for cell in wanted:
        if cell not in done:
            with tempfile.TemporaryDirectory() as folder:
                accuracy = simulate(experiment(cell), Path(folder) / "run")["accuracy"]
            done[cell] = cell._replace(accuracy=accuracy)
            with (out / _CELLS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[cell]._asdict()) + "\n")
    cells = [done[cell] for cell in wanted]
    table = numbers_table("method", "epsilon", "accuracy, %")
    for method, epsilon, some in by_seed(cells):
        table.add_row(method, f"{epsilon:g}" if epsilon else "without privacy", percent(some))
    console.print(table)
    draw(cells, out / "private.png")


if __name__ == "__main__":
    start(main)
