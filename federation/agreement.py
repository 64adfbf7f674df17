"""Agreement of sites' tables: one schema for all of them, and whatever keeps a site from it."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from federation.data.declared import Declared, declare, name_order
from federation.described import DescribedColumn, DescribedTable
from federation.errors import few_names, one_line
from federation.settings.data import DataSettings

_APART: Final = 2.0  # times one median that another at least is, of numbers in another unit

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
    column of clients, and text whose values are not told. A column of text has the values of all
    sites, those that most sites have first. Medians stand for missing values where there are some.

    Args:
        tables: The sites' tables.
        given: Settings by key that stay as they are.
        targets: Columns that are no inputs; if there is one, it is the target.
        union: Whether inputs are the columns that any site has. The median of the sites' medians
            stands for a column in tables that lack it; of text, the value that most sites have.
    """
    columns = _columns_of(given)
    settings: dict[str, Any] = {"target-column": targets[0]} if len(targets) == 1 else {}
    names = columns.inputs or [
        name
        for name in _names(tables, 1 if union else len(tables))
        if name not in (*targets, columns.target, columns.client) and _is_usable(tables, name)
    ]
    declared = {c.name: c.values for c in columns.schema.columns if c.values}
    for name in (*names, *targets):
        there = [t.columns[name] for t in tables.values() if name in t.columns]
        if _kind(tables, name) == "text" and name not in declared:
            counts = Counter(value for column in there for value in column.values)
            # Among inputs the first one is the reference of linear models.
            order = sorted((0 if name in targets else -n, value) for value, n in counts.items())
            values = tuple(value for _, value in order)
            declared |= {name: values} if _is_usable(tables, name) else {}
        elif name in targets[:1] and "task" not in given:
            settings |= _classes_of(there)
    settings["input-columns"] = ",".join(names)
    if declared:
        each = (f"{name}={'|'.join(values)}" for name, values in sorted(declared.items()))
        settings["categories"] = "; ".join(each)
    if union and (lacked := [n for n in names if any(n not in t.columns for t in tables.values())]):
        each = (f"{name}={_usual(tables, name, declared)}" for name in lacked)
        settings["optional-columns"] = "; ".join(each)
    missing = any(t.columns[n].missing for t in tables.values() for n in names if n in t.columns)
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
    columns = _columns_of(settings)
    targets = targets or [columns.target]
    apart = (*targets, columns.target, columns.client)
    usual = [name for name in _names(tables, len(tables) // 2 + 1) if name not in apart]
    inputs = list(columns.inputs) or usual
    found: list[Finding] = []
    for site, table in tables.items():
        found += _of_names(tables, site, inputs, usual, columns, apart)
        if optional := [name for name in columns.defaults if name not in table.columns]:
            each = few_names(f"{_called(name)} ({columns.defaults[name]})" for name in optional)
            text = f"lacks {each}: there it is missing in all rows, as optional-columns says"
            found.append(Finding(site, text, stops=False))
        for name in (*inputs, *targets):
            if column := table.columns.get(name):
                texts = [*_of_site(tables, column, columns), *_of_type(tables, column, columns)]
                texts += _of_missing(column, columns, table.rows, target=name in targets)
                found += [Finding(site, f"{_called(name)} {text}") for text in texts]
                found += _of_scale(tables, site, name)
    return found


def summary(tables: Collection[DescribedTable], settings: Mapping[str, Any]) -> list[list[str]]:
    """Returns a line for each column that some site has: name, type, values and missing values.

    Args:
        tables: The sites' tables.
        settings: The settings by which they are read; columns that these leave out are so called.
    """
    columns, lines = _columns_of(settings), []
    rows = sum(table.rows for table in tables)
    for name in sorted({name for table in tables for name in table.columns}, key=name_order):
        there = [t.columns[name] for t in tables if name in t.columns]
        values = columns.schema.column(name).values
        medians = [f"{c.median:g}" for c in there if c.median is not None]
        kind: str = "text" if values else there[0].kind
        if name == columns.target:
            kind = f"{kind}, the target"
        elif columns.inputs and name not in columns.inputs:
            kind = f"{kind}, left out"
        missing = sum(column.missing or 0 for column in there)
        share = f"{100 * missing / rows:.2g} %" if missing and rows else ""
        lines.append([name, kind, " | ".join(values or medians), share])
    return lines


def _columns_of(settings: Mapping[str, Any]) -> Declared:
    known = DataSettings.all_keys()
    own = {key: value for key, value in settings.items() if key in known}
    return declare(DataSettings.model_validate(own), alone=True)


def _usual(tables: Tables, name: str, declared: Mapping[str, Sequence[str]]) -> str:
    """Returns the value that stands for a column where a table lacks it."""
    if name in declared:
        return declared[name][0]
    there = [t.columns[name].median for t in tables.values() if name in t.columns]
    return f"{median([m for m in there if m is not None] or [0.0]):g}"


def _names(tables: Tables, least: int) -> list[str]:
    """Returns the columns that so many sites have, in the order of their names."""
    counts = Counter(name for table in tables.values() for name in table.columns)
    return sorted((name for name in counts if counts[name] >= least), key=name_order)


def _kind(tables: Tables, name: str) -> str:
    """Returns the type that most sites have of a column."""
    kinds = Counter(t.columns[name].kind for t in tables.values() if name in t.columns)
    return max(kinds, key=lambda kind: (kinds[kind], kind == "number"), default="number")


def _classes_of(columns: Sequence[DescribedColumn]) -> dict[str, int]:
    """Returns the number of classes where they are numbered from 0, and some sites lack some."""
    held = {column.values for column in columns}
    values = {value for each in held for value in each}
    numbers = all(column.values and column.kind == "number" for column in columns)
    if len(held) < 2 or not numbers or not all(re.fullmatch(r"\d{1,3}", v) for v in values):
        return {}
    return {"num-classes": max(map(int, values)) + 1}


def _is_usable(tables: Tables, name: str) -> bool:
    kind = _kind(tables, name)
    values = {v for t in tables.values() if name in t.columns for v in t.columns[name].values}
    written = not any(mark in name for mark in ",;=|") and name == name.strip()
    written &= not any("|" in v or ";" in v or v != v.strip() for v in values)
    written &= name.isprintable() and all(map(str.isprintable, values))
    return written and (kind == "number" or (kind == "text" and bool(values)))


# --- Of one site -----------------------------------------------------------------------------


def _of_names(
    tables: Tables,
    site: str,
    inputs: Sequence[str],
    usual: Sequence[str],
    columns: Declared,
    apart: Collection[str],
) -> Iterator[Finding]:
    """Yields that a site lacks columns that others have, or has others besides."""
    own = tables[site].columns
    alone = [name for name in own if name not in usual and name not in apart]
    besides = f" (it has {few_names(alone)} besides)" if alone else ""
    targets = [name for name in apart if name and name != columns.client]
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


def _of_site(tables: Tables, column: DescribedColumn, columns: Declared) -> Iterator[str]:
    if column.kind == "other":
        yield "holds too few values, or neither numbers nor text: leave it out"
    codes = dict.fromkeys((*columns.schema.file.missing, *column.missing_values))
    if len(codes) > len(columns.schema.file.missing):
        texts = one_line("|".join(codes))
        yield f"has codes for missing values: set missing-values={texts} for all sites"
    units = {c.unit for t in tables.values() for c in t.columns.values() if c.name == column.name}
    if others := sorted(units - {"", column.unit} if column.unit else ()):
        yield f"is in {one_line(column.unit)}, and in {few_names(others)} elsewhere: convert it"


def _of_type(tables: Tables, column: DescribedColumn, columns: Declared) -> Iterator[str]:
    name, known = column.name, columns.schema.column(column.name).values
    held = few_names(column.values[:3]) or "values that are not told"
    if not known and column.kind == "text":
        others = [t.columns[name] for t in tables.values() if name in t.columns]
        values = sorted({value for other in others for value in other.values})
        if _kind(tables, name) == "number":
            yield f"is text ({held}) and numbers at the other sites: correct it, or leave it out"
        elif not column.values:
            yield f"is text whose values are not told: set categories={name}=A|B, or leave it out"
        else:
            yield f"is text: set categories={name}={one_line('|'.join(values))} for all sites"
    elif known and column.kind == "number" and _kind(tables, name) == "text":
        yield f"is numbers, and text ({few_names(known[:3])}) at the other sites: correct it"
    elif known and (strange := [value for value in column.values if value not in known]):
        mend = f"correct it, or add it to categories ({few_names(known)})"
        yield f"has {few_names(strange)}, which no site may have: {mend}"


def _of_missing(
    column: DescribedColumn, columns: Declared, rows: int, *, target: bool
) -> Iterator[str]:
    count = f"is missing in {column.missing} of {rows} rows"
    if column.missing and target:
        yield f"{count}: a row needs its target; leave these rows out"
    elif column.missing and columns.schema.missing == "refuse":
        yield f"{count}: set missing=median or missing=indicator, or fill it in"


def _of_scale(tables: Tables, site: str, name: str) -> Iterator[Finding]:
    """Yields that a site's numbers lie apart from those of most others, as in another unit."""
    each = {s: _ends(t.columns[name]) for s, t in tables.items() if name in t.columns}
    others = [ends for other, ends in each.items() if ends and other != site]
    own = each[site]
    far = [ends.median for ends in others if own and _are_apart(own, ends)]
    if own is None or len(far) <= len(others) / 2:
        return
    usual = median(far)
    small, large = sorted((abs(own.median), abs(usual)))
    times = f"{large / small:.3g} times " if own.median * usual > 0 else ""
    where = "above" if own.median > usual else "below"
    told = f"(median {own.median:g} against {usual:g})"
    text = f"{_called(name)} lies {times}{where} the other sites' {told}: another unit?"
    yield Finding(site, text, stops=False)


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
