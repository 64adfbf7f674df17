"""Number of clients that are trained at once, by the memory available."""

from typing import TYPE_CHECKING, Final

from engram.cohort.dense import cost
from engram.core.machine import available
from engram.settings.errors import Refused

if TYPE_CHECKING:
    from engram.cohort.trainer.trainer import Trainer

_SHARE: Final = 4  # a process takes a fourth of the free memory: others may be training beside it
# As measured in benchmarks/NOTES.md:
_BLOCK: Final = 2**25  # most numbers that a block holds on a CPU: with more, caches help less


def block_of(trainer: "Trainer", size: int, rows: int) -> tuple[int, int]:
    """Returns the number of clients to train at once, and the bytes of one.

    Raises:
        Refused: As ``block_size``.
    """
    e, learner, ways = trainer.experiment, trainer.learner, trainer.ways
    client, network = trainer.method.client, learner.network.initial
    step = client.phases[0].batches * size
    numbers = 4 * step * learner.model.activations
    if "dense" in ways:
        numbers += cost(network, rows, size, client.phases[0].batches, client.initial_rows)
    else:
        held = step if e.local_epochs else rows
        numbers += held * trainer.data.train.numbers + 16 * learner.size
    numbers += 4 * learner.size if learner.optimizer.remembers else 0
    numbers += 3 * learner.size if e.local_epochs else 0  # groups of like lengths are joined
    numbers += 10 * learner.size if trainer.sending else 0  # in float64
    if learner.guard is not None:  # a gradient of each row, unless they are products
        products = learner.model.dense_layers and learner.model.features is None
        numbers += learner.size * (2 if products else 2 * step)
    block = block_size(4 * numbers, int(e.memory_budget * 2**30), device=e.device)
    if "vmap" not in ways and "dense" not in ways:
        return 1, 4 * numbers
    if e.device != "cpu":
        return block, 4 * numbers
    useful = _BLOCK if learner.model.features is None else 8 * _BLOCK
    return min(block, max(1, useful // numbers)), 4 * numbers


def block_size(each: int, budget: int, *, device: str) -> int:
    """Returns the number of clients to train at once.

    Args:
        each: Bytes that one client needs.
        budget: Most bytes that all clients may take together, or 0: a quarter of the free memory,
            but at least one client's. It comes with the run, from another machine, so never more
            is taken than is free here.
        device: Whose memory is used: that of the CPU, or of a GPU.

    Raises:
        Refused: Not even one client fits into the budget, or into the free memory.
    """
    free = available(device)
    limit = min(budget, free) if budget else free
    if each > limit:
        raise Refused(
            f"memory-budget: training one client takes about {each / 2**10:.0f} KiB, but "
            f"{limit / 2**10:.0f} KiB are {'allowed' if limit < free else 'free'}"
        )
    return limit // each if budget else max(1, limit // _SHARE // each)
