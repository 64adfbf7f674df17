"""Times MOLAR's parts: ``python -m benchmarks.molar`` prints seconds of one thread.

``python -m tests.evidence.molar`` compares errors.
"""

import time
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from threadpoolctl import threadpool_limits

from benchmarks.harness import in_turns, numbers_table
from benchmarks.memory import forget_peak, peak
from engram.molar.shrinkage import combine
from engram.molar.simulation import linear_rows
from engram.molar.site import SiteEstimate, estimate_site

_SIGMA = 0.1  # of the noise


def time_server(tasks: int, dim: int) -> dict[str, float]:
    """Times the server's part; returns ``seconds`` and peak memory ``mib``, without its inputs."""
    rng = np.random.default_rng(0)
    sites = [
        SiteEstimate(rng.standard_normal(dim), rng.random(dim) + 0.5, 100.0 + m, 1.0 + m % 3)
        for m in range(tasks)
    ]
    combine(sites[:2])  # whatever is loaded at first
    held, begun = forget_peak("cpu"), time.perf_counter()
    combine(sites)
    return {"seconds": time.perf_counter() - begun, "mib": peak("cpu") - held}


def time_site(size: int, dim: int, *, turns: int) -> dict[str, float]:
    """Times a site's part and NumPy's least squares and QR of the same rows, in turns.

    Returns:
        Milliseconds of ``site``, ``lstsq`` and ``qr`` (R alone).
    """
    rng = np.random.default_rng(0)
    rows = linear_rows(rng, rng.standard_normal(dim), size, _SIGMA)
    return in_turns(
        {
            "site": lambda _: estimate_site(rows),
            "lstsq": lambda _: np.linalg.lstsq(rows.x, rows.y),
            "qr": lambda _: np.linalg.qr(rows.x, mode="r"),
        },
        turns,
    )


def main(turns: Annotated[int, typer.Option(min=1, help="Turns of a site's part.")] = 10) -> None:
    """Prints tables."""
    server = numbers_table(
        "tasks", "coefficients", "seconds", "peak MiB", title="the server's part"
    )
    site = numbers_table("rows", "columns", "seconds", "/ lstsq", "/ QR", title="a site's part")
    with threadpool_limits(1):
        for tasks, dim in ((500, 1000), (1000, 500), (1000, 1000)):
            found = time_server(tasks, dim)
            server.add_row(str(tasks), str(dim), f"{found['seconds']:.3f}", f"{found['mib']:.0f}")
        for size, dim in ((5000, 300), (2000, 50), (20_000, 100)):
            ms = time_site(size, dim, turns=turns)
            ratios = (f"{ms['site'] / ms[name]:.2f}" for name in ("lstsq", "qr"))
            site.add_row(str(size), str(dim), f"{ms['site'] / 1000:.4f}", *ratios)
    Console().print(server, site, sep="\n")


if __name__ == "__main__":
    typer.run(main)
