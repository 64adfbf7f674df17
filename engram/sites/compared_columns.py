"""Columns that are compared between the sites that have them: kind, and values."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Self

from engram.data.schema.written import key
from engram.data.tables.table_summary import DescribedColumn, DescribedTable
from engram.settings.errors import one_line


class Compared(NamedTuple):
    """A column as sites describe it."""

    name: str
    sites: Mapping[str, DescribedColumn]  # the description of each site that has it
    kind: str  # the kind that it has at most sites that are sure; whole numbers are numbers
    alike: Collection[str]  # sites that agree about its values; the first one, if none do
    values: tuple[str, ...]  # their values, in one spelling, those that most of them have first

    @classmethod
    def of(cls, tables: Mapping[str, DescribedTable], name: str) -> Self:
        """Compares a column of sites' tables."""
        sites = {site: t.columns[name] for site, t in tables.items() if name in t.columns}
        told = [each for each in sites.values() if each.column.kind]
        sure = [each for each in told if not each.asked] or told
        kinds = Counter(plain_kind(each.column.kind) for each in sure)
        kind = max(kinds, key=lambda kind: (kinds[kind], kind == "number"), default="number")
        alike = _alike(
            {
                site: {*each.column.values}
                for site, each in sites.items()
                if each.column.values and plain_kind(each.column.kind) == kind
            }
        )
        counts = Counter(value for site in alike for value in sites[site].column.values)
        order = sorted((-n, value) for value, n in counts.items() if value.isprintable())
        spelled: dict[str, str] = {}
        for _, value in order:
            spelled.setdefault(_folded(value), value)
        return cls(name, sites, kind, alike, tuple(spelled.values()))

    def line(self, own: Iterable[str], agreed: Iterable[str]) -> str:
        """Returns the line of a schema that maps a site's values.

        What a number means, its place does not say; a word is known by its spelling alone.
        """
        spelled = {_folded(value): value for value in agreed if self.kind == "category"}
        each = ((value, spelled.get(_folded(value), "...")) for value in own)
        pairs = ", ".join(f"{_quoted(value)} = {_quoted(meant)}" for value, meant in each)
        return one_line(f"columns.{key(self.name)} = {{values = {{{pairs}}}}}")


def plain_kind(kind: str) -> str:
    """Returns a kind, with whole numbers as numbers."""
    return "number" if kind == "whole" else kind


def _alike(held: Mapping[str, set[str]]) -> list[str]:
    """Returns the sites that agree about values; the first one, if none do.

    A site does not agree if it alone has a value and lacks one that all others have; or if it and
    most of the others each have values that the other lacks, and at most half of them in common.
    """
    if len(held) < 2:
        return [*held]
    found = []
    for site, own in held.items():
        others = [each for other, each in held.items() if other != site]
        alone, lacking = own.difference(*others), set.intersection(*others) - own
        apart = [each for each in others if own - each and each - own]
        far = [each for each in apart if 2 * len(own & each) <= min(len(own), len(each))]
        if not (alone and lacking) and 2 * len(far) <= len(others):
            found.append(site)
    return found or [*held][:1]


def _folded(value: str) -> str:
    return " ".join(value.casefold().split())


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
