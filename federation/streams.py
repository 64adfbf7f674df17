"""Random streams. Each is a function of its purpose and keys, and of nothing else.

Whatever is drawn for client 7 in round 3 is the same on every engine, whoever else takes part,
whichever node hosts the client, and whether or not the run was resumed in between.
"""

from enum import IntEnum

import numpy as np
import torch


class Stream(IntEnum):
    """Purposes of random streams. The numbers are part of the results: never change one."""

    MODEL = 1
    DATA_SPLIT = 2
    PARTITION = 3
    COHORT = 4
    INITIAL_BATCH = 5
    LOCAL_STEPS = 6
    SUPPORT = 7
    CLIENT_NOISE = 8
    SERVER_NOISE = 9
    EPISODE_TASKS = 10
    EPISODE_ROWS = 11
    EVALUATION = 12
    WORLD = 13
    TIES = 14
    DROPOUT = 15
    AUGMENTATION = 16
    VALIDATION = 17
    UNSEEN = 18
    FINE_TUNING = 19
    TUNING = 20
    HYPERNETWORK = 21
    FOLDS = 22


def generator(seed: int, stream: Stream, *keys: int) -> np.random.Generator:
    """Returns a fresh generator for ``(seed, stream, keys)``; all are >= 0."""
    return np.random.default_rng([seed, stream, *keys])


def unseen(seed: int, clients: int, count: int) -> frozenset[int]:
    """Returns which of the clients never train: so many of them."""
    return frozenset(generator(seed, Stream.UNSEEN).permutation(clients)[:count].tolist())


def torch_generator(seed: int, stream: Stream, *keys: int) -> torch.Generator:
    """Returns the same for torch, on the CPU."""
    return torch.Generator().manual_seed(int(generator(seed, stream, *keys).integers(2**63)))
