"""Times communication rounds: every method, against FedJAX and a plain loop, in one process.

``python -m benchmarks.rounds`` prints a table for each workload. The contenders take turns, round
by round, so that each ratio is of times from the same minutes. Ours use the real strategy and grid,
without evaluation and records.
"""

from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer

from benchmarks.harness import chosen, in_turns, numbers_table, start
from benchmarks.peers import PEERS, PeerMissing
from benchmarks.workloads import WORKLOADS, Platform, experiment, federation
from engram.cli.console import out
from engram.settings.families import family

_STEPS = {"alpha": 0.01, "eta": 0.01}
_WARM_UP = 2


def time_workload(
    name: str, *, rounds: int, methods: list[str]
) -> tuple[dict[str, float], list[str]]:
    """Times a workload.

    Returns:
        Milliseconds a round of each contender, the median, and notes on peers that are left out.
    """
    workload = WORKLOADS[name]
    data = federation(workload, experiment(workload))
    runs: dict[str, Callable[[int], object]] = {
        label: Platform(experiment(workload, **settings), data).turn
        for label, settings in _variants(methods)
    }
    notes = []
    for label, build in PEERS.items():
        try:
            run = build(experiment(workload, method="fedavg", **_STEPS), data)
            runs[label] = _from_one(run)
        except PeerMissing as error:
            notes.append(f"{label} is left out: {error}")
    return in_turns(runs, rounds, warm_up=_WARM_UP), notes


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


def _from_one(run: Callable[[int], object]) -> Callable[[int], object]:
    """Function of a turn, counted from 0, that runs its round, counted from 1."""
    return lambda turn: run(turn + 1)


def main(
    workload: Annotated[str, typer.Option(help=f"some of {', '.join(WORKLOADS)}")] = "W1,W2,W3",
    method: Annotated[str, typer.Option(help="our methods")] = ",".join(family("local")),
    rounds: Annotated[int, typer.Option(min=0, help="timed rounds; 0: the workload's")] = 0,
) -> None:
    """Times rounds of the platform and of its peers, taking turns in this process."""
    workloads, methods = chosen(workload, WORKLOADS), chosen(method, family("local"))
    torch.set_num_threads(1)
    for name in workloads:
        some = rounds or WORKLOADS[name].rounds
        ms, notes = time_workload(name, rounds=some, methods=methods)
        others = [*(peer for peer in PEERS if peer in ms), next(iter(ms))]
        heads = ["ms a round", *(f"x {other}" for other in others)]
        table = numbers_table("", *heads, title=f"{name}: {WORKLOADS[name].meaning}")
        for label, own in ms.items():
            table.add_row(label, f"{own:.1f}", *(f"{own / ms[other]:.2f}" for other in others))
        out.print(table)
        for note in notes:
            out.print(note)


if __name__ == "__main__":
    start(main)
