"""Time and memory of a round when many clients are registered, and when many take part.

``python -m benchmarks.scale`` prints both. Clients share the rows of one random data set, so that
they add only their index lists to memory.
"""

import numpy as np
import torch
from rich.console import Console

from benchmarks.harness import in_turns, numbers_table
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
    contenders = {
        i: lambda turn, platform=platform: platform.round(turn + 2)
        for i, platform in enumerate(platforms)
    }
    times = in_turns(contenders, rounds)
    return [{"ms": times[i], **memory} for i, memory in enumerate(found)]


def main() -> None:
    """Prints a table."""
    torch.set_num_threads(1)
    sizes = [(1_000, 100), (100_000, 100), (10_000, 1_000)]
    heads = "a round", "ms a round", "registered MiB", "peak MiB beside it"
    title = "FedAvg, MLP 784-40-40-10, 10 steps of batch 5"
    table = numbers_table("clients", *heads, title=title)
    for (clients, each_round), found in zip(sizes, time_federations(sizes), strict=True):
        numbers = (f"{found[key]:.0f}" for key in ("ms", "registered-mib", "peak-mib"))
        table.add_row(f"{clients:,}", f"{each_round:,}", *numbers)
    Console().print(table)


if __name__ == "__main__":
    main()
