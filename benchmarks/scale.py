"""Time and memory of a round when many clients are registered, and when many take part.

``python -m benchmarks.scale`` prints both, and of a whole run: from its beginning to its results,
with checkpoints, and evaluations of as many clients as train in a round. Clients share the rows of
one random data set, so that they add only their index lists to memory.
"""

import ctypes
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from benchmarks.harness import in_turns, numbers_table
from benchmarks.workloads import WORKLOADS, Platform, experiment
from engram.cli.console import out
from engram.client.hosts.local import LocalHost
from engram.cohort.trainer.trainer import Trainer
from engram.data.federated import FederatedData, Split
from engram.settings.experiment import Experiment
from engram.simulations.engine import simulate

_ROWS = 60_000
_EACH = 40


def registered(
    size: tuple[int, int], rows: tuple[torch.Tensor, torch.Tensor], method: str = "fedavg"
) -> tuple[Experiment, FederatedData]:
    """Returns clients with the MLP of W1 that share rows: so many, and so many in a round."""
    (clients, each_round), device = size, str(rows[1].device)
    held = Split(*rows, list(np.random.default_rng(0).integers(0, _ROWS, (clients, _EACH))))
    settings = {"method": method, "num_clients": clients, "clients_per_round": each_round}
    return experiment(WORKLOADS["W1"], **settings, device=device), FederatedData(held, held, 10)


def time_federations(sizes: list[tuple[int, int]], *, rounds: int = 10) -> list[dict[str, float]]:
    """Times FedAvg rounds of the MLP of W1 for several federations, which take turns.

    ``sizes`` are pairs of the clients of a federation and of a round. Two untimed rounds go first.

    Returns:
        For each, ``ms`` of the median round, ``registered-mib`` (memory of the federation without
        the shared rows) and ``peak-mib`` (additional memory of its rounds).
    """
    rows, platforms, found = shared_rows("cpu"), [], []
    for size in sizes:
        before = forget_peak()
        platforms.append(Platform(*registered(size, rows)))
        ready = forget_peak()
        platforms[-1].round(1)
        found.append({"registered-mib": ready - before, "peak-mib": peak() - ready})
    contenders = {
        i: lambda turn, platform=platform: platform.round(turn + 2)
        for i, platform in enumerate(platforms)
    }
    times = in_turns(contenders, rounds)
    return [{"ms": times[i], **memory} for i, memory in enumerate(found)]


def whole_run(clients: int, each_round: int, *, rounds: int = 10) -> dict[str, float]:
    """Runs FedAvg, with an evaluation at the beginning and after every fifth round.

    Returns:
        ``seconds``, and ``peak-mib``: additional memory beside the data.
    """
    e = experiment(
        WORKLOADS["W1"],
        method="fedavg",
        num_clients=clients,
        clients_per_round=each_round,
        num_rounds=rounds,
        eval_every=5,
        checkpoint_every=5,
        scored_clients=each_round,
        validation_fraction=0.0,
        eta=0.001,
    )
    _, data = registered((clients, each_round), shared_rows("cpu"))
    before, begun = forget_peak(), time.perf_counter()
    with TemporaryDirectory(prefix="engram-") as made:
        simulate(
            e,
            Path(made) / "run",
            opens=lambda opening: LocalHost(Trainer(opening.experiment, data, opening.store)),
        )
    return {"seconds": time.perf_counter() - begun, "peak-mib": peak() - before}


def shared_rows(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns random grey levels and classes."""
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.integers(0, 256, (_ROWS, 784), dtype=np.uint8))
    return x.to(device), torch.from_numpy(rng.integers(0, 10, _ROWS)).to(device)


def forget_peak() -> float:
    """Starts a new measurement; returns the memory in use now."""
    # Freed memory that the allocator keeps would hide later allocations.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: forgets VmHWM
    return _status("VmRSS")


def peak() -> float:
    """Returns the most memory in use since then."""
    return _status("VmHWM")


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(field))
    return int(line.split()[1]) / 1024


def main() -> None:
    """Prints two tables."""
    torch.set_num_threads(1)
    sizes = [(1_000, 100), (100_000, 100), (1_000, 1_000), (1_000_000, 1_000)]
    heads = "a round", "ms a round", "registered MiB", "peak MiB beside it"
    title = "FedAvg, MLP 784-40-40-10, 10 steps of batch 5"
    table = numbers_table("clients", *heads, title=title)
    for (clients, each_round), found in zip(sizes, time_federations(sizes), strict=True):
        numbers = (f"{found[key]:.0f}" for key in ("ms", "registered-mib", "peak-mib"))
        table.add_row(f"{clients:,}", f"{each_round:,}", *numbers)
    out.print(table)
    table = numbers_table("clients", "a round, and scored", "s", "peak MiB beside the data")
    for clients, each_round in ((1_000, 1_000), (1_000_000, 1_000)):
        found = whole_run(clients, each_round)
        table.add_row(f"{clients:,}", f"{each_round:,}", *(f"{x:.0f}" for x in found.values()))
    out.print(table)


if __name__ == "__main__":
    main()
