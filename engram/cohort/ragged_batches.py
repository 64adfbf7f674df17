"""Arranges clients with batches of different sizes and numbers for common steps.

A batch is padded with its last row, which has no part in the mean. A client that is done repeats
its last step, which does not move it.
"""

from typing import Final

import numpy as np
import torch

from engram.cohort.draws import Draws, Steps

_LEAST: Final = 0.75  # of the steps times the batch of its group, those of each client


def arranged(draws: Draws) -> Steps:
    """Arranges the steps of all clients of these draws, which have ``sizes``."""
    sizes = draws.sizes
    assert sizes is not None  # for mypy: others need not be arranged
    clients, ends = len(draws.rows), (sizes > 0).sum(1)
    taken = np.minimum(np.arange(ends.max()), ends[:, None] - 1)  # the last one, once done
    counts = np.take_along_axis(sizes, taken, axis=1)
    numbers = [np.broadcast_to(np.arange(draws.initial), (clients, draws.initial))]
    for h, k in enumerate(counts.max(0)):
        row = np.minimum(np.arange(k), counts[:, h, None] - 1)  # the last one as padding
        batch = taken[:, h, None] * draws.batches + np.arange(draws.batches)
        found = draws.initial + batch[:, :, None] * draws.size + row[:, None]
        numbers.append(found.reshape(clients, -1))
    at = torch.from_numpy(np.concatenate(numbers, 1)).to(draws.rows.device)
    seeds = None if draws.seeds is None else draws.seeds.gather(1, at)
    packed = draws._replace(rows=draws.rows.gather(1, at), seeds=seeds, sizes=None)
    padded, unlike = np.ptp(counts, axis=0).any(), np.ptp(ends)
    return Steps(
        packed, counts.max(0).tolist(), counts if padded else None, ends if unlike else None
    )


def groups(draws: Draws, *, padded: bool) -> list[list[int]]:
    """Returns positions of clients to train together, in groups.

    Args:
        draws: The clients' draws, which have ``sizes``.
        padded: Whether clients of a group may differ in their batches: then by so little that
            most rows are not padding. Their phases begin at the same steps.
    """
    sizes = draws.sizes
    assert sizes is not None  # for mypy: others are all alike
    if not padded:
        _, kinds = np.unique(sizes, axis=0, return_inverse=True)
        return [np.flatnonzero(kinds.ravel() == kind).tolist() for kind in range(kinds.max() + 1)]
    steps, widths = (sizes > 0).sum(1), sizes.max(1)
    found: list[list[int]] = []
    for i in np.lexsort((widths, steps))[::-1].tolist():
        if found:
            first = found[-1][0]  # has the most steps
            width = max(widths[i], widths[found[-1]].max())
            full = steps[i] * widths[i] >= _LEAST * steps[first] * width
        if not found or not full or (draws.starts[i] != draws.starts[first]).any():
            found.append([])
        found[-1].append(i)
    return [sorted(some) for some in found]
