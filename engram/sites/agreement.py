"""Agreement of sites' tables: one schema for all, and each site's departures from it."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final, NamedTuple

from engram.data.schema.columns import INPUTS, Column
from engram.data.schema.declared import Declared, declare, name_order
from engram.data.schema.kinds import FEW
from engram.data.schema.written import key, read_schema, to_toml
from engram.data.schema.written import line as written_line
from engram.data.tables.table_summary import DescribedColumn, DescribedTable
from engram.settings.data import DataSettings
from engram.settings.errors import few_names, one_line
from engram.sites.compared_columns import Compared, plain_kind

_APART: Final = 2.0  # times one median that another at least is, of numbers in another unit
_NAMED: Final = ("date", "ordered")  # kinds that are never inferred
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
    "blanks": "has values that differ in blanks or case alone",
}

Tables = Mapping[str, DescribedTable]


class Finding(NamedTuple):
    """Something about a site's table that someone should look at."""

    site: str
    text: str  # what it is, and how it is mended
    stops: bool = True  # whether the site cannot take part before

    def __str__(self) -> str:
        return f"{self.site}: {self.text}"


def proposed(
    tables: Tables, given: Mapping[str, Any], targets: Sequence[str], *, union: bool = False
) -> dict[str, Any]:
    """Settings by which all sites' tables are read alike.

    Inputs are the columns that all sites have, in the order of their names, but for targets, the
    column of clients, kinds that are none, numbers of one value at all sites, and text whose values
    are not told. A column of text has
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
    each = _compared(tables)
    names = columns.inputs or [
        name
        for name in _names(tables, 1 if union else len(tables))
        if name not in (*targets, columns.target, columns.client)
        and _is_usable(each[name], columns.schema.column(name))
    ]
    declared, written, optional = _declared(columns), dict(schema.by_name), False
    for name in (*names, *targets):
        there = each.get(name) or Compared.of({}, name)
        if name not in declared and there.kind == "category" and there.values:
            # Among inputs the first one is the reference of linear models.
            in_order = sorted(there.values) if name in targets else there.values
            declared[name] = tuple(in_order)
        elif name in targets[:1] and "task" not in given:
            settings |= _classes_of(there)
        column = _written(schema.by_name.get(name), there, declared.get(name, ()))
        if lacked := union and name in names and len(there.sites) < len(tables):
            column = replace(column, default=_usual(there, declared))
        optional |= lacked
        written[name] = column
    settings["input-columns"] = ",".join(names)
    if said := tuple(  # columns are equal by less than a schema that was given says of them
        c for name, c in written.items() if name in schema.by_name or c.unit or c != Column(name)
    ):
        settings["schema"] = to_toml(replace(schema, columns=said))
    missing = any(c.missing for name in names if name in each for c in each[name].sites.values())
    if (missing or optional) and "missing" not in given:
        settings["missing"] = "median"
    return settings | {key: value for key, value in given.items() if key not in settings}


def findings(
    tables: Tables, settings: Mapping[str, Any], targets: Collection[str] = ()
) -> list[Finding]:
    """Returns everything that keeps sites from taking part by these settings, or looks odd.

    ``targets`` must be in every table, and in every row; by default it is the target.
    """
    columns, classes = _columns_of(settings), settings.get("num-classes") or 0
    targets = targets or [columns.target]
    apart = (*targets, columns.target, columns.client)
    usual = [name for name in _names(tables, len(tables) // 2 + 1) if name not in apart]
    inputs = list(columns.inputs) or usual
    each, found = _compared(tables), list[Finding]()
    for site, table in tables.items():
        found += _of_names(tables, site, inputs, usual, columns, apart)
        if optional := [name for name in columns.defaults if name not in table.columns]:
            named = few_names(f"{one_line(name)} ({columns.defaults[name]})" for name in optional)
            text = f"lacks {named}: there it is missing in all rows, as its default says"
            found.append(Finding(site, text, stops=False))
        for name in sorted(table.columns, key=name_order):
            there, column = each[name], table.columns[name]
            is_target, is_read = name in targets, name in (*inputs, *targets)
            stops, said = list[str](), list[str]()
            if _is_asked(column, columns, is_target=is_target):
                is_needed = is_read or column.column.kind in INPUTS
                (stops if is_needed else said).append(_question(column, is_needed=is_needed))
            elif is_read:
                stops += _of_kind(there, site, columns, classes if is_target else 0)
            if is_read:
                stops += _of_missing(column, columns, table.rows, is_target=is_target)
                said += [*_of_unit(there, column.column), *_of_scale(there, site)]
                said += ["has blanks around values: they are left out"] if column.blanks else []
            found += [Finding(site, f"{one_line(name)} {text}") for text in stops]
            found += [Finding(site, f"{one_line(name)} {text}", stops=False) for text in said]
    return found


def summary(tables: Tables, settings: Mapping[str, Any]) -> list[list[str]]:
    """Returns a line for each column: name, kind, values or medians, missing values."""
    columns, lines = _columns_of(settings), []
    rows, declared = sum(table.rows for table in tables.values()), _declared(columns)
    for name, there in sorted(_compared(tables).items(), key=lambda pair: name_order(pair[0])):
        told = [there.sites[site].median if site in there.sites else None for site in tables]
        medians = [_shown(m) for m in told if any(m is not None for m in told)]
        kind = "category" if name in declared else there.kind
        if name == columns.target:
            kind = f"{kind}, the target"
        elif columns.inputs and name not in columns.inputs:
            kind = f"{kind}, left out"
        missing = sum(column.missing or 0 for column in there.sites.values())
        share = f"{100 * missing / rows:.2g} %" if missing and rows else ""
        lines.append([name, kind, " | ".join(declared.get(name) or medians), share])
    return lines


def _columns_of(settings: Mapping[str, Any]) -> Declared:
    known = DataSettings.all_keys()
    own = {key: value for key, value in settings.items() if key in known}
    return declare(DataSettings.model_validate(own), alone=True)


def _declared(columns: Declared) -> dict[str, tuple[str, ...]]:
    return {c.name: c.values for c in columns.schema.columns if c.values}


def _compared(tables: Tables) -> dict[str, Compared]:
    names = {name for table in tables.values() for name in table.columns}
    return {name: Compared.of(tables, name) for name in names}


def _usual(there: Compared, declared: Mapping[str, Sequence[str]]) -> str:
    if there.name in declared:
        return declared[there.name][0]
    return _shown(median([c.median for c in there.sites.values() if c.median is not None] or [0.0]))


def _shown(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.10g}"


def _names(tables: Tables, least: int) -> list[str]:
    counts = Counter(name for table in tables.values() for name in table.columns)
    return sorted((name for name in counts if counts[name] >= least), key=name_order)


def _is_usable(there: Compared, given: Column) -> bool:
    name, kind = there.name, given.kind or there.kind
    written = not any(mark in name for mark in ",;=|") and name == name.strip()
    has_values = kind != "category" or bool(given.values or there.values)
    told = {(each.deviation, each.median) for each in there.sites.values()}
    varies = bool(given.kind) or len(told) > 1 or told.pop()[0] != 0
    return written and name.isprintable() and kind in INPUTS and has_values and varies


def _written(given: Column | None, there: Compared, values: tuple[str, ...]) -> Column:
    if given is not None:
        return given
    column, units = Column(there.name), {c.column.unit for c in there.sites.values()} - {""}
    if there.kind in _NAMED:
        column = next(c.column for c in there.sites.values() if c.column.kind == there.kind)
    elif values:
        column = replace(column, kind="category", values=values)
    return replace(column, unit=units.pop() if len(units) == 1 else "")


def _classes_of(there: Compared) -> dict[str, int]:
    """Returns the number of classes where they are numbered from 0, and sites have others."""
    told = [c.column for c in there.sites.values()]
    numbers = all(c.values and plain_kind(c.kind) == "number" for c in told)
    several = len({c.values for c in told}) > 1
    if not several or not numbers or not all(re.fullmatch(r"\d{1,3}", v) for v in there.values):
        return {}
    return {"num-classes": max(map(int, there.values)) + 1}


# --- Of one site -----------------------------------------------------------------------------


def _of_names(
    tables: Tables,
    site: str,
    inputs: Sequence[str],
    usual: Sequence[str],
    columns: Declared,
    apart: Collection[str],
) -> Iterator[Finding]:
    own = tables[site].columns
    alone = [name for name in own if name not in usual and name not in apart]
    besides = f" (it has {few_names(alone)} besides)" if alone else ""
    targets = [name for name in apart if name and name != columns.client]
    for name in dict.fromkeys(targets):
        if name not in own and any(name in table.columns for table in tables.values()):
            yield Finding(site, f"lacks the target {one_line(name)}{besides}: add or rename it")
    if lacking := [name for name in inputs if name not in own and name not in columns.defaults]:
        mend = "add or rename them, or leave them out by input-columns"
        yield Finding(site, f"lacks {few_names(lacking)}{besides}: {mend}")
    elif out := [name for name in usual if name not in own and name not in inputs]:
        mend = "they are left out everywhere, unless this site adds or renames them"
        yield Finding(site, f"lacks {few_names(out)}{besides}: {mend}", stops=False)
    elif alone and not columns.inputs:
        mend = "leave them out by input-columns, for all sites"
        yield Finding(site, f"has {few_names(alone)}, which others lack: {mend}")


def _is_asked(column: DescribedColumn, columns: Declared, *, is_target: bool) -> bool:
    given = columns.schema.by_name.get(column.column.name, Column(""))
    answered = given.kind and not (given.kind == "category" and given.values)
    return bool(column.asked and not answered and not (is_target and column.asked in _OF_INPUTS))


def _question(column: DescribedColumn, *, is_needed: bool) -> str:
    lines = ", or ".join(map(one_line, column.choices))
    write = f"write {lines} {_INTO}" if lines else "its log has the cells, and the line to write"
    left = "" if is_needed else ", and is left out"
    return f"{_ASKED.get(column.asked, 'is asked about')}{left}: {write}"


def _of_kind(there: Compared, site: str, columns: Declared, classes: int) -> Iterator[str]:
    own, kind, given = there.sites[site].column, there.kind, columns.schema.column(there.name)
    known, agreed = given.values, given.values or there.values
    mend = f"write {there.line(own.values, agreed)} {_INTO}" if own.values else "correct it"
    if not own.kind:
        yield f"holds too few values: write its kind {_INTO}, or leave it out"
    elif plain_kind(own.kind) != kind:
        here, others = _in_words(own.kind, own.values), _in_words(kind, agreed)
        yield f"is {here}, and {others} at the other sites: {mend}, or leave it out"
    elif kind == "category" and not known:
        values = sorted({value for each in there.sites.values() for value in each.column.values})
        line = written_line(own.name, {"values": values or ["A", "B"]})
        yield f"is text: set schema={one_line(line)!r} for all sites"
    elif strange := _strange(there, site, given, classes):
        way = f"set schema='columns.{key(own.name)} = {{kind = \"number\"}}'"
        way = f"set num-classes={max(map(int, own.values)) + 1}" if classes else way
        way = "add it to the values of the schema" if known else way
        yield f"has {few_names(strange)}, and other sites {few_names(agreed)}: {mend}, or {way}"


def _in_words(kind: str, values: Sequence[str]) -> str:
    return _WORDS.get(kind, kind) + (f" ({few_names(values[:3])})" if values else "")


def _strange(there: Compared, site: str, given: Column, classes: int) -> Sequence[str]:
    """A site's values that no site may have; of numbers all, as they may be swapped.

    ``classes`` counts those of a target, numbered from 0; 0 if that is not known.
    """
    values = there.sites[site].column.values
    if given.values:
        return [value for value in values if value not in given.values]
    if classes:
        return values if any(not v.isdecimal() or int(v) >= classes for v in values) else ()
    return () if given.kind or len(values) > FEW or site in there.alike else values


def _of_missing(
    column: DescribedColumn, columns: Declared, rows: int, *, is_target: bool
) -> Iterator[str]:
    count = f"is missing in {column.missing} of {rows} rows"
    if column.missing and is_target:
        yield f"{count}: a row needs its target; leave these rows out"
    elif column.missing and columns.schema.missing == "refuse":
        yield f"{count}: set missing=median or missing=indicator, or fill it in"


def _of_unit(there: Compared, own: Column) -> Iterator[str]:
    units = Counter(c.column.unit for c in there.sites.values() if c.column.unit)
    usual = one_line(max(units, key=lambda unit: units[unit], default=own.unit))
    if own.unit != usual and own.kind in ("number", "whole"):
        told = f"is in {one_line(own.unit)}" if own.unit else "says no unit"
        unit = json.dumps(usual, ensure_ascii=False)
        line = f"columns.{key(own.name)} = {{unit = {unit}, factor = ...}}"
        yield f"{told}, and other sites are in {usual}: write {line} {_INTO}"


def _of_scale(there: Compared, site: str) -> Iterator[str]:
    """Yields that a site's numbers lie apart from those of most others, as in another unit."""
    each = {s: _ends(column) for s, column in there.sites.items()}
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
    line = f"columns.{key(there.name)} = {{factor = ...}} {_INTO} converts it"
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
    if column.low is None or column.median is None or column.high is None:
        return None
    return _Ends(column.low, column.median, column.high)
