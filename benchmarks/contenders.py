"""Times rounds of Engram and of other systems at equal work.

``python -m benchmarks.contenders --peers PYTHON`` prints a table for each federation. All systems
train the same network from the same start, on the same rows, in as many steps of as many rows; none
evaluates. They take turns, round by round, each in a process of its own, but for Engram. Where one
can use cores in several ways, the one with the fastest of the warm-up rounds goes on, and stands
behind the milliseconds. A second table shows how far each one's first model is from that of
the plain loop.
"""

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import torch
import typer
from rich import box
from rich.table import Table

from benchmarks.accuracy import write_task
from benchmarks.harness import chosen, numbers_table, start
from benchmarks.networks import LENGTH, OWN, STEP_SIZE, TOKENS, WORKS
from benchmarks.peers import Peer, PeerMissing, drawn_rows, write_round
from benchmarks.pfllib_pairs import PAIRS
from benchmarks.pfllib_peer import DONE
from benchmarks.workloads import Platform
from engram.cli.console import out
from engram.cohort.trainer.workers import Workers
from engram.core.machine import cores
from engram.data.federated import FederatedData, Split
from engram.data.readers.in_memory import hold
from engram.networks.registry import model
from engram.settings.errors import Refused, brief
from engram.settings.experiment import Experiment, read_by

METHODS: Final = ("fedavg", "per-fedavg", "pfedme", "ditto")
SYSTEMS: Final = {
    "Engram": METHODS,
    "Engram, local-epochs=1": METHODS,
    "plain PyTorch": METHODS,
    "FedJAX": ("fedavg",),
    "pfl-research": ("fedavg",),
    "Flower": ("fedavg",),
    "fluke": METHODS,
    "PFLlib": METHODS,
}
"""All contenders, and the methods that each has."""

_OURS, _EPOCHS, _PLAIN, *_ = SYSTEMS
_WARM_UP: Final = 5  # rounds, in which Engram finds its faster way as well
CASES: Final = WORKS | OWN

Key = tuple[str, str]  # a system, and the way in which it uses cores
Run = Callable[[int], float]  # does the round of a number, and returns its milliseconds


class Outcome(NamedTuple):
    """Rounds of one method.

    Attributes:
        ms: Milliseconds of each system's round, the median, and its way.
        apart: Largest difference of each one's first model from the plain loop's.
        notes: Reasons why systems are left out.
    """

    ms: dict[str, tuple[float, str]]
    apart: dict[str, float]
    notes: dict[str, str]


def experiment(work: str, method: str, **settings: Any) -> Experiment:
    """Returns our side's settings for one of ``CASES``."""
    case, network = CASES[work], {"model": work}
    if work in OWN:
        model(case.make, work)
    else:
        widths = ",".join(map(str, case.widths[:-1]))
        network = {"model": "cnn" if case.channels else "mlp", "hidden": widths}
    shared = {
        "method": method,
        "num-clients": case.clients,
        "clients-per-round": case.clients,
        "local-steps": case.steps,
        "batch-size": case.batch,
        "eta": STEP_SIZE,
    }
    if case.shape == (LENGTH,):  # which no data set of Engram's own has
        shared |= {"task": "next-token", "dataset": hold(dict.fromkeys("xy", np.zeros((9, 2))))}
    ours = PAIRS[method].ours | settings
    given = {key.strip("_").replace("_", "-"): value for key, value in ours.items()}
    return Experiment.from_config(read_by(method, shared | network | given))


def federation(work: str) -> FederatedData:
    """Returns random rows, for each client as many as a pass of its steps goes over."""
    case, rng = CASES[work], np.random.default_rng(0)
    each = case.steps * case.batch
    count = case.clients * each
    x, y = torch.from_numpy(rng.random((count, *case.shape), dtype=np.float32)), torch.arange(count)
    if case.shape == (LENGTH,):
        tokens = torch.from_numpy(rng.integers(TOKENS, size=(count, LENGTH + 1)))
        x, y = tokens[:, :-1], tokens[:, 1:]
    rows = Split(x, y % case.outputs, [*np.arange(count).reshape(case.clients, each)])
    return FederatedData(rows, rows, case.outputs)


