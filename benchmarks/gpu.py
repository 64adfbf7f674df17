"""Measures a GPU: ``python -m benchmarks.gpu --out FOLDER`` prints tables, and writes JSON there.

The parts, by importance: ``parity`` compares models and scores with those of the CPU, where clients
train one after the other; ``rounds`` times W1 to W3, ``many`` LocalMOML with a million registered
clients, ``resnet`` ResNet-18 with 500. Each is a process with a time of its own, so that none costs
the others; the file of one that was stopped has its rows so far. ``--device meta`` trains nothing:
it counts the memory of an H200 that the timed rounds take, and computes gradients without values.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import typer
from torch import Tensor
from torch.func import grad, vmap

from benchmarks.harness import chosen, in_turns, start
from benchmarks.rounds import variants
from benchmarks.scale import peak, registered, shared_rows
from benchmarks.workloads import WORKLOADS, Platform, Workload, experiment, federation
from engram.client.memory import RamStore
from engram.cohort.trainer.trainer import Trainer
from engram.core.process_modes import own_modes
from engram.core.slots import flat
from engram.core.types import Params
from engram.data.federated import FederatedData
from engram.networks.losses import mean_loss
from engram.scoring.tasks import task_of
from engram.settings.errors import one_line
from engram.settings.experiment import Experiment
from engram.settings.families import family

PARTS: Final = ("parity", "rounds", "many", "resnet")
_TOLERANCE: Final = 1e-4  # of float32, after a few rounds
_ROOM: Final = 139 * 2**30 // 4  # bytes: the part of an H200 that clients may take at once
_TINY: Final = {"num-clients": 4, "clients-per-round": 3, "local-steps": 2, "batch-size": 2}
_RESNET: Final = Workload(
    "500 clients, 50 a round; ResNet-18 on 32x32 pixels, 5 steps of batch 10",
    (3, 32, 32),
    {"model": "torchvision:resnet18", "norm": "group", "local-steps": 5, "batch-size": 10}
    | {"num-clients": 500, "clients-per-round": 50},
    rounds=3,
)
_NETWORKS: Final = {
    "mlp": WORKLOADS["W1"],
    "cnn": WORKLOADS["W3"],
    "resnet": _RESNET._replace(settings={"model": "resnet", "hidden": "4,8"}),
}
_WORKS: Final[dict[str, tuple[Mapping[str, Workload], list[str]]]] = {
    "parity": (_NETWORKS, ["fedavg"]),
    "rounds": (WORKLOADS, ["fedavg", "local-moml", "per-fedavg", "pfedme"]),
    "resnet": ({"ResNet-18": _RESNET}, ["fedavg", "ditto"]),
}

Row = dict[str, Any]
Work = tuple[Row, Callable[[], Row]]  # what a row is about, and what measures the rest of it


def tiny(work: Workload) -> Workload:
    """Returns a federation of four clients with the workload's network."""
    return work._replace(settings=work.settings | _TINY, rounds=2)


