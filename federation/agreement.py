"""Agreement of sites' tables: one schema for all of them, and whatever keeps a site from it."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final, NamedTuple

from federation.compared import (
    Sites,
    agreed_values,
    kind_of_sites,
    line_of_values,
    plain_kind,
    sites_alike,
)
from federation.data.schema.rules import FEW
from federation.data.schema.written import key, read_schema, to_toml
from federation.data.values import Columns, name_order
from federation.described import DescribedColumn, DescribedTable
from federation.errors import few_names, one_line
from federation.schema import INPUTS, Column
from federation.settings.data import DataSettings

_APART: Final = 2.0  # times one median that another at least is, of numbers in another unit
_NAMED: Final = ("date", "ordered")  # kinds that are never inferred
_MARKS: Final = ("|", ";")  # of the setting categories
_INTO: Final = "into its schema.toml"
_WORDS: Final = {
    "number": "numbers",
    "whole": "numbers",
    "category": "text",
    "truth": "true or false",
    "date": "dates",
}
_OF_INPUTS: Final = ("dates", "identifiers", "texts")  # questions that are none of a target
_ASKED: Final = {
    "dates": "looks like dates",
    "decorated": "is numbers with marks or a unit",
    "mixed": "has text among numbers",
    "identifiers": "looks like identifiers",
    "codes": "has codes far from its other numbers",
    "texts": "is text of many values",
    "blanks": "has values that differ in blanks alone",
}

Tables = Mapping[str, DescribedTable]


class Finding(NamedTuple):
    """Something about a site's table that someone should look at.

    Attributes:
        site: The site.
        text: What it is, and how it is mended.
        stops: Whether the site cannot take part before.
    """

    site: str
    text: str
    stops: bool = True

    def __str__(self) -> str:
        return f"{self.site}: {self.text}"


def proposed(
    tables: Tables, given: Mapping[str, Any], targets: Sequence[str], *, union: bool = False
) -> dict[str, Any]:
    """Returns settings by which all sites' tables are read alike.

    Inputs are the columns that all sites have, in the order of their names, but for targets, the
    column of clients, kinds that are none, and text whose values are not told. A column of text has
    the values of all sites that agree, those that most sites have first. Medians stand for missing
    values where there are some.

    Args:
        tables: The sites' tables.
        given: Settings by key that stay as they are.
        targets: Columns that are no inputs; if there is one, it is the target.
        union: Whether inputs are the columns that any site has. The median of the sites' medians
            stands for a column in tables that lack it; of text, the value that most sites have.
    """
    columns, schema = _columns_of(given), read_schema(given.get("schema") or "columns = {}")
    settings: dict[str, Any] = {"target-column": targets[0]} if len(targets) == 1 else {}
    names = columns.inputs or [
        name
        for name in _names(tables, 1 if union else len(tables))
        if name not in (*targets, columns.target, columns.task)
        and _is_usable(_sites(tables, name), columns.schema.column(name))
    ]
    declared, written = _declared(columns), [*schema.columns]
    for name in (*names, *targets):
        there = _sites(tables, name)
        if name not in declared and kind_of_sites(there) == "category":
            values = agreed_values(there)
            # Among inputs the first one is the reference of linear models.
            values = values if name not in targets else sorted(values)
            declared |= {name: tuple(values)} if values else {}
        elif name in targets[:1] and "task" not in given:
            settings |= _classes_of(there)
        if name not in schema.by_name:
            written += _written(there, Column(name), declared.get(name, ()))
    settings["input-columns"] = ",".join(names)
    plain = {n: v for n, v in declared.items() if not any(m in "".join(v) for m in _MARKS)}
    if plain:
        each = (f"{name}={'|'.join(values)}" for name, values in sorted(plain.items()))
        settings["categories"] = "; ".join(each)
    if written:
        settings["schema"] = to_toml(replace(schema, columns=tuple(written)))
    if union and (lacked := [n for n in names if len(_sites(tables, n)) < len(tables)]):
        each = (f"{name}={_usual(_sites(tables, name), declared)}" for name in lacked)
        settings["optional-columns"] = "; ".join(each)
    missing = any(each.missing for name in names for each in _sites(tables, name).values())
    if (missing or "optional-columns" in settings) and "missing" not in given:
        settings["missing"] = "median"
    return settings | {key: value for key, value in given.items() if key not in settings}


def findings(
    tables: Tables, settings: Mapping[str, Any], targets: Collection[str] = ()
) -> list[Finding]:
    """Returns everything that keeps sites from taking part by these settings, or looks odd.

    Args:
        tables: The sites' tables.
        settings: The settings by key.
        targets: Columns that must be in every table, and in every row; by default the target.
    """
    columns, classes = _columns_of(settings), settings.get("num-classes") or 0
    targets = targets or [columns.target]
    apart = (*targets, columns.target, columns.task)
    usual = [name for name in _names(tables, len(tables) // 2 + 1) if name not in apart]
    inputs = list(columns.inputs) or usual
    found: list[Finding] = []
    for site, table in tables.items():
        found += _of_names(tables, site, inputs, usual, columns, apart)
        if optional := [name for name in columns.defaults if name not in table.columns]:
            each = few_names(f"{_called(name)} ({columns.defaults[name]})" for name in optional)
            text = f"lacks {each}: there it is missing in all rows, as optional-columns says"
            found.append(Finding(site, text, stops=False))
        for name, column in table.columns.items():
            there, is_target = _sites(tables, name), name in targets
            stops, said = list[str](), list[str]()
            if _is_asked(column, columns, is_target=is_target):
                (stops if column.column.kind in INPUTS else said).append(_question(column))
            elif name in (*inputs, *targets):
                stops += _of_kind(there, site, columns, classes if is_target else 0)
            if name in (*inputs, *targets):
                stops += _of_missing(column, columns, table.rows, is_target=is_target)
                said += [*_of_unit(there, site), *_of_scale(there, site)]
                said += ["has blanks around values: they are left out"] if column.blanks else []
            found += [Finding(site, f"{_called(name)} {text}") for text in stops]
            found += [Finding(site, f"{_called(name)} {text}", stops=False) for text in said]
    return found


def summary(tables: Tables, settings: Mapping[str, Any]) -> list[list[str]]:
    """Returns a line for each column that some site has: name, kind, values and missing values.

    Args:
        tables: The sites' tables.
        settings: The settings by which they are read; columns that these leave out are so called.
    """
    columns, lines = _columns_of(settings), []
    rows, declared = sum(table.rows for table in tables.values()), _declared(columns)
    for name in sorted(
        {name for table in tables.values() for name in table.columns}, key=name_order
    ):
        there = _sites(tables, name)
        values = declared.get(name, ())
        told = [there[site].median if site in there else None for site in tables]
        medians = [("-" if m is None else f"{m:.10g}") for m in told if any(told)]
        kind = "category" if values else kind_of_sites(there)
        if name == columns.target:
            kind = f"{kind}, the target"
        elif columns.inputs and name not in columns.inputs:
            kind = f"{kind}, left out"
        missing = sum(column.missing or 0 for column in there.values())
        share = f"{100 * missing / rows:.2g} %" if missing and rows else ""
        lines.append([name, kind, " | ".join(values or medians), share])
    return lines


def _columns_of(settings: Mapping[str, Any]) -> Columns:
    known = DataSettings.all_keys()
    own = {key: value for key, value in settings.items() if key in known}
    return Columns.of(DataSettings.model_validate(own), alone=True)


def _declared(columns: Columns) -> dict[str, tuple[str, ...]]:
    return {c.name: c.values for c in columns.schema.columns if c.values}


def _sites(tables: Tables, name: str) -> dict[str, DescribedColumn]:
    return {site: t.columns[name] for site, t in tables.items() if name in t.columns}


def _usual(there: Sites, declared: Mapping[str, Sequence[str]]) -> str:
    """Returns the value that stands for a column where a table lacks it."""
    name = next(iter(there.values())).column.name
    if name in declared:
        return declared[name][0]
    return f"{median([c.median for c in there.values() if c.median is not None] or [0.0]):.10g}"


def _names(tables: Tables, least: int) -> list[str]:
    """Returns the columns that so many sites have, in the order of their names."""
    counts = Counter(name for table in tables.values() for name in table.columns)
    return sorted((name for name in counts if counts[name] >= least), key=name_order)


def _is_usable(there: Sites, given: Column) -> bool:
    name, kind = given.name, given.kind or kind_of_sites(there)
    written = not any(mark in name for mark in ",;=|") and name == name.strip()
    return (
        written
        and name.isprintable()
        and kind in INPUTS
        and (kind != "category" or bool(given.values or agreed_values(there)))
    )


def _written(there: Sites, column: Column, values: tuple[str, ...]) -> list[Column]:
    """Returns what a schema has to say of a column, if it is anything."""
    kind, units = kind_of_sites(there), {c.column.unit for c in there.values()} - {""}
    if kind in _NAMED:
        first = next(c.column for c in there.values() if c.column.kind == kind)
        column = replace(first, role="input")
    elif any(mark in "".join(values) for mark in _MARKS):
        column = replace(column, kind="category", values=values)
    column = replace(column, unit=units.pop() if len(units) == 1 else "")
    return [column] if column.kind or column.unit else []


def _classes_of(there: Sites) -> dict[str, int]:
    """Returns the number of classes where they are numbered from 0, and sites have others."""
    held = {column.column.values for column in there.values()}
    numbers = all(c.column.values and plain_kind(c.column.kind) == "number" for c in there.values())
    values = [value for site in sites_alike(there) for value in there[site].column.values]
    if len(held) < 2 or not numbers or not all(re.fullmatch(r"\d{1,3}", v) for v in values):
        return {}
    return {"num-classes": max(map(int, values)) + 1}


# --- Of one site -----------------------------------------------------------------------------


def _of_names(
    tables: Tables,
    site: str,
    inputs: Sequence[str],
    usual: Sequence[str],
    columns: Columns,
    apart: Collection[str],
) -> Iterator[Finding]:
    """Yields that a site lacks columns that others have, or has others besides."""
    own = tables[site].columns
    alone = [name for name in own if name not in usual and name not in apart]
    besides = f" (it has {few_names(alone)} besides)" if alone else ""
    targets = [name for name in apart if name and name != columns.task]
    for name in dict.fromkeys(targets):
        if name not in own and any(name in table.columns for table in tables.values()):
            yield Finding(site, f"lacks the target {_called(name)}{besides}: add or rename it")
    if lacking := [name for name in inputs if name not in own and name not in columns.defaults]:
        mend = "add or rename them, or leave them out by input-columns"
        yield Finding(site, f"lacks {few_names(lacking)}{besides}: {mend}")
    elif out := [name for name in usual if name not in own and name not in inputs]:
        mend = "they are left out everywhere, unless this site adds or renames them"
        yield Finding(site, f"lacks {few_names(out)}{besides}: {mend}", stops=False)
    elif alone and not columns.inputs:
        mend = "leave them out by input-columns, for all sites"
        yield Finding(site, f"has {few_names(alone)}, which others lack: {mend}")


def _is_asked(column: DescribedColumn, columns: Columns, *, is_target: bool) -> bool:
    """Whether a question of a site about a column is open."""
    given = columns.schema.by_name.get(column.column.name, Column(""))
    answered = given.kind and not (given.kind == "category" and given.values)
    return bool(column.asked and not answered and not (is_target and column.asked in _OF_INPUTS))


def _question(column: DescribedColumn) -> str:
    lines = ", or ".join(map(one_line, column.choices))
    write = f"write {lines} {_INTO}" if lines else "its log has the cells, and the line to write"
    left = "" if column.column.kind in INPUTS else ", and is left out"
    return f"{_ASKED.get(column.asked, 'is asked about')}{left}: {write}"


def _of_kind(there: Sites, site: str, columns: Columns, classes: int) -> Iterator[str]:
    """Yields that a site's kind, or its values, are others than those that are agreed on."""
    own, kind = there[site].column, kind_of_sites(there)
    known = _declared(columns).get(own.name)
    agreed = known or agreed_values(there)
    # What one of several numbers means, their order does not say.
    line = line_of_values(own.name, own.values, agreed if own.kind == kind == "category" else ())
    mend = f"write {line} {_INTO}" if own.values else "correct it"
    if not own.kind:
        yield f"holds too few values: write its kind {_INTO}, or leave it out"
    elif plain_kind(own.kind) != kind:
        here, others = _kind_in_words(own.kind, own.values), _kind_in_words(kind, agreed)
        yield f"is {here}, and {others} at the other sites: {mend}, or leave it out"
    elif kind == "category" and known is None:
        values = sorted({value for each in there.values() for value in each.column.values})
        named = f"{own.name}={one_line('|'.join(values) or 'A|B')}"
        yield f"is text: set categories={named} for all sites"
    elif strange := _strange(there, site, known, classes):
        has = few_names(strange if kind == "category" else own.values)
        way = f"set schema='columns.{key(own.name)} = {{kind = \"number\"}}'"
        way = f"set num-classes={max(map(int, own.values)) + 1}" if classes else way
        way = "add it to categories" if known else way
        yield f"has {has}, and other sites {few_names(agreed)}: {mend}, or {way}"


