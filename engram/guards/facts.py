"""Facts by which protections and other settings decide whether they go together.

Each says the facts that it needs where it acts, ends or gives, so that none knows another by name.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from enum import Enum
from typing import Final, NamedTuple

from engram.core.checks import Fault


class Fact(Enum):
    """A fact of rounds, in words, which may hold where a protection acts."""

    EACH = "the server reads each update by itself"
    MEAN = "the server takes the mean of updates alone"
    NO_STEP = "the server takes no step of its own"
    SUM = "what a client adds to the sum does not depend on the other clients"
    BOUNDED = "what a client adds has a largest norm"
    CURRENT = "a round asks a cohort, whose updates start from the same model"
    TRAINED = "updates leave clients as they were trained"
    EXACT = "updates have no noise of their own"
    CLOSE = "each update is close to what its client computed"
    SIZED = "messages have as many bytes in every round"
    GRADIENTS = "clients see rows by one gradient a step alone"
    SAMPLED = "each step draws its rows by chance, in secret"
    APART = "what is made of a row does not depend on the others"
    KNOWN = "cohorts are no secret"
    OPEN = "figures of rows may leave clients without noise"
    NOISY = "the server adds noise to the sum"
    CENTERED = "the server takes a robust center of updates"
    MASKED = "updates leave sites in masked sums"
    SOLVED = "a noise multiplier for all clients, whatever their rows, can be solved for"
    COVERED = "all that leaves a client has noise"
    ROWS = "all that leaves a client hides its single rows"


_GIVEN: Final = {Fact.BOUNDED, Fact.NOISY, Fact.CENTERED, Fact.MASKED, Fact.SOLVED}

ALWAYS: Final = frozenset(Fact) - {Fact.COVERED, Fact.ROWS} - _GIVEN
"""Facts that hold before any setting ends them, of methods that have no others."""


class Part(NamedTuple):
    """A setting, by its key, that needs facts, ends or gives them: see ``Guard``."""

    key: str
    value: object
    needs: Set[Fact] = frozenset()
    ends: Set[Fact] = frozenset()
    gives: Set[Fact] = frozenset()
    asks: int = 1
    per: int = 1

    def __str__(self) -> str:
        return f"{self.key} = {self.value}"


def facts_after(holds: Set[Fact], parts: Iterable[Part]) -> Set[Fact]:
    """Returns the facts that hold after all parts."""
    for part in parts:
        holds = (holds - part.ends) | part.gives
    return holds


def conflicts(
    holds: Set[Fact],
    parts: Iterable[Part],
    missing: Mapping[Fact, tuple[str, ...]],
    asked: int,
    counted: tuple[str, ...],
) -> Iterator[Fault]:
    """Yields a fault for each part that does not go with those before it.

    Args:
        holds: The facts that hold at first.
        parts: Parts in the order in which they act.
        missing: Why facts do not hold at first: words, and keys of settings that they are of.
        asked: Number of clients asked in a round.
        counted: Keys of the settings that the number of updates follows from.
    """
    ended, count = dict[Fact, Part](), asked
    for part in parts:
        for fact in sorted(part.needs - holds, key=lambda fact: fact.name):
            by = ended.get(fact)
            why, *keys = missing[fact] if by is None else (f"{by} ends that", by.key)
            yield Fault((part.key, *keys), f"{part} needs that {fact.value}: {why}")
        if count < part.asks:
            text = f"{part} needs at least {part.asks} updates a round, got {count}"
            yield Fault((part.key, *counted), f"{text}: see {', '.join(counted)}")
        count = -(-count // part.per)
        ended |= dict.fromkeys(holds & part.ends, part)
        holds = facts_after(holds, [part])