def ways(
    work: str, method: str, folder: Path, pfllib: Path | None, many: int
) -> dict[Key, tuple[Sequence[str], int]]:
    """Returns the words that start each peer that has a method, and its number of threads.

    The folder holds the first round, as ``peers.write_round`` has written it.
    """
    task = work, str(folder), method
    threads = {_number(count, "thread"): count for count in (1, many)}
    made: dict[Key, tuple[Sequence[str], int]] = {}
    for way, count in threads.items():
        for peer in (_PLAIN, "FedJAX", "pfl-research", "fluke"):
            made[peer, way] = ("benchmarks.module_peers", peer, *task), count
        if pfllib:
            own = folder / "PFLlib"
            made["PFLlib", way] = ("benchmarks.pfllib_peer", str(pfllib), str(own)), count
    made["Flower", _number(many, "actor")] = ("benchmarks.flower_peer", *task, str(many)), 1
    return {key: made[key] for key in made if method in SYSTEMS[key[0]]}


def race(
    work: str, method: str, rounds: int, python: str, pfllib: Path | None, many: int
) -> Outcome:
    """Times a method of all systems on so many cores.

    Without a Python of an environment with peers only the plain loop is there.
    """
    data, most = federation(work), 0 if many == cores() else many
    ours = {_OURS: experiment(work, method, cores=most)}
    ours[_EPOCHS] = experiment(work, method, cores=most, local_epochs=1)
    times: dict[Key, list[float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engram-")))
        write_round(ours[_OURS], data, CASES[work], folder)
        if pfllib:
            _write_pfllib(work, ours[_OURS], data, folder)
        shares = {name: stack.enter_context(closing(Workers(e))) for name, e in ours.items()}
        platforms = {name: Platform(e, data, shares[name]) for name, e in ours.items()}
        peers, notes = _start(stack, folder, python, ways(work, method, folder, pfllib, many))
        runs = {(name, ""): _timed(each) for name, each in platforms.items()} | peers
        for server_round in range(1, _WARM_UP + rounds + 1):
            for key, run in [*runs.items()]:
                try:
                    times.setdefault(key, []).append(run(server_round))
                except PeerMissing as error:
                    notes[key[0]] = str(error)
                    del runs[key]
            if server_round == 1:
                apart = distances(_first_models(folder) | {_OURS: platforms[_OURS].model.values()})
            if server_round == _WARM_UP:
                runs = {key: runs[key] for key in fastest({key: min(times[key]) for key in runs})}
        used = {
            name: f"{_number(1 + len(share.pids), 'core')}, {platforms[name].trainer.way}".strip(
                " ,"
            )
            for name, share in shares.items()
        }
    medians = {key: statistics.median(times[key][_WARM_UP:]) for key in runs}
    ms = {name: (each, way or used[name]) for (name, way), each in medians.items()}
    return Outcome(ms, apart, {name: why for name, why in notes.items() if name not in ms})


def fastest(ms: Mapping[Key, float]) -> list[Key]:
    """Returns each system with its fastest way."""
    best: dict[str, Key] = {}
    for key in sorted(ms, key=lambda key: ms[key]):
        best.setdefault(key[0], key)
    return [key for key in ms if key in best.values()]


def distances(models: Mapping[str, Iterable[Any]]) -> dict[str, float]:
    """Largest distance of each model's leaves from the plain loop's."""
    plain = [*models[_PLAIN]]
    return {
        name: max(
            float((torch.as_tensor(leaf) - other).abs().max())
            for leaf, other in zip(leaves, plain, strict=True)
        )
        for name, leaves in models.items()
    }


def table(cells: Mapping[str, Mapping[str, str]]) -> Table:
    """Returns a row for each system, with its cells by method."""
    made = numbers_table("", *cells)
    made.box, made.padding = box.MARKDOWN, (0, 1)
    for name, methods in SYSTEMS.items():
        each = (cells[m].get(name, "left out" if m in methods else "none") for m in cells)
        made.add_row(name, *each)
    return made


def show(work: str, found: Mapping[str, Outcome]) -> None:
    """Prints the tables of one federation, by method."""
    ms = {
        method: {name: f"{each:.{each < 100:d}f} ({way})" for name, (each, way) in one.ms.items()}
        for method, one in found.items()
    }
    apart = {
        method: dict.fromkeys(one.ms, "not compared")
        | {name: f"{each:.0e}" for name, each in one.apart.items()}
        for method, one in found.items()
    }
    out.print(f"{work}: milliseconds of a round", table(ms))
    out.print(f"{work}: distance from plain PyTorch after the first round", table(apart))
    for method, one in found.items():
        for name, why in one.notes.items():
            out.print(f"{name} is left out of {method}: {why}", soft_wrap=True)


def main(
    peers: Annotated[str, typer.Option(help="Python of an environment with peers")] = "",
    pfllib: Annotated[Path | None, typer.Option(help="checkout of PFLlib")] = None,
    work: Annotated[str, typer.Option(help=f"of {', '.join(CASES)}")] = ",".join(WORKS),
    method: Annotated[str, typer.Option(help="with commas")] = ",".join(METHODS),
    rounds: Annotated[int, typer.Option(min=1, help="timed rounds")] = 10,
    count: Annotated[int, typer.Option("--cores", min=1, help="of each system")] = cores(),
) -> None:
    """Times rounds of all systems, in turns, with as many cores for each."""
    works, methods = chosen(work, CASES), chosen(method, METHODS)
    if peers and not shutil.which(peers):
        raise Refused(f"--peers must be a Python, got {brief(peers)}")
    if pfllib and not (pfllib / "system" / "flcore").is_dir():
        raise Refused(f"--pfllib must be a checkout of PFLlib, got {brief(str(pfllib))}")
    pfllib = pfllib and pfllib.resolve()
    for each in works:
        found = {}
        for name in methods:
            found[name] = race(each, name, rounds, peers, pfllib, count)
            print(json.dumps([each, name, found[name]]), flush=True)
        show(each, found)


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count > 1)}"


