"""Shared parts of studies' summaries: groups of rows, and a verdict on the best method."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from engram.simulations.job_pool import Row

_NAMED: Final = 4  # most methods that are named as no worse


def grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Groups rows by the values of some keys, in the order of first appearance.

    A value that is a dictionary counts as the tuple of its items.
    """
    found: dict[tuple[Hashable, ...], list[Row]] = {}
    for row in rows:
        values = (row[key] for key in keys)
        of = tuple(tuple(value.items()) if isinstance(value, dict) else value for value in values)
        found.setdefault(of, []).append(row)
    return found


class Nouns(NamedTuple):
    """Subject of a comparison, for ``in_words``."""

    one: str  # one of those compared
    best: str  # says of one that it is the best
    loss: str  # what is compared; less is better
    all: str  # says what the comparison is made of


PREDICTIONS: Final = Nouns("method", "predicts best", "mean loss", "this table")
REGRETS: Final = Nouns("policy", "is best", "mean regret", "these worlds")


def in_words(rows: Sequence[Row], nouns: Nouns = PREDICTIONS) -> str:
    """Names the best method only if its losses are surely lower than every other's.

    Otherwise, it names the methods that may do as well, and the simplest of them.

    Args:
        rows: The methods in the order of their simplicity, each with ``method``, its name;
            ``loss``; ``gap-low``, the lower limit of by how much its loss is above the least; and
            ``reason``, why it could not be fitted, or None.
        nouns: What is compared.
    """
    fitted = [row for row in rows if row["reason"] is None]
    if not fitted:
        return f"No {nouns.one} could be fitted."
    best = min(fitted, key=lambda row: row["loss"])
    close = [row for row in fitted if row is not best and row["gap-low"] <= 0]
    near = [row["method"] for row in sorted(close, key=lambda row: row["loss"])]
    name = best["method"]
    if not near:
        others = f"every other {nouns.one}'s" if len(fitted) > 1 else f"no other {nouns.one}'s"
        return f"{name} {nouns.best}: its {nouns.loss} is below {others}, beyond chance."
    # A wide interval makes nothing that is worse than the simplest of all enough.
    able = [row for row in fitted if row["loss"] <= fitted[0]["loss"]]
    simplest = next(row["method"] for row in able if row["method"] in near or row is best)
    text = f"No {nouns.one} is surely the best: {name} has the lowest {nouns.loss}, but "
    more = f" and {len(near) - _NAMED} others" if len(near) > _NAMED else ""
    text += f"{', '.join(near[:_NAMED])}{more} may do as well (the interval includes 0)."
    if simplest == name:
        worse = {*near} - {row["method"] for row in able}
        but = f" that do no worse than {fitted[0]['method']}" if worse else ""
        return f"{text} {name} is the simplest of them{but}."
    return f"{text} {simplest} is simpler than {name}, and enough as far as {nouns.all} can tell."
