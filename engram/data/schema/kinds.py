"""Kinds of columns of inputs: inferred where that is safe, and else asked about.

A rule looks at the cells of a column, and returns a question where it cannot be sure of them.
Shares are of all rows of the federation. A column whose kind is written down is not asked about.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from engram.data.labels import folded
from engram.data.schema.cells import BLANKS, CODE, GROUPED, number
from engram.data.schema.columns import MOST_VALUES, Column, ColumnKind
from engram.data.schema.typed import Cells, is_plain
from engram.data.schema.written import Question, line

FEW: Final = 10
"""Different cells up to which text is taken for a category, however few rows there are."""

MANY: Final = 50
"""Different cells above which text is not taken for a category."""

CLASSES: Final = 20
"""Different whole numbers above which a target is not taken for classes."""

CODES: Final = (-9, -99, -999, -9999, 999, 9999)
"""Numbers that often stand for a missing one."""

ROWS: Final = 20
"""Rows of which fewer may tell a target by chance."""

PARTS: Final = {"train": 0, "test": 1, "validation": 2, "val": 2, "valid": 2}
"""Parts of rows by names, as ``engram.data.image_axes.PART`` numbers them."""

_FAR: Final = 3  # times the distance of the quantiles, beyond which a number may be a code
_DIGITS: Final = 5  # of a number with more, all as long as each other, it may be an identifier
_WORDS: Final = 4  # on average, of a sentence
_EXACT: Final = 1e-6  # a difference by rounding
_UNIQUE: Final = 0.9  # of the rows differ: an identifier

_DAY = r"\d{4}-\d\d?-\d\d?|\d{4}/\d\d?/\d\d?|\d{1,2}(?P<mark>[./-])\d{1,2}(?P=mark)\d{2,4}"
_MONTH = r"\d{1,2}[ .-]{0,2}[A-Z][a-z]{2,8}[ .,-]{0,2}\d{2,4}|[A-Z][a-z]{2,8} \d{1,2}, ?\d{4}"
_PART = r"\d{1,2}\.\d{1,2}\.|(19|20)\d\d[/-](0[1-9]|1[0-2])|(0?[1-9]|1[0-2])[/-](19|20)\d\d"
_TIME = r"\d{1,2}:\d\d(:\d\d([.,]\d+)?)?( ?[AaPp][Mm])?"
_WHOLE = rf"({_DAY})([T ]{_TIME})?( ?(Z|UTC|[+-]\d\d:?\d\d))?"
DATE: Final = re.compile(rf"({_WHOLE}|{_MONTH}|{_PART}|{_TIME})")
"""A date, a part of one, a time, or both, as programs and people write them."""

_DAYS: Final = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%Y%m%d", "%d.%m.%y")
_FORMATS: Final = [f"{day}{time}" for day in _DAYS for time in ("", " %H:%M", " %H:%M:%S")]

_MARKS: Final[Sequence[Any]] = (".", ",", ".,", ",.", ".'", ". ", ", ")  # of decimals, of thousands
_LETTERS: Final = re.compile(r"(?!(EUR|USD|GBP|CHF)$)[^\W\d_]")  # before a number: of a code
_NUMBER: Final = r"[+-]?[\d.,' ]*\d[.,]?([eE][+-]?\d+)?"
_AFFIX: Final = re.compile(rf"(?P<before>[^\d+.,-]*)(?P<number>{_NUMBER})(?P<after>.*)")


def kind_of(cells: Cells) -> ColumnKind:
    """Returns the kind of a column that no rule asks about."""
    if cells.numbers is not None:
        return "whole" if cells.whole else "number"
    if {text.lower() for text in cells.texts} <= {"true", "false"}:
        return "truth"
    return "category"


def is_measured(given: Any) -> bool:
    """Whether a column of pandas is fractions, and none that may be a code: no rule asks."""
    if given.dtype.kind != "f" or not len(given):
        return False
    numbers = given.to_numpy(np.float64, na_value=np.nan)
    whole, least = np.trunc(numbers) == numbers, np.fmin.reduce(numbers)
    if not (~whole & ~np.isnan(numbers)).any() or least == np.fmax.reduce(numbers):
        return False
    if whole.any() and np.isin(numbers[whole], CODES).any():
        return False
    return not are_days(numbers[~np.isnan(numbers)])


def may_be_grouped(given: Any) -> bool:
    """Whether a column of pandas is numbers below 1000, some whole and others of three decimals."""
    numbers = given.dropna().to_numpy() if given.dtype.kind == "f" else np.zeros(0)
    some = 0 < np.count_nonzero(np.trunc(numbers) == numbers) < len(numbers)
    return bool(some and ((np.round(numbers, 3) == numbers) & (abs(numbers) < 1000)).all())


def are_days(numbers: npt.NDArray[np.float64]) -> bool:
    """Whether all numbers may be days and months, as 24.12."""

    def are(some: npt.NDArray[np.float64]) -> bool:
        with np.errstate(invalid="ignore"):  # of infinity
            day, month = np.divmod(np.round(100 * some), 100)
        exact = abs(day + month / 100 - some) < _EXACT
        return bool((exact & (day >= 1) & (day <= 31) & (month >= 1) & (month <= 12)).all())

    return are(numbers[:FEW]) and are(numbers)


def dates(cells: Cells) -> Question | None:
    """All cells are dates, times or both, or numbers such as 20240301."""
    written = cells.all(DATE.fullmatch) or (len(cells.texts) > 2 and cells.all(_is_day))
    if not written and cells.given.dtype.kind in "mM":
        written = cells.all(DATE.match)
    if not written:
        return None
    date = {"kind": "date", "since": "2000-01-01"}
    found = _formats([*map(str, cells.texts)])
    ways = [date if how == "ISO8601" else date | {"format": how} for how in found]
    return ask(cells, "looks like dates", {"kind": "ignored"}, *ways)


def _formats(texts: Sequence[str]) -> list[str]:
    """Formats in which all texts are dates; of ISO 8601 that alone."""

    def fits(how: str) -> bool:
        return all(
            pd.to_datetime(some, format=how, errors="coerce", utc=True).notna().all()
            for some in (texts[:1], texts)
        )

    return ["ISO8601"] if fits("ISO8601") else [how for how in _FORMATS if fits(how)]


def _is_day(text: str) -> bool:
    try:
        return len(text) == 8 and 1900 <= datetime.strptime(text, "%Y%m%d").year <= 2100
    except ValueError:
        return False


def days(cells: Cells) -> Question | None:
    """More than ten different numbers that may all be days and months."""
    if cells.numbers is None or len(cells.texts) <= FEW or not are_days(cells.numbers):
        return None
    looks = "may be days and months, such as 24.12"
    return ask(cells, looks, {"kind": "ignored"}, {"kind": "number"})


def identifiers(cells: Cells) -> Question | None:
    """Consecutive whole numbers, those of one length above five digits, texts that all differ."""
    many = len(cells.texts)
    if many <= FEW or (cells.numbers is not None and not cells.whole):
        return None
    looks, other = "", "category" if many <= MOST_VALUES else "text"
    if cells.numbers is not None:
        low, high, other = cells.numbers.min(), cells.numbers.max(), "whole"
        if many == cells.size and high - low == many - 1:
            looks = "is consecutive numbers"
        elif low >= 10**_DIGITS and len(f"{low:.0f}") == len(f"{high:.0f}"):
            looks = "is numbers of one length"
    elif many >= _UNIQUE * cells.size and not _sentences(cells) and parsed(cells) is None:
        looks = f"is text that differs in {many} of {cells.size} rows"
    choices = {"kind": "identifier"}, {"kind": other}
    return ask(cells, f"{looks}, as identifiers are", *choices) if looks else None


def parts(cells: Cells) -> Question | None:
    """All cells are names of parts of the rows, such as train and test."""
    if len(cells.texts) < 2 or not cells.all(lambda text: text.lower() in PARTS):
        return None
    choices = {"kind": "ignored"}, {"role": "part"}, {"kind": "category"}
    return ask(cells, "is names of parts of the rows", *choices)


def decorated(cells: Cells) -> Question | None:
    """Numbers with a decimal comma, marks between thousands, a currency, a percent sign, a unit."""
    ways = parsed(cells)
    return None if ways is None else ask(cells, f"is numbers with {_named(ways)}", *ways)


def thousands(cells: Cells) -> Question | None:
    """Numbers of which some have a point before three digits, and the others are below 1000."""
    if not (cells.numbers is not None and is_plain(cells.column) and cells.all(GROUPED.fullmatch)):
        return None
    if len({"." in text for text in map(str, cells.texts)}) < 2:
        return None
    marks, looks = {"decimal": ",", "thousands": "."}, "may have points between thousands"
    return ask(cells, f"{looks}, or three decimals", marks, {"kind": "number"})


def _named(ways: Sequence[Mapping[str, str]]) -> str:
    words = {"decimal": "a decimal comma", "thousands": "marks between thousands"}
    found = [f"{way[k]!r}" if k == "unit" else words[k] for way in ways for k in way]
    return " or ".join(dict.fromkeys(found))


def parsed(cells: Cells) -> list[dict[str, str]] | None:
    """Ways in which all cells are numbers; None if there is none, or nothing to do."""
    if cells.numbers is not None or not len(cells.texts):
        return None
    parts = [_AFFIX.fullmatch(text.translate(BLANKS)) for text in cells.texts]
    around = {(part["before"].strip(), part["after"].strip()) for part in parts if part}
    if not all(parts) or len(around) > 1 or all(pair := around.pop()):
        return None
    if _LETTERS.search(pair[0]):
        return None
    unit = {"unit": "".join(pair)} if any(pair) else {}
    numbers = [part["number"].strip() for part in parts if part]
    found = []
    for decimal, thousands in ((each[0], each[1:]) for each in _MARKS):
        marks = {"decimal": decimal} if decimal != "." else {}
        marks |= {"thousands": thousands} if thousands else {}
        column = Column(cells.column.name, decimal=decimal, thousands=thousands)
        seen = thousands if thousands == "." else marks.values()
        there = all(any(mark in each for each in numbers) for mark in seen)
        if there and all(number(column, each) is not None for each in numbers):
            found.append(unit | marks)
    return [way for way in found if way] or None


def mixed(cells: Cells) -> Question | None:
    """Most cells, or most of the different ones, are numbers, and some are not."""
    if cells.numbers is not None:
        return None
    numeric = np.array([number(cells.column, t) is not None for t in cells.texts], dtype=bool)
    if not numeric.any() or any(map(CODE.fullmatch, cells.texts)):
        return None
    if max(cells.counts[numeric].sum() / cells.size, numeric.mean()) <= 0.5:
        return None
    odd = cells.texts[~numeric]
    looks = f"has {cells.named(~numeric)} among numbers"
    question = ask(cells, looks, {"missing": (*odd[:20],)}, {"kind": "category"})
    return question._replace(cells=())


def codes(cells: Cells) -> Question | None:
    """Two rows or more have a number such as -99 or 999, far away from all others."""
    if cells.numbers is None or len(cells.numbers) < 3:
        return None
    found = np.isin(cells.numbers, [code for code in CODES if _is_code(cells, code)])
    if not found.any():
        return None
    written = cells.texts[found] if cells.texts.dtype.kind == "O" else cells.numbers[found]
    listed = (*(code if isinstance(code, str) else f"{code:g}" for code in written),)
    looks = f"has {cells.named(found)}, far from its other numbers"
    return ask(cells, looks, {"missing": listed}, {"kind": kind_of(cells)})._replace(cells=())


def _is_code(cells: Cells, code: int) -> bool:
    assert cells.numbers is not None
    here, others = cells.numbers == code, ~np.isin(cells.numbers, CODES)
    if cells.counts[here].sum() < 2 or others.sum() < 2:
        return False
    low, high = _quantiles(cells.numbers[others], cells.counts[others])
    return code < low - _FAR * (high - low) or code > high + _FAR * (high - low)


def _quantiles(
    numbers: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]
) -> tuple[float, float]:
    order = np.argsort(numbers)
    below = np.cumsum(counts[order]) / counts.sum()
    low, high = (numbers[order][np.searchsorted(below, share)] for share in (0.05, 0.95))
    return float(low), float(high)


def texts(cells: Cells) -> Question | None:
    """Text of more than 50 values, or of more than ten and more than half of the rows."""
    many = len(cells.texts)
    if cells.numbers is not None or not (many > MANY or (many > FEW and many > cells.size / 2)):
        return None
    if _sentences(cells):
        return ask(cells, "is sentences", {"kind": "ignored"}, {"kind": "text"})
    category = [{"kind": "category"}] if many <= MOST_VALUES else []
    choices = (*category, {"kind": "ignored"}, {"kind": "text"})
    return ask(cells, f"is text of {many} values in {cells.size} rows", *choices)


def _sentences(cells: Cells) -> bool:
    words = [text.count(" ") + 1 for text in cells.texts]
    return len(words) > FEW and float(np.mean(words)) >= _WORDS


def blanks(cells: Cells) -> Question | None:
    """Cells that differ in blanks around them alone, or texts in case or Unicode's form alone."""
    order = cells.texts[np.argsort(-cells.counts, kind="stable")]
    first = dict[str, str]()
    meant = {text: first.setdefault(folded(text), text) for text in map(str, order)}
    alike = [text for text in meant if meant[text] != text] if cells.numbers is None else []
    if not (cells.blanks or alike):
        return None
    meant |= {text: meant.get(text.strip(), text.strip()) for text in cells.blanks}
    looks = f"has values that differ in {'case or the like' if alike else 'blanks'} alone"
    shown = [*cells.blanks, *(each for text in alike for each in (text, meant[text]))]
    choices: list[Mapping[str, Any]] = [{"values": meant}]
    choices += [{"kind": "category"}] if alike else []
    return ask(cells, looks, *choices)._replace(cells=(*shown[:3],))


