"""Several models that clients and server exchange, and that start from draws of their own."""

from engram.types import Companion

__all__ = ["drawn_apart", "mark_of"]


def mark_of(number: int | str) -> str:
    """Returns what stands before the names of a model; the network's own is number 0."""
    return f"model{number}/" if int(number) else ""


def drawn_apart(count: int) -> tuple[Companion, ...]:
    """Returns the models beside the network's own; ``count`` is the number of all, >= 1."""
    return tuple(
        Companion(mark_of(number), personal=False, copied=True, drawn=True)
        for number in range(1, count)
    )