def _start(
    stack: ExitStack, folder: Path, python: str, each: Mapping[Key, tuple[Sequence[str], int]]
) -> tuple[dict[Key, Run], dict[str, str]]:
    """Starts peers, which the stack ends; returns their rounds, and why others are left out."""
    runs, notes = dict[Key, Run](), dict[str, str]()
    for key, (words, threads) in each.items():
        try:
            if not python and key[0] != _PLAIN:
                raise PeerMissing("--peers names no environment")
            command = [python or sys.executable, "-m", *words]
            peer = Peer(command, folder / f"{' '.join(key)}.log", threads)
            stack.callback(peer.end)
            runs[key] = peer.round
        except PeerMissing as error:
            notes[key[0]] = str(error)
    return runs, notes


def _timed(platform: Platform) -> Run:
    def run(server_round: int) -> float:
        begun = time.perf_counter()
        platform.round(server_round)
        return 1000 * (time.perf_counter() - begun)

    return run


def _write_pfllib(work: str, e: Experiment, data: FederatedData, folder: Path) -> None:
    rows = [drawn_rows(e, data, 1, client).flatten().numpy() for client in range(e.num_clients)]
    drawn = data._replace(train=data.train._replace(rows=rows))
    initial = torch.load(folder / "start.pt")
    write_task(e, drawn, initial, folder / "PFLlib", network=work, rows=None, left=1)


def _first_models(folder: Path) -> dict[str, Iterable[Any]]:
    left = {path.stem.removeprefix("after-"): path for path in folder.glob("after-*.pt")}
    models = {name: torch.load(path) for name, path in left.items()}
    found = {
        name: each.values() if isinstance(each, dict) else each for name, each in models.items()
    }
    theirs = folder / "PFLlib" / DONE
    return found | ({"PFLlib": torch.load(theirs)["common"]} if theirs.exists() else {})


if __name__ == "__main__":
    start(main)