def _kind_in_words(kind: str, values: Sequence[str]) -> str:
    return _WORDS.get(kind, kind) + (f" ({few_names(values[:3])})" if values else "")


def _strange(there: Sites, site: str, known: Sequence[str] | None, classes: int) -> list[str]:
    """Returns the values of a site that no site may have."""
    values = there[site].column.values
    if known:
        return [value for value in values if value not in known]
    if classes:
        return [value for value in values if not value.isdecimal() or int(value) >= classes]
    if len(values) > FEW or site in sites_alike(there):
        return []
    return [value for value in values if value not in agreed_values(there)]


def _of_missing(
    column: DescribedColumn, columns: Columns, rows: int, *, is_target: bool
) -> Iterator[str]:
    count = f"is missing in {column.missing} of {rows} rows"
    if column.missing and is_target:
        yield f"{count}: a row needs its target; leave these rows out"
    elif column.missing and columns.schema.missing == "refuse":
        yield f"{count}: set missing=median or missing=indicator, or fill it in"


def _of_unit(there: Sites, site: str) -> Iterator[str]:
    """Yields that a site has another unit than others, or says none where others do."""
    own = there[site].column
    units = Counter(c.column.unit for c in there.values() if c.column.unit)
    usual = max(units, key=lambda unit: units[unit], default=own.unit)
    if own.unit != usual and own.kind in ("number", "whole"):
        told = f"is in {one_line(own.unit)}" if own.unit else "says no unit"
        unit = json.dumps(one_line(usual), ensure_ascii=False)
        line = f"columns.{key(own.name)} = {{unit = {unit}, factor = ...}}"
        yield f"{told}, and other sites are in {one_line(usual)}: write {line} {_INTO}"


