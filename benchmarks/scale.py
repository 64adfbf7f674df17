"""Time and memory of a round when many clients are registered, and when many take part.

``python -m benchmarks.scale`` prints both. Clients share the rows of one random data set, so that
they add only their index lists to memory.
"""

import statistics
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.memory import forget_peak, peak
from benchmarks.workloads import WORKLOADS, Platform, experiment
from federation.data.federated import FederatedData, Split

_ROWS = 60_000
_EACH = 40


def time_federations(sizes: list[tuple[int, int]], *, rounds: int = 10) -> list[dict[str, float]]:
    """Times FedAvg rounds of the MLP of W1 for several federations, which take turns.

    ``sizes`` are pairs of the clients of a federation and of a round. Two untimed rounds go first.

    Returns:
        For each, ``ms`` of the median round, ``registered-mib`` (memory of the federation without
        the shared rows) and ``peak-mib`` (additional memory of its rounds).
    """
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (_ROWS, 784), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 10, _ROWS))
    platforms, found = [], []
    for clients, each_round in sizes:
        before = forget_peak("cpu")
        held = Split(x, y, list(rng.integers(0, _ROWS, (clients, _EACH))))
        e = experiment(
            WORKLOADS["W1"], method="fedavg", num_clients=clients, clients_per_round=each_round
        )
        platforms.append(Platform(e, FederatedData(held, held, 10)))
        registered = forget_peak("cpu")
        platforms[-1].round(1)
        found.append({"registered-mib": registered - before, "peak-mib": peak("cpu") - registered})
    times: list[list[float]] = [[] for _ in sizes]
    for server_round in range(2, rounds + 3):
        for platform, taken in zip(platforms, times, strict=True):
            start = time.perf_counter()
            platform.round(server_round)
            taken.append((time.perf_counter() - start) * 1000)
    return [
        {"ms": statistics.median(taken[1:]), **memory}
        for taken, memory in zip(times, found, strict=True)
    ]


def main() -> None:
    """Prints a table."""
    torch.set_num_threads(1)
    sizes = [(1_000, 100), (100_000, 100), (10_000, 1_000)]
    table = Table(title="FedAvg, MLP 784-40-40-10, 10 steps of batch 5", title_justify="left")
    for column in ("clients", "a round", "ms a round", "registered MiB", "peak MiB beside it"):
        table.add_column(column, justify="right")
    for (clients, each_round), found in zip(sizes, time_federations(sizes), strict=True):
        numbers = (f"{found[key]:.0f}" for key in ("ms", "registered-mib", "peak-mib"))
        table.add_row(f"{clients:,}", f"{each_round:,}", *numbers)
    Console().print(table)


if __name__ == "__main__":
    main()
