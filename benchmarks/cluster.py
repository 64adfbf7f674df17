"""Times rounds on a Ray cluster of several raylets of this machine, beside those of one process.

``python -m benchmarks.cluster`` prints a row for each federation: rounds in one process and on the
cluster, which take turns, and what the latter take more, in milliseconds on the wall: medians, and
after them the shortest. With one worker that is what a cluster costs; several wait for each other's
cores.
"""

import statistics
import time
from contextlib import closing
from typing import Annotated, Any, Final

import numpy as np
import ray
import torch
import typer
from ray.cluster_utils import Cluster as Raylets

from benchmarks.harness import chosen, numbers_table, start
from benchmarks.workloads import WORKLOADS, Platform, experiment
from engram.cli.console import out
from engram.data.load_federation import federated_data
from engram.data.readers.in_memory import arrays_of, hold
from engram.simulations.ray_rounds import Cluster

_WARM_UP: Final = 3  # rounds


def time_rounds(name: str, method: str, rounds: int, address: str) -> dict[str, Any]:
    """Times a federation: milliseconds in ``one`` process, and on a ``cluster``.

    ``apart`` is the largest difference between parameters of their models.
    """
    workload, rng = WORKLOADS[name], np.random.default_rng(0)
    e = experiment(workload, method=method)
    y = np.repeat(np.arange(10), (e.rows_per_class + e.test_rows_per_class) * (e.num_clients + 1))
    x = rng.random((len(y), *workload.shape), dtype=np.float32)
    e = e.model_copy(update={"dataset": hold(arrays_of((x, y)))})
    data = federated_data(e)
    with closing(Cluster(address, e, "vectorized", data)) as share:
        runs = {"one": Platform(e, data), "cluster": Platform(e, data, share=share)}
        wall: dict[str, list[float]] = {who: [] for who in runs}
        for server_round in range(1, _WARM_UP + rounds + 1):
            for who, platform in runs.items():
                begun = time.perf_counter()
                platform.round(server_round)
                wall[who].append(1000 * (time.perf_counter() - begun))
        one, other = (platform.model for platform in runs.values())
        apart = max(float((leaf - other[path]).abs().max()) for path, leaf in one.items())
    return {**{who: took[_WARM_UP:] for who, took in wall.items()}, "apart": apart}


def main(
    of: Annotated[str, typer.Option(help=f"some of {', '.join(WORKLOADS)}")] = "W1",
    method: Annotated[str, typer.Option(help="any that trains networks")] = "fedavg",
    rounds: Annotated[int, typer.Option(min=1, help="timed rounds")] = 25,
    machines: Annotated[int, typer.Option(min=1, help="raylets, with a worker each")] = 1,
) -> None:
    """Times rounds in one process and on a Ray cluster of this machine."""
    torch.set_num_threads(1)
    how: dict[str, Any] = {"object_store_memory": 2**28, "include_dashboard": False}
    raylets: Any = Raylets(initialize_head=True, head_node_args={"num_cpus": 0, **how})
    try:
        for _ in range(machines):
            raylets.add_node(num_cpus=1, **how)
        heads = [*2 * ["one", "cluster", "overhead"], "apart"]
        table = numbers_table("", *heads, title=f"{method}, {machines} workers, {rounds} rounds")
        for name in chosen(of, WORKLOADS):
            found = time_rounds(name, method, rounds, raylets.address)
            one, many = found["one"], found["cluster"]
            more = statistics.median(b - a for a, b in zip(one, many, strict=True))
            each = [statistics.median(one), statistics.median(many), more]
            each += [min(one), min(many), min(many) - min(one)]
            table.add_row(name, *(f"{ms:.1f}" for ms in each), f"{found['apart']:.0e}")
        out.print(table)
    finally:
        ray.shutdown()
        raylets.shutdown()


if __name__ == "__main__":
    start(main)
