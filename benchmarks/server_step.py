"""Times the universal ensemble's server step: ``python -m benchmarks.server_step``.

``python -m tests.evidence.server_step`` compares what servers' steps reach.
"""

import statistics
import time
from typing import Annotated

import torch
import typer
from rich.console import Console

from benchmarks.harness import numbers_table
from engram.core.method import Client, FromMean, Method, Served, Server, Update
from engram.core.rounds import merged
from engram.core.slots import kinds_of, replace, sends
from engram.online.server_step import has_exp_concave, universal_step

_SIZES = (14, 200, 650, 33_000, 1_000_000)


def time_step(dim: int, turns: int) -> dict[str, float]:
    """Times the ensemble's step and the mean's, in turns: ``universal`` and ``mean``, in ms."""
    model = {"w": torch.randn(dim, generator=torch.Generator().manual_seed(0))}
    plain = Method(
        Server({"model": model}, sends("model"), FromMean(replace)),
        Client(
            lambda received, kept, batch: received, (), lambda received, work: (work, {}), set()
        ),
        serve=lambda received, kept, trained: Served((received["model"],)),
        kinds=kinds_of(models="model"),
    )
    contenders = {"universal": universal_step(plain, 10.0), "mean": plain}
    servers = {name: method.server.start for name, method in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + 2):
        noise = torch.randn(dim, generator=torch.Generator().manual_seed(turn))
        for name, method in contenders.items():
            update = {"model": {"w": 0.9 * servers[name]["model"]["w"] + 0.1 * noise}}
            begun = time.perf_counter()
            servers[name] = merged(method, servers[name], [Update(update, 1.0)])
            times[name].append(1000 * (time.perf_counter() - begun))
    # The first turns only warm up.
    return {name: statistics.median(spent[2:]) for name, spent in times.items()}


def main(turns: Annotated[int, typer.Option(min=1, help="timed steps")] = 20) -> None:
    """Prints a table."""
    torch.set_num_threads(1)
    heads = "exp-concave learners", "universal", "mean", "ratio"
    title = "milliseconds of the server's step, one thread"
    table = numbers_table("parameters", *heads, title=title)
    for dim in _SIZES:
        found = time_step(dim, turns)
        table.add_row(
            f"{dim:,}",
            "yes" if has_exp_concave(dim) else "no",
            f"{found['universal']:.2f}",
            f"{found['mean']:.3f}",
            f"{found['universal'] / found['mean']:.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