def _of_scale(there: Sites, site: str) -> Iterator[str]:
    """Yields that a site's numbers lie apart from those of most others, as in another unit."""
    each = {s: _ends(column) for s, column in there.items()}
    others = [ends for other, ends in each.items() if ends and other != site]
    own = each[site]
    far = [ends.median for ends in others if own and _are_apart(own, ends)]
    if own is None or len(far) <= len(others) / 2:
        return
    usual = median(far)
    small, large = sorted((abs(own.median), abs(usual)))
    times = f"{large / small:.3g} times " if own.median * usual > 0 else ""
    where = "above" if own.median > usual else "below"
    told = f"(median {own.median:.10g} against {usual:.10g})"
    line = f"columns.{key(there[site].column.name)} = {{factor = ...}} {_INTO} converts it"
    yield f"lies {times}{where} the other sites' {told}: another unit? {line}"


class _Ends(NamedTuple):
    """Where a site's numbers lie: a tenth, half and nine tenths of them are below."""

    low: float
    median: float
    high: float


def _are_apart(one: _Ends, other: _Ends) -> bool:
    """Returns whether ranges lie apart, and medians differ by a factor or in sign."""
    small, large = sorted((abs(one.median), abs(other.median)))
    near = one.median * other.median > 0 and large < _APART * small
    return not near and (one.low > other.high or one.high < other.low)


def _ends(column: DescribedColumn) -> _Ends | None:
    """Returns where a column's numbers lie, if that is told."""
    if column.low is None or column.median is None or column.high is None:
        return None
    return _Ends(column.low, column.median, column.high)


def _called(name: str) -> str:
    return one_line(name)
