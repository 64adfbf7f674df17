"""Random streams. Each is a function of its purpose and keys, and of nothing else.

Whatever is drawn for client 7 in round 3 is the same on every engine, whoever else takes part,
whichever node hosts the client, and whether or not the run was resumed in between.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # tables are read without torch
    import torch

    from engram.settings.experiment import Experiment


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
    ATTACKERS = 23
    ATTACKED_ROWS = 24
    BUCKETS = 25
    AUDIT = 26
    CLOCK = 27
    COMPRESSION = 28
    SCORED = 29
    ELSEWHERE = 30


def generator(seed: int, stream: Stream, *keys: int) -> np.random.Generator:
    """Returns a fresh generator for ``(seed, stream, keys)``; all are >= 0.

    Zeros at the end of keys count for nothing: numpy fills keys up with them.
    """
    return np.random.default_rng([seed, stream, *keys])


def unseen(experiment: "Experiment", names: Mapping[int, str]) -> frozenset[int]:
    """Returns the clients that never train: those that ``unseen`` lists, or drawn ones.

    A node knows the names of its own clients alone: names that no client has are left out.
    Clients without a name go by their numbers.
    """
    e = experiment
    if e.unseen:
        everyone, wanted = range(e.num_clients), e.unseen_names
        return frozenset(c for c in everyone if names.get(c, str(c)) in wanted)
    drawn = generator(e.seed, Stream.UNSEEN).permutation(e.num_clients)[: e.unseen_clients]
    return frozenset(drawn.tolist())


def scored(
    experiment: "Experiment", clients: Sequence[int], never: Collection[int] = ()
) -> list[int]:
    """Returns the clients of an evaluation: some that train, drawn by the seed, and all others.

    They are the same in every evaluation, and with every method.
    Of ``scored_clients`` 0, all are. ``clients`` can be scored, and ascend; ``never`` never train.
    """
    e = experiment
    train = [client for client in clients if client not in never]
    if not 0 < e.scored_clients < len(train):
        return [*clients]
    order = generator(e.seed, Stream.SCORED).permutation(clients[-1] + 1)
    drawn = order[np.isin(order, train)][: e.scored_clients]
    return sorted({*drawn.tolist(), *(client for client in clients if client in never)})


def groups_of(seed: int, clients: Sequence[int], others: int) -> list[list[int]]:
    """Deals clients, which ascend, into groups of more than ``others``, if there are so many.

    Each client's model is scored on the rows of the next ``others`` of its group, so that scores of
    two groups have no client in common.
    """
    order = generator(seed, Stream.ELSEWHERE).permutation(clients[-1] + 1)
    order = order[np.isin(order, clients)]
    return [g.tolist() for g in np.array_split(order, max(1, len(order) // (others + 1)))]


def torch_generator(seed: int, stream: Stream, *keys: int) -> "torch.Generator":
    """Returns the same for torch, on the CPU."""
    import torch  # noqa: PLC0415 - tables are read without it

    return torch.Generator().manual_seed(int(generator(seed, stream, *keys).integers(2**63)))


def fresh(
    noise: Callable[..., "torch.Tensor"], *keys: int
) -> Callable[[int, Stream], "torch.Tensor"]:
    """Builds a source of one place's noise: each call takes the next numbers of its stream."""
    calls = Counter[Stream]()

    def normal(size: int, stream: Stream) -> "torch.Tensor":
        again = (calls[stream],) if calls[stream] else ()
        calls[stream] += 1
        return noise(size, stream, *keys, *again)

    return normal
