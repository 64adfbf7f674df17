"""Accuracy and seconds a round beside PFLlib, method by method.

``python -m benchmarks.accuracy --pfllib CHECKOUT --mnist FILE`` runs each method here and there on
the same rows of the same clients, from the same weights, with as many steps of as many rows and the
same step sizes; in turns, round by round, with one thread each. All models are scored here, on all
test rows of each client: PFLlib's as they stand after the last round. ``--python`` names the
interpreter of an environment in which PFLlib's servers can be imported.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import torch
import typer
from rich.table import Table
from torch import nn

from benchmarks.harness import chosen, start
from benchmarks.networks import WORKS
from benchmarks.peers import Peer, PeerMissing
from benchmarks.pfllib_pairs import ETA, PAIRS, PERSONAL_STEPS, Pair
from benchmarks.pfllib_peer import DATASET, DONE
from benchmarks.workloads import Platform
from engram.cli.console import out
from engram.client.memory import RamStore
from engram.cohort.trainer.chunks import score
from engram.cohort.trainer.trainer import Trainer
from engram.cohort.trainer.worker_pool import training_from_now_on
from engram.core.streams import Stream, torch_generator
from engram.core.types import Params
from engram.data.federated import FederatedData, model_for
from engram.data.load_federation import federated_data
from engram.data.readers.in_memory import hold
from engram.data.readers.npz import read_npz
from engram.networks.registry import model
from engram.scoring.intervals import student
from engram.scoring.score_columns import COMMON, TUNED
from engram.settings.errors import Refused, brief
from engram.settings.experiment import Experiment, read_by

ROWS: Final = 12_000
CLIENTS: Final = 20
BATCH: Final = 10
STEPS: Final = 20  # of a client in a round, where they are no epoch
_WARM_UP: Final = 5  # rounds that are not timed
_CNN: Final = "pfllib-cnn"
NETWORKS: Final = {"mlp": {"model": "mlp", "hidden": "100"}, "cnn": {"model": _CNN}}


class RunScore(NamedTuple):
    """Result of one method with one seed, there or here.

    Attributes:
        accuracy: Mean over clients, in [0, 1].
        seconds: A round, the median.
    """

    accuracy: float
    seconds: float


class Race(NamedTuple):
    """One method with one seed."""

    method: str
    seed: int
    ours: RunScore
    theirs: RunScore


def cnn() -> nn.Module:
    """Returns a network with the layers of PFLlib's CNN, for images of 28 x 28 pixels."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)),
    )


def experiment(
    method: str, dataset: str, *, seed: int, rounds: int, network: str, epoch: bool
) -> Experiment:
    """Returns our side's settings, for ``STEPS`` local steps or for an epoch."""
    pair = PAIRS[method]
    shared: dict[str, Any] = {
        "partition": "dirichlet",
        "dirichlet_alpha": 0.1,
        "test_fraction": 0.25,
        "num_clients": CLIENTS,
        "clients_per_round": CLIENTS,
        "validation_fraction": 0.0,
        "batch_size": BATCH,
        "num_rounds": rounds,
        "local_steps": pair.passes * STEPS,
        "local_epochs": pair.passes * epoch,
        "adapt_steps": PERSONAL_STEPS,
        "adapt_lr": ETA,
        "eta": ETA,
    }
    given = shared | NETWORKS[network] | pair.ours
    return Experiment(method=method, dataset=dataset, seed=seed, **given)


def fedavg_like(e: Experiment) -> Experiment:
    """The same experiment by FedAvg, with the network alone as its model."""
    return Experiment.from_config(read_by("fedavg", e.to_config() | {"method": "fedavg"}))