def gap(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Returns the largest difference; infinity where a number is not finite, or missing."""
    if found.keys() != expected.keys():
        return math.inf
    apart = [(leaf.cpu() - expected[name].cpu()).abs().max() for name, leaf in found.items()]
    return float(torch.stack(apart).nan_to_num(math.inf).max()) if apart else 0.0


def parity(device: str, small: bool) -> Iterator[Work]:
    """Compares each way to train on the device with training in turn on the CPU."""
    methods = ("fedavg", "ditto", "local-moml") if small else family("local")
    for (network, work), method in product(_NETWORKS.items(), methods):
        if experiment(work, method=method).network.personal != "norm" or network == "resnet":
            about = {"network": network, "method": method}
            yield about, partial(_compare, tiny(work), method, device)


def _compare(work: Workload, method: str, device: str) -> Row:
    e = experiment(work, method=method, device=device)
    ways = Platform(e, federation(work, e)).trainer.ways
    models, scores = _results(work, method, "cpu", "in-turn")
    found = [_results(work, method, device, way) for way in ways]
    apart = max(gap(each[0], models) for each in found)
    row = {"ways": " ".join(ways), "models": apart, "equal": apart < _TOLERANCE}
    return row | {"scores": max(gap(each[1], scores) for each in found)}


def _results(work: Workload, method: str, device: str, way: str) -> tuple[Params, Params]:
    """Trains some rounds; returns the slots of server and clients, and all clients' scores."""
    e = experiment(work, method=method, device=device)
    run = Platform(e, federation(work, e))
    run.trainer.ways = (way,)
    for turn in range(work.rounds):
        run.turn(turn)
    memories = run.trainer.recalled(range(e.num_clients), before=work.rounds + 1)
    kept = {f"{i}/{n}": x for i, m in enumerate(memories) for n, x in flat(m.kept).items()}
    return run.slots | kept, run.scores(work.rounds + 1).columns


def cases(part: str, device: str, small: bool) -> Iterator[tuple[str, Experiment, FederatedData]]:
    """Yields the federations of a part, by what they are called."""
    if part == "many":
        rows = shared_rows(device)
        for size in ((400, 20), (40, 5)) if small else ((1_000_000, 10_000), (10_000, 10_000)):
            yield "local-moml", *registered(size, rows, "local-moml")
        return
    works, methods = _WORKS[part]
    for name, given in works.items():
        work = tiny(given) if small else given
        data = federation(work, experiment(work, method="fedavg", device=device))
        for label, settings in variants(methods):
            yield f"{name}, {label}", experiment(work, **settings, device=device), data


def timed(e: Experiment, data: FederatedData, small: bool) -> Row:
    """Times rounds, without evaluation and records, and counts memory in GiB."""
    if e.device != "cpu":
        torch.cuda.reset_peak_memory_stats(e.device)
    run, (warm_up, turns) = Platform(e, data), (1, 1) if small else (2, 3)
    clock = partial(_clock, e.device)
    (ms,) = in_turns({"": run.turn}, turns, warm_up=warm_up, clock=clock).values()
    most = torch.cuda.max_memory_allocated(e.device) if e.device != "cpu" else 0
    row = {"at once": run.trainer.block, "GPU": most / 2**30, "host": peak() / 2**10}
    return {"ms": ms, "way": run.trainer.way} | row


def shapes(e: Experiment, data: FederatedData) -> Row:
    """Computes gradients of as many clients at once as an H200 trains, without values."""
    t = Trainer(e, data, RamStore())
    together = min(e.clients_per_round, max(1, _ROOM // t.bytes_each))
    empty, batch = partial(torch.empty, device="meta"), (together, e.batch_size)
    w = {leaf: empty((together, *x.shape)) for leaf, x in t.learner.network.initial.items()}
    rows = empty((*batch, *data.train.x.shape[1:])), empty(batch, dtype=torch.int64)
    found = vmap(grad(mean_loss(t.learner.model, task_of(e.task, e.loss))))(w, rows)
    fit = all(found[leaf].shape == x.shape for leaf, x in w.items())
    sizes = {"at once": together, "GPU": together * t.bytes_each / 2**30}
    return {"parameters": t.learner.size} | sizes | {"shapes": fit}


def _clock(device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def works(part: str, device: str, small: bool) -> Iterator[Work]:
    """Yields the rows of a part."""
    if part == "parity" and device != "meta":
        yield from parity(device, small)
        return
    for name, e, data in cases(part, "cpu" if device == "meta" else device, small):
        about = {"federation": name, "clients": e.num_clients, "a round": e.clients_per_round}
        counted = partial(shapes, e, data)
        yield about, counted if device == "meta" else partial(timed, e, data, small)


def measure(part: str, device: str, small: bool, file: Path) -> bool:
    """Prints and writes a part's rows as they come; returns whether all are as they should be."""
    rows = list[Row]()
    for about, rest in works(part, device, small):
        try:
            row = about | rest()
        except Exception as error:  # of any kind: other rows do without
            row = about | {"failure": f"{type(error).__name__}: {one_line(str(error))}"}
        for cells in (*([] if rows else [[*row], ["---"] * len(row)]), row.values()):
            each = (f"{x:.3g}" if isinstance(x, float) else str(x) for x in cells)
            print(f"| {' | '.join(each)} |", flush=True)
        rows.append(row)
        file.write_text(json.dumps({"part": part, "device": device, "rows": rows}, indent=1))
    return not any("failure" in row or not row.get("equal", True) for row in rows)


@own_modes()
def main(
    out: Annotated[Path, typer.Option(help="folder of the JSON files")] = Path("runs/gpu"),
    device: Annotated[str, typer.Option(help="cuda, cpu or meta")] = "cuda",
    part: Annotated[str, typer.Option(help="with commas")] = ",".join(PARTS),
    minutes: Annotated[float, typer.Option(help="most of each of several parts")] = 2.25,
    small: Annotated[bool, typer.Option("--small", help="tiny sizes, to try it")] = False,
) -> None:
    """Runs the parts one after the other; exits with 1 if one failed."""
    out.mkdir(parents=True, exist_ok=True)
    first, *others = chosen(part, PARTS)
    if not others:
        raise typer.Exit(int(not measure(first, device, small, out / f"{first}.json")))
    words = [sys.executable, "-m", "benchmarks.gpu", "--out", str(out), "--device", device]
    failed = 0
    for name in (first, *others):
        print(f"\n{name} on {device}\n", flush=True)
        try:
            command = [*words, "--part", name, *["--small"] * small]
            failed |= subprocess.run(command, timeout=60 * minutes, check=False).returncode
        except subprocess.TimeoutExpired:
            failed = 1
            print(f"\nstopped after {minutes:g} minutes", flush=True)
    raise typer.Exit(int(failed != 0))


if __name__ == "__main__":
    start(main)
