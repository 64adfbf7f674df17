"""Tables of attacks against defences: accuracy, and points that attacks cost, with intervals.

Losses are to the run of the same seed that nobody attacks, with the default bounds. Intervals have
95 %, by Student's t.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from rich import box
from rich.table import Table

from benchmarks.harness import percent
from engram.simulations.job_pool import Row

NOBODY: Final = "none"
DEFAULT: Final = "bound"


class Part(NamedTuple):
    """A part of the grid, by its names; its runs differ in their seeds."""

    method: str
    partition: str
    attack: str
    defence: str


def by_part(rows: Iterable[Row], name: str) -> dict[Part, dict[int, float]]:
    """Returns a column of rows by part and seed, without parts that lack it."""
    found: dict[Part, dict[int, float]] = {}
    for row in rows:
        if row.get(name) is not None:
            part = Part(*(str(row[key]) for key in Part._fields))
            found.setdefault(part, {})[int(row["seed"])] = float(row[name])
    return found


def losses(accuracy: Mapping[Part, Mapping[int, float]]) -> dict[Part, list[float]]:
    """Losses of each part by seed, of the seeds that both runs have."""
    found = {}
    for part, own in accuracy.items():
        free = accuracy.get(part._replace(attack=NOBODY, defence=DEFAULT), {})
        if both := own.keys() & free.keys():
            found[part] = [free[seed] - own[seed] for seed in sorted(both)]
    return found


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yields the tables of a grid: losses by defence and data, the greatest ones, and backdoors."""
    accuracy = by_part(rows, "accuracy")
    lost = losses(accuracy)
    defences = list(dict.fromkeys(part.defence for part in accuracy))
    places = list(dict.fromkeys((part.method, part.partition) for part in accuracy))
    attacks = list(dict.fromkeys(part.attack for part in accuracy))
    for partition in dict.fromkeys(part.partition for part in accuracy):
        for defence in defences:
            found = _table(f"{partition}, {defence}", "method", *attacks)
            for method, own in places:
                parts = [Part(method, partition, attack, defence) for attack in attacks]
                if own == partition and any(part in lost for part in parts):
                    found.add_row(method, *(_cell(part, accuracy, lost) for part in parts))
            yield found
    greatest = _table("the greatest loss, and by which attack", "method, data", *defences)
    for method, partition in places:
        each = [[Part(method, partition, a, d) for a in attacks] for d in defences]
        greatest.add_row(f"{method}, {partition}", *(_worst(some, lost) for some in each))
    yield greatest
    served, common = by_part(rows, "backdoor"), by_part(rows, "backdoor-common")
    yield from _backdoors(served, common, defences)


def _cell(
    part: Part, accuracy: Mapping[Part, Mapping[int, float]], lost: Mapping[Part, list[float]]
) -> str:
    """Formats a loss; the accuracy without attack and with the default bounds."""
    if part not in lost:
        return ""
    free = (part.attack, part.defence) == (NOBODY, DEFAULT)
    return percent(accuracy[part].values() if free else lost[part])


def _worst(parts: Iterable[Part], lost: Mapping[Part, list[float]]) -> str:
    known = [part for part in parts if part in lost]
    if not known:
        return ""
    part = max(known, key=lambda each: statistics.fmean(lost[each]))
    return f"{percent(lost[part])} ({part.attack})"


def _backdoors(
    served: Mapping[Part, Mapping[int, float]],
    common: Mapping[Part, Mapping[int, float]],
    defences: Sequence[str],
) -> Iterator[Table]:
    """Yields a table for each backdoor: of the models that serve clients, and of the common one."""
    for attack in dict.fromkeys(part.attack for part in served):
        found = _table(f"success of {attack} in percent", "method, data", *defences)
        for method, partition in dict.fromkeys((part.method, part.partition) for part in served):
            cells = []
            for defence in defences:
                part = Part(method, partition, attack, defence)
                means = [
                    f"{100 * statistics.fmean(some[part].values()):.0f}"
                    for some in (served, common)
                    if part in some
                ]
                cells.append(f"{means[0]} ({means[1]})" if len(means) == 2 else "".join(means))
            found.add_row(f"{method}, {partition}", *cells)
        yield found


def _table(title: str, *heads: str) -> Table:
    return Table(*heads, title=title, title_justify="left", box=box.MARKDOWN)
