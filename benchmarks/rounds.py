"""Times communication rounds: every method, against FedJAX and a plain loop, in one process.

``python -m benchmarks.rounds`` prints a table for each workload. The contenders take turns, round
by round, from start to end, so that each ratio is of times from the same minutes. Ours use the
real strategy and grid, without evaluation and records.
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks.harness import chosen, numbers_table, start
from benchmarks.memory import forget_peak, peak
from benchmarks.peers import PEERS, PeerMissing
from benchmarks.roofline import Roofline, count_flops, measure
from benchmarks.workloads import WORKLOADS, Platform, experiment, federation
from federation.data.dealing import has_device
from federation.errors import Refused
from federation.methods import family

Run = Callable[[int], object]  # does the round of a number

_STEPS = {"alpha": 0.01, "eta": 0.01}
_WARM_UP = 2


class Spent(NamedTuple):
    """Cost of each contender's rounds, by its name."""

    ms: dict[str, list[float]]  # of every timed round
    bare: dict[str, list[float]]  # likewise, of only the trainer; none of peers
    mib: dict[str, float]  # peak memory of the first round


def time_workload(
    name: str, *, rounds: int, device: str, roofline: Roofline, methods: list[str]
) -> dict[str, Any]:
    """Times a workload: ``rows``, one per contender, and ``notes`` on peers left out."""
    workload = WORKLOADS[name]
    data = federation(workload, experiment(workload, device=device))
    platforms = {
        label: Platform(experiment(workload, device=device, **settings), data)
        for label, settings in _variants(methods)
    }
    peers, notes = dict[str, Run](), []
    for label, build in PEERS.items():
        try:
            e = experiment(workload, device=device, method="fedavg", **_STEPS)
            peers[label] = build(e, data)
        except PeerMissing as error:
            notes.append(f"{label} is left out: {error}")
    runs: dict[str, Run] = {label: ours.round for label, ours in platforms.items()}
    bare: dict[str, Run] = {label: ours.bare() for label, ours in platforms.items()}
    spent = _race(name, runs | peers, bare, rounds, device)
    medians = {label: statistics.median(ms) for label, ms in spent.ms.items()}
    rows = []
    for label, ms in spent.ms.items():
        others = [*peers, next(iter(platforms))]
        row = {
            "name": label,
            "ms": medians[label],
            "min-ms": min(ms),
            "peak-mib": spent.mib[label],
            "ratios": {other: medians[label] / medians[other] for other in others},
        }
        if label in bare:
            alone = statistics.median(spent.bare[label])
            flops = count_flops(partial(bare[label], 1))
            speed = flops / (alone / 1000)
            row |= {"bare-ms": alone, "gflop": flops / 1e9, "of-roofline": speed / roofline.flops}
        rows.append(row)
    return {"rows": rows, "notes": notes}


def _race(
    title: str, runs: dict[str, Run], bare: dict[str, Run], rounds: int, device: str
) -> Spent:
    """Lets contenders take turns, round by round; ours also without strategy and messages."""
    spent = Spent({label: [] for label in runs}, {label: [] for label in bare}, {})
    field = list(runs)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for server_round in progress.track(range(1, _WARM_UP + rounds + 1), description=title):
            # Rotated, so that none always follows the same one, whose threads may still spin.
            turn = server_round % len(field)
            for label in [*field[turn:], *field[:turn]]:
                if label in bare and server_round % 2:
                    spent.bare[label].append(_ms(bare[label], server_round, device))
                before = forget_peak(device) if server_round == 1 else 0.0
                spent.ms[label].append(_ms(runs[label], server_round, device))
                spent.mib.setdefault(label, peak(device) - before)
                if label in bare and not server_round % 2:
                    spent.bare[label].append(_ms(bare[label], server_round, device))
    ms, alone = (
        {label: each[_WARM_UP:] for label, each in times.items()}
        for times in (spent.ms, spent.bare)
    )
    return spent._replace(ms=ms, bare=alone)


def _variants(methods: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Returns our variants to time: FedAvg first, since the others are compared with it."""
    variants = []
    for name in sorted(methods, key=lambda name: name != "fedavg"):
        settings = _STEPS | {"method": name}
        if name in ("local-moml", "per-fedavg"):
            variants += [
                (f"{name}, {hessian}", settings | {"hessian": hessian})
                for hessian in ("first-order", "exact")
            ]
        else:
            variants.append((name, settings))
    return variants


def _ms(run: Run, server_round: int, device: str) -> float:
    begun = time.perf_counter()
    run(server_round)
    if device != "cpu":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - begun) * 1000


def _show(name: str, found: dict[str, Any]) -> None:
    peers = [row["name"] for row in found["rows"] if "bare-ms" not in row]
    first = found["rows"][0]["name"]
    heads = ["ms a round", "min", "trainer", *(f"x {peer}" for peer in peers), f"x own {first}"]
    title = f"{name}: {WORKLOADS[name].meaning}"
    table = numbers_table("", *heads, "peak MiB", "GFLOP", "of roofline", title=title)
    for row in found["rows"]:
        ours = "bare-ms" in row
        table.add_row(
            row["name"],
            f"{row['ms']:.1f}",
            f"{row['min-ms']:.1f}",
            f"{row['bare-ms']:.1f}" if ours else "",
            *(f"{row['ratios'][peer]:.2f}" for peer in peers),
            f"{row['ratios'][first]:.2f}",
            f"{row['peak-mib']:.0f}",
            f"{row['gflop']:.2f}" if ours else "",
            f"{row['of-roofline']:.0%}" if ours else "",
        )
    console = Console()
    console.print(table)
    for note in found["notes"]:
        console.print(note)


def main(
    workload: Annotated[str, typer.Option(help=f"some of {', '.join(WORKLOADS)}")] = "W1,W2,W3",
    method: Annotated[str, typer.Option(help="our methods")] = ",".join(family("local")),
    rounds: Annotated[int, typer.Option(min=0, help="timed rounds; 0: the workload's")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N")] = "cpu",
    cores: Annotated[int, typer.Option(min=0, help="cores for all; 0: all there are")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
) -> None:
    """Times rounds of the platform and of its peers, taking turns in this process."""
    workloads, methods = chosen(workload, WORKLOADS), chosen(method, family("local"))
    if cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    torch.set_num_threads(1)
    if device != "cpu" and not has_device(device):
        raise Refused(f"device {device} is not there: torch does not find it")
    roofline = measure(device)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "device": torch.cuda.get_device_name(device) if device != "cpu" else "cpu, 1 thread",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gflops": roofline.flops / 1e9,
        "gbytes": roofline.bytes / 1e9,
    }
    found = {}
    for name in workloads:
        found[name] = time_workload(
            name,
            rounds=rounds or WORKLOADS[name].rounds,
            device=device,
            roofline=roofline,
            methods=methods,
        )
        if not as_json:
            _show(name, found[name])
    if as_json:
        print(json.dumps({"machine": machine, "workloads": found}, indent=2))
    else:
        print(", ".join(f"{key} {value}" for key, value in machine.items()))


if __name__ == "__main__":
    start(main)