def copies(cells: Cells, target: Cells) -> Question | None:
    """Each value of text, or each code, stands beside one value of the target, and the reverse."""
    are_codes = cells.numbers is None or (cells.whole and len(cells.texts) <= CLASSES)
    if not (are_codes and _one_to_one(cells, target)):
        return None
    looks = f"tells {target.column.name} by itself: each value beside one of its"
    return ask(cells, looks, {"kind": "ignored"}, {"kind": kind_of(cells)})


def _one_to_one(one: Cells, other: Cells) -> bool:
    count = len(one.texts)
    if count != len(other.texts) or count < 2 or one.size < ROWS:
        return False
    there = (one.rows >= 0) & (other.rows >= 0)
    pairs = {*zip(one.rows[there].tolist(), other.rows[there].tolist(), strict=True)}
    return len(pairs) == count


def constant(cells: Cells, *, marked: bool) -> Question | None:
    """All rows have one value, or none has any.

    Beside one value, missing ones tell something where they may be ``marked``.
    """
    if len(cells.texts) > 1 or (marked and 0 < cells.size < len(cells.rows)):
        return None
    held = f" but {cells.shown()[0]!r}" if cells.size else ""
    return ask(cells, f"has no value{held}", {"kind": "ignored"}, {"kind": kind_of(cells)})


Rule = Callable[[Cells], Question | None]
RULES: Final[Sequence[Rule]] = (
    *(dates, days, parts, decorated, thousands, mixed, identifiers, codes, texts, blanks),
)
"""Rules of inputs, of which the first that has a question asks it."""


def ask(cells: Cells, looks: str, *choices: Mapping[str, Any]) -> Question:
    """Returns the question about a column that has these entries of a schema as answers."""
    lines = tuple(line(cells.column.name, choice) for choice in choices)
    return Question(cells.column.name, cells.shown(), looks, lines)


def asked(cells: Cells, target: Cells | None = None) -> Question | None:
    """Returns the first question of a rule about a column of inputs; None if no rule asks."""
    if not len(cells.texts):
        return None
    are_declared = {*map(str, cells.texts)} <= {*cells.column.values}
    for rule in () if are_declared else RULES:
        if (question := rule(cells)) is not None:
            return question._replace(rule=rule.__name__)
    return copies(cells, target) if target else None