def rows_of(e: Experiment) -> FederatedData:
    """Clients' rows, without the training rows of partial batches, as in PFLlib.

    Its Per-FedAvg draws two batches at once, so that is what every client has at least.
    """
    pair = 2 * e.batch_size
    data = federated_data(e.from_config(e.to_config() | {"batch-size": pair}))
    rows = [own[: len(own) // pair * pair] for own in data.train.rows]
    return data._replace(train=data.train._replace(rows=rows))


def write_rows(data: FederatedData, folder: Path) -> None:
    """Writes every client's rows as PFLlib reads them: ``train/0.npz`` and so on."""
    for part, split in (("train", data.train), ("test", data.test)):
        (folder / part).mkdir(parents=True)
        for client, rows in enumerate(split.rows):
            x, y = split.take(torch.from_numpy(rows))
            held = {"x": x.numpy(), "y": y.numpy()}
            np.savez(folder / part / f"{client}.npz", data=np.array(held, dtype=object))


def write_task(
    e: Experiment,
    data: FederatedData,
    initial: Params,
    folder: Path,
    *,
    network: str,
    rows: int | None,
    left: int,
) -> None:
    """Writes the task of PFLlib's side, which leaves its models after the round ``left``.

    A client draws so many rows in a round: 0 for an epoch, None for one in the order of the rows.
    """
    pair = PAIRS[e.method]
    write_rows(data, folder / "dataset" / DATASET)
    torch.save([*initial.values()], folder / "start.pt")
    sizes = {"num_clients": e.num_clients, "batch_size": e.batch_size}
    steps = {"local_learning_rate": ETA, "local_epochs": 1, "global_rounds": e.num_rounds}
    task = {
        "server": pair.server,
        "split": pair.split and network not in WORKS,
        "network": network,
        "seed": e.seed,
        "classes": data.outputs,
        "left": left,
        "rows": rows,
        "args": sizes | steps | pair.theirs,
    }
    (folder / "task.json").write_text(json.dumps(task))


def accuracy_of_theirs(
    pair: Pair, left: Mapping[str, Any], e: Experiment, data: FederatedData
) -> float:
    """Returns the mean of the clients' accuracies by the models that PFLlib has left.

    These are the common one and the personal ones, each a list of arrays, with gates on their
    representations, if there are any. By FedAvg's experiment the common one is fine-tuned where the
    pair says so.
    """
    network = model_for(e, data.kind)
    names = [*network.init(torch_generator(e.seed, Stream.MODEL))]
    common = dict(zip(names, left["common"], strict=True))
    if pair.compared != "personal":
        trainer = Trainer(e, data, RamStore())
        everyone = range(e.num_clients)
        scores = score(trainer, {"model": common}, everyone, server_round=e.num_rounds)
        column = COMMON if pair.compared == "common" else TUNED
        return float(scores.columns["accuracy" + column].mean())
    found, gates = [], left.get("gates") or [None] * len(left["personal"])
    assert network.represent is not None  # for mypy: both networks have it
    for rows, leaves, gate in zip(data.test.rows, left["personal"], gates, strict=True):
        x, y = data.test.take(torch.from_numpy(rows))
        w = dict(zip(names, leaves, strict=True))
        outputs, _ = network.represent(w, x, None, gate, False)
        found.append(float((outputs.argmax(1) == y).float().mean()))
    return statistics.fmean(found)


def accuracy_of_ours(pair: Pair, platform: Platform, e: Experiment) -> float:
    """Returns the mean of the clients' accuracies by the same kind of model.

    A pair whose fine-tuned models are compared serves clients by these.
    """
    scores = platform.scores(e.num_rounds)
    column = COMMON if pair.compared == "common" else ""
    return float(scores.columns["accuracy" + column].mean())


def race(e: Experiment, command: Sequence[str]) -> Race:
    """Runs a method here and there, where the command starts PFLlib's side, in turns.

    Raises:
        PeerMissing: PFLlib's side cannot run.
    """
    pair, rounds = PAIRS[e.method], e.num_rounds
    plain = fedavg_like(e)
    data = rows_of(e)
    initial = model_for(plain, data.kind).init(torch_generator(e.seed, Stream.MODEL))
    times: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="engram-") as made:
        folder = Path(made)
        network = "cnn" if e.model == _CNN else "mlp"
        drawn = 0 if e.local_epochs else STEPS * BATCH
        write_task(e, data, initial, folder, network=network, rows=drawn, left=rounds)
        peer = Peer([*command, made], folder / "log")
        try:
            platform = Platform(e, data)
            for server_round in range(1, rounds + 1):
                began = time.perf_counter()
                platform.round(server_round)
                times.append((time.perf_counter() - began, peer.round() / 1000))
        finally:
            peer.end()
        left = torch.load(folder / DONE)
    ours, theirs = map(statistics.median, zip(*times[min(_WARM_UP, rounds - 1) :], strict=True))
    return Race(
        e.method,
        e.seed,
        RunScore(accuracy_of_ours(pair, platform, e), ours),
        RunScore(accuracy_of_theirs(pair, left, plain, data), theirs),
    )


def table(races: Iterable[Race]) -> Table:
    """Returns a row for each method: means over seeds, and the standard deviation over them.

    Both sides have the same rows and weights for a seed, so what they are judged by is the mean of
    their differences by seed, with its 95 % interval by Student's t.
    """
    by_method: dict[str, list[Race]] = {}
    for one in races:
        by_method.setdefault(one.method, []).append(one)
    sides = ("ours, %", "PFLlib, %", "ours - theirs, 95 %")
    made = Table("method", "model", *sides, "ms", "ours / theirs")
    for method, some in by_method.items():
        ours, theirs = ([100 * score.accuracy for score in part] for part in _sides(some))
        gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
        ms, theirs_ms = (
            1000 * statistics.fmean(score.seconds for score in part) for part in _sides(some)
        )
        shown = (_spread(ours, ".2f"), _spread(theirs, ".2f"), paired(gaps))
        made.add_row(method, PAIRS[method].compared, *shown, f"{ms:.0f}", f"{ms / theirs_ms:.2f}")
    return made


def paired(gaps: Sequence[float]) -> str:
    """Returns the mean of differences by seed, with half the width of its 95 % interval."""
    found = student(np.array(gaps))
    return f"{found.mean:+.2f}" + f" +- {found.high - found.mean:.2f}" * (len(gaps) > 1)


def _sides(races: Sequence[Race]) -> tuple[list[RunScore], list[RunScore]]:
    return [one.ours for one in races], [one.theirs for one in races]


def _spread(values: Sequence[float], form: str) -> str:
    mean = format(statistics.fmean(values), form)
    return f"{mean} +- {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def main(
    pfllib: Annotated[Path, typer.Option(help="checkout of PFLlib")],
    mnist: Annotated[Path, typer.Option(help="mnist.npz, with x_train and y_train")],
    python: Annotated[str, typer.Option(help="Python that PFLlib's servers run in")] = "",
    method: Annotated[str, typer.Option(help="with commas")] = ",".join(PAIRS),
    network: Annotated[str, typer.Option(help="mlp or cnn")] = "mlp",
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    rounds: Annotated[int, typer.Option(min=1)] = 60,
    epoch: Annotated[bool, typer.Option(help=f"a round, in place of {STEPS} steps")] = False,
) -> None:
    """Races methods against PFLlib's, with one thread each."""
    methods = chosen(method, PAIRS)
    chosen(network, NETWORKS)
    if not (pfllib / "system" / "flcore").is_dir():
        raise Refused(f"--pfllib must be a checkout of PFLlib, got {brief(str(pfllib))}")
    training_from_now_on(1)
    model(cnn, _CNN)
    arrays = read_npz(mnist)
    images = arrays["x_train"][:ROWS].reshape(-1, 1, 28, 28)
    dataset = hold({"x": images, "y": arrays["y_train"][:ROWS]})
    command = [python or sys.executable, "-m", "benchmarks.pfllib_peer", str(pfllib.resolve())]
    races = list[Race]()
    for seed in range(seeds):
        for name in methods:
            e = experiment(name, dataset, seed=seed, rounds=rounds, network=network, epoch=epoch)
            try:
                races.append(race(e, command))
            except PeerMissing as error:
                raise Refused(f"PFLlib's {name} does not run: {error}") from error
            out.print(json.dumps(races[-1]), soft_wrap=True)
    out.print(table(races))


if __name__ == "__main__":
    start(main)
