"""Measures the machine's peak speed, and counts the operations of a round."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode


class Roofline(NamedTuple):
    """The speed of a large matrix product and of a large copy, with the run's threads."""

    flops: float  # floating-point operations a second, float32
    bytes: float  # bytes a second, read and written


def measure(device: str) -> Roofline:
    """Measures the machine, taking the best of several repetitions."""
    n, size = (1536, 2**24) if device == "cpu" else (8192, 2**28)
    a = torch.rand(n, n, device=device)
    x = torch.rand(size, device=device)
    y = torch.empty_like(x)
    product = _best(lambda: a @ a, device)
    copy = _best(lambda: y.copy_(x), device)
    return Roofline(2 * n**3 / product, 2 * x.numel() * x.itemsize / copy)


def count_flops(run: Callable[[], object]) -> int:
    """Returns the floating-point operations of the matrix products and convolutions of a call."""
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def _best(run: Callable[[], object], device: str) -> float:
    times = []
    for _ in range(7):
        _wait(device)
        start = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - start)
    return min(times)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)
