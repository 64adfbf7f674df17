"""Growth of a federation's processes and folders over a thousand rounds.

``python -m benchmarks.endurance --rounds 1000`` runs LocalMOML, with memories carried from round to
round, on a federation of three nodes on this machine, with TLS. Early, halfway and at the end it
measures memory and open descriptors of each process, and the size of each folder.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import psutil
import typer

from benchmarks.harness import Keep, new_folder, start
from engram.settings.experiment import Experiment
from engram.settings.files import stats_below
from engram.simulations.deployed import run_deployed
from engram.simulations.loopback import LoopbackFederation

_CLIENTS = 3


class Size(NamedTuple):
    """The means that a process and its folder take."""

    memory: float  # MiB that no other process shares
    descriptors: int  # open files and connections
    disk: float  # MiB


def settings(rounds: int) -> dict[str, Any]:
    """Settings of cheap rounds with scores and checkpoints."""
    return {
        "num-rounds": rounds,
        "num-clients": _CLIENTS,
        "clients-per-round": _CLIENTS,
        "memory": "carry",
        "hidden": "8",
        "rows-per-class": 5,
        "local-steps": 1,
        "eval-every": 10,
        "checkpoint-every": 10,
    }


def milestones(rounds: int) -> list[int]:
    """Rounds of the measurements, in order."""
    return sorted({max(rounds // 10, 1), max(rounds // 2, 1), rounds})


def measure(processes: Iterable[psutil.Process], folder: Path) -> Size:
    """Measures processes, those of them that have ended aside, and a folder of theirs."""
    memory, descriptors = 0, 0
    for process in processes:
        try:
            memory += process.memory_full_info().uss
            descriptors += process.num_fds()
        except psutil.NoSuchProcess:
            continue
    disk = sum(stat.st_size for stat in stats_below(folder))
    return Size(memory / 2**20, descriptors, disk / 2**20)


def measure_all(processes: Mapping[str, int], federation: Path, run: Path) -> dict[str, Size]:
    """Measures a federation: SuperLink and nodes, by name, and the run's ``coordinator``."""
    sizes = {}
    for name, number in processes.items():
        all_of_it = [psutil.Process(number), *psutil.Process(number).children(recursive=True)]
        sizes[name] = measure(all_of_it, federation / ("server" if name == "superlink" else name))
    if coordinator := [each for each in psutil.Process().children() if coordinates(each)]:
        sizes["coordinator"] = measure(coordinator, run)
    return sizes


def coordinates(process: psutil.Process) -> bool:
    """Returns whether a process is a run's coordinator."""
    try:
        return any("engram.simulations.coordinator" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def endure(folder: Path, rounds: int) -> dict[int, dict[str, Size]]:
    """Runs the federation in a new folder; returns its sizes, by round and by process."""
    found = {}
    with LoopbackFederation(folder / "federation", clients=_CLIENTS) as federation:
        processes = {name: process.pid for name, process in federation.processes.items()}

        def on_round(row: Mapping[str, Any]) -> None:
            if row["round"] in milestones(rounds):
                sizes = measure_all(processes, folder / "federation", folder / "run")
                found[row["round"]] = sizes
                print_sizes(row["round"], sizes)

        experiment = Experiment.from_config(settings(rounds + rounds // 10))  # it ends with plots
        run_deployed(
            experiment, folder / "run", federation.server,
            on_round=on_round, on_trouble=print,
        )  # fmt: skip
    return found


def print_sizes(server_round: int, sizes: Mapping[str, Size]) -> None:
    """Prints a line for each process after a round."""
    for name, size in sizes.items():
        print(
            f"| {server_round} | {name} | {size.memory:.1f} MiB | {size.descriptors} "
            f"| {size.disk:.2f} MiB |",
            flush=True,
        )


def growing(found: Mapping[int, Mapping[str, Size]]) -> Sequence[str]:
    """Returns the processes with more descriptors at the end than at first, beyond a few."""
    first, last = found[min(found)], found[max(found)]
    return [name for name in last if last[name].descriptors > first[name].descriptors + 8]


def main(rounds: Annotated[int, typer.Option(min=1)] = 1000, keep: Keep = False) -> None:
    """Prints the resources of a federation early, halfway and at the end."""
    print(
        "| round | process | memory | descriptors | its folder |\n|---|---|---|---|---|", flush=True
    )
    with new_folder("endurance", keep=keep) as folder:
        found = endure(folder, rounds)
    if names := growing(found):
        print(f"more and more descriptors: {', '.join(names)}")
        raise typer.Exit(1)


if __name__ == "__main__":
    start(main)
