"""Server steps compared: the universal ensemble, FedAvg, FedAdam and FedYogi.

``python -m tests.evidence.server_step`` prints, for federations of digits (and of MNIST, with
``--mnist``), accuracies after the last round and losses of the common model over time; for the
default size of the server's step (of the ensemble: its radius), for the one with the best printed
accuracy in hindsight, and for sizes 4 times smaller and larger. All servers see the same updates
for the same model.
"""

import json
import logging
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.harness import start
from engram.cli.console import new_table
from engram.client.memory import RamStore
from engram.cohort.trainer.chunks import score
from engram.cohort.trainer.trainer import Trainer
from engram.cohort.trainer.worker_pool import training_from_now_on
from engram.data.federated import FederatedData, model_for
from engram.data.load_federation import federated_data
from engram.data.readers.npz import read_npz
from engram.networks.losses import mean_loss
from engram.online.studies.server_steps import STEPS, train_rounds, tune
from engram.scoring.score_columns import COMMON, TUNED
from engram.scoring.tasks import CLASSIFICATION
from engram.settings.experiment import Experiment

_MNIST = {"train": 6000, "test": 2000}  # rows, drawn at random
_FACTOR = 4


class StepResult(NamedTuple):
    """The results of a run."""

    before: float  # accuracy of the common model, mean over clients
    after: float  # accuracy after personalization, likewise
    # Losses of the common model on all training rows, in nats, after a twentieth, a quarter and all
    # of the rounds.
    losses: tuple[float, ...]


def run(e: Experiment, data: FederatedData, name: str, size: float) -> StepResult:
    """Plays an experiment with a server step of a given size.

    Raises:
        RunStopped: If it diverged.
    """
    loss = mean_loss(model_for(e, data.kind), CLASSIFICATION)
    rows = data.train.take(torch.from_numpy(np.concatenate(data.train.rows)))
    marks = (max(1, e.num_rounds // 20), max(1, e.num_rounds // 4), e.num_rounds)
    losses = {}
    for trained in train_rounds(e, data, STEPS[name], size):
        if trained.server_round in marks:
            model = {key: leaf.float() for key, leaf in trained.merged.items()}
            losses[trained.server_round] = float(loss(model, rows))
    training_from_now_on(e.cpu_threads)
    trainer = Trainer(e, data, RamStore())
    scores = score(trainer, {"model": model}, range(e.num_clients), server_round=e.num_rounds)
    before, after = (float(scores.columns["accuracy" + n].mean()) for n in (COMMON, TUNED))
    return StepResult(before, after, tuple(losses[mark] for mark in marks))


def compare(
    settings: Mapping[str, Any], seeds: int, tell: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """Plays all servers' steps, with default and tuned sizes.

    Returns:
        A row for each: ``server``, ``way``, ``size``, ``outcomes`` (one a seed), ``tried`` (mean
        accuracies after personalization, by size; None where a run diverged).
    """
    cases = []
    for seed in range(seeds):
        e = Experiment.from_config(dict(settings) | {"seed": seed})
        cases.append((e, federated_data(e)))
    rows = []
    for name, step in STEPS.items():
        kept: dict[float, list[StepResult]] = {}
        lost = partial(_lost, name, cases, kept, tell)
        found = tune(lost, step.default)
        tried = {size: -value if np.isfinite(value) else None for size, value in found.items()}
        rows += [
            {
                "server": name,
                "way": way,
                "size": size,
                "outcomes": [outcome._asdict() for outcome in kept.get(size, ())],
                "tried": tried,
            }
            for way, size in (
                ("default", step.default),
                ("tuned", min(found, key=found.__getitem__)),
            )
        ]
    return rows


def _lost(
    name: str,
    cases: Sequence[tuple[Experiment, FederatedData]],
    kept: dict[float, list[StepResult]],
    tell: Callable[[], None],
    size: float,
) -> float:
    """Returns the negative mean accuracy after personalization, and keeps the outcomes."""
    tell()
    kept[size] = [run(e, data, name, size) for e, data in cases]
    return -statistics.mean(outcome.after for outcome in kept[size])


def _show(title: str, rows: Iterable[Mapping[str, Any]]) -> Table:
    heads = ["size", "after", "± seeds", "before", "loss at T/20", "T/4", "T"]
    table = new_table([""], [*heads, f"after, size / {_FACTOR}", f"x {_FACTOR}"], title=title)
    for row in rows:
        cells = [f"{STEPS[row['server']].title}, {row['way']}", f"{row['size']:g}"]
        outcomes = [StepResult(**outcome) for outcome in row["outcomes"]]
        if not outcomes:
            table.add_row(*cells, "diverged")
            continue
        after = [100 * outcome.after for outcome in outcomes]
        cells += [f"{np.mean(after):.1f}", f"{np.std(after):.1f}"]
        cells += [f"{100 * statistics.mean(outcome.before for outcome in outcomes):.1f}"]
        losses = np.mean([outcome.losses for outcome in outcomes], axis=0)
        cells += [f"{loss:.3f}" for loss in losses]
        for size in (row["size"] / _FACTOR, row["size"] * _FACTOR):
            if size not in row["tried"]:
                cells.append("-")
                continue
            value = row["tried"][size]
            cells.append("diverged" if value is None else f"{100 * value:.1f}")
        table.add_row(*cells)
    return table


def _few_of_mnist(path: Path, folder: Path) -> str:
    """Writes a random part of MNIST; returns its name as a data set."""
    arrays, rng = read_npz(path), np.random.default_rng(0)
    part: dict[str, Any] = {}
    for which, count in _MNIST.items():
        rows = rng.permutation(len(arrays[f"y_{which}"]))[:count]
        part |= {f"{key}_{which}": arrays[f"{key}_{which}"][rows] for key in "xy"}
    np.savez(folder / "mnist.npz", **part)
    return f"npz:{folder / 'mnist.npz'}"


def main(
    mnist: Annotated[
        Path | None, typer.Option(help="an .npz file of MNIST, with test rows")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="rounds of a run")] = 200,
    seeds: Annotated[int, typer.Option(min=1, help="runs of each step size")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
) -> None:
    """Compares servers' steps."""
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.WARNING)  # Flower logs every round
    console, found = Console(), {}
    with tempfile.TemporaryDirectory() as folder, Progress(transient=True) as progress:
        federations: dict[str, dict[str, Any]] = {"digits": {"partition": "halves"}}
        if mnist is not None:
            name = _few_of_mnist(mnist, Path(folder))
            federations["MNIST"] = {"dataset": name, "partition": "dirichlet"}
        for data, own in federations.items():
            for model in ("linear", "mlp"):
                title = f"{data}, {model}, {rounds} rounds, {seeds} seeds; accuracies in %"
                settings = {"method": "fedavg", "model": model, "num-rounds": rounds} | own
                line = progress.add_task(title, total=11 * len(STEPS))
                found[title] = compare(settings, seeds, partial(progress.advance, line))
                if not as_json:
                    console.print(_show(title, found[title]))
    if as_json:
        print(json.dumps({"federations": found}))


if __name__ == "__main__":
    start(main)
