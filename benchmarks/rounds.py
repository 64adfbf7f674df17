"""Times communication rounds of every method in one process.

``python -m benchmarks.rounds`` prints a table for each workload. The contenders take turns, round
by round, so that each ratio is of times from the same minutes. Ours use the real strategy and grid,
without evaluation and records.
"""

from typing import Annotated, Any

import torch
import typer

from benchmarks.harness import chosen, in_turns, numbers_table, start
from benchmarks.workloads import WORKLOADS, Platform, experiment, federation
from engram.cli.console import out
from engram.settings.families import family

_STEPS = {"alpha": 0.01, "eta": 0.01}
_WARM_UP = 2


def variants(methods: list[str]) -> list[tuple[str, dict[str, Any]]]:
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


def main(
    workload: Annotated[str, typer.Option(help=f"some of {', '.join(WORKLOADS)}")] = "W1,W2,W3",
    method: Annotated[str, typer.Option(help="our methods")] = ",".join(family("local")),
    rounds: Annotated[int, typer.Option(min=0, help="timed rounds; 0: the workload's")] = 0,
) -> None:
    """Prints a table for each workload."""
    workloads, methods = chosen(workload, WORKLOADS), chosen(method, family("local"))
    torch.set_num_threads(1)
    for name in workloads:
        work = WORKLOADS[name]
        data = federation(work, experiment(work))
        runs = {
            label: Platform(experiment(work, **settings), data).turn
            for label, settings in variants(methods)
        }
        ms = in_turns(runs, rounds or work.rounds, warm_up=_WARM_UP)
        first, title = next(iter(ms)), f"{name}: {work.meaning}"
        table = numbers_table("", "ms a round", f"x {first}", title=title)
        for label, own in ms.items():
            table.add_row(label, f"{own:.1f}", f"{own / ms[first]:.2f}")
        out.print(table)


if __name__ == "__main__":
    start(main)
