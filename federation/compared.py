"""A column's kind and values, compared between the sites that have it."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping

from federation.data.schema.written import key
from federation.described import DescribedColumn
from federation.errors import one_line

Sites = Mapping[str, DescribedColumn]
"""A column as the sites that have it describe it."""


def kind_of_sites(there: Sites) -> str:
    """Returns the kind that a column has at most sites that are sure; whole numbers are numbers."""
    told = [column for column in there.values() if column.column.kind]
    sure = [column for column in told if not column.asked] or told
    kinds = Counter(plain_kind(column.column.kind) for column in sure)
    return max(kinds, key=lambda kind: (kinds[kind], kind == "number"), default="number")


def plain_kind(kind: str) -> str:
    """Returns a kind by which inputs differ: whole numbers are numbers."""
    return "number" if kind == "whole" else kind


def agreed_values(there: Sites) -> list[str]:
    """Returns the values of sites that agree, in one spelling, those that most sites have first."""
    counts = Counter(v for site in sites_alike(there) for v in there[site].column.values)
    order = sorted((-n, value) for value, n in counts.items() if value.isprintable())
    spelled: dict[str, str] = {}
    for _, value in order:
        spelled.setdefault(_folded(value), value)
    return [*spelled.values()]


def _folded(value: str) -> str:
    return " ".join(value.casefold().split())


def sites_alike(there: Sites) -> list[str]:
    """Returns the sites that agree about a column's values; the first one, if none do.

    A site does not agree if it alone has a value and lacks one that all others have, or if it and
    half of the others each have values that the other lacks, and not half of them in common.
    """
    kind = kind_of_sites(there)
    held = {
        site: {*c.column.values}
        for site, c in there.items()
        if c.column.values and plain_kind(c.column.kind) == kind
    }
    found = []
    for site, own in held.items():
        others = [each for other, each in held.items() if other != site]
        alone = own.difference(*others)
        lacking = set.intersection(*others) - own if others else set()
        apart = [o for o in others if own - o and o - own and _far(own, o)]
        if not (alone and lacking) and (not others or 2 * len(apart) < len(others)):
            found.append(site)
    return found or list(held)[:1]


def _far(one: set[str], other: set[str]) -> bool:
    return 2 * len(one & other) <= min(len(one), len(other))


def line_of_values(name: str, own: Iterable[str], agreed: Iterable[str]) -> str:
    """Returns the line of a schema that has a site's values mean the agreed ones."""
    spelled = {_folded(value): value for value in agreed}
    each = ((json.dumps(v, ensure_ascii=False), spelled.get(_folded(v), "...")) for v in own)
    pairs = ", ".join(f"{v} = {json.dumps(a, ensure_ascii=False)}" for v, a in each)
    return one_line(f"columns.{key(name)} = {{values = {{{pairs}}}}}")
