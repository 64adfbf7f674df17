"""Every field of a reply, and what a site that errs or lies may put into it."""

from typing import Any, NamedTuple

import numpy as np
import torch

from engram.wire.messages import Content

MISSING = object()
NUMBERS = {"NaN": np.nan, "infinite": np.inf, "1e308": 1e308, "-1e200": -1e200, "1e30": 1e30}
NUMBERS |= {"denormal": 5e-324, "zero": 0.0}
WHOLE = {"negative": -1, "huge": 2**62, "of 5,000 digits": 10**5000, "none": 0}
TEXTS = {"empty": "", "long": "x" * 10**4, "odd": "%s{0}\n\x1b[2J\ud800"}


class Field(NamedTuple):
    """The place of a value in a reply: a record's name and, but for the record itself, a key."""

    record: str
    key: str = ""


def fields_of(content: Content) -> dict[Field, Any]:
    """Returns every record of a reply and every entry of each, by its place."""
    found: dict[Field, Any] = {}
    for name, record in content.items():
        found |= {Field(name): record} | {Field(name, key): record[key] for key in record}
    return found


def spoiled(content: Content, field: Field, how: str) -> Content:
    """Returns a reply's content with one field as ``others`` describes it.

    It is the honest one where that lacks the field.
    """
    records = {name: dict(record) for name, record in content.items()}
    value = fields_of(content).get(field)
    change = {} if value is None else others(value)
    if how not in change:
        return content
    place, key = (records[field.record], field.key) if field.key else (records, field.record)
    if change[how] is MISSING:
        del place[key]
        return records
    place[key] = change[how]
    return records


def others(value: Any) -> dict[str, Any]:
    """Returns what may stand in the place of an honest value, by what is wrong with it."""
    if isinstance(value, dict):
        found = {"empty": {}, "of arrays": {"x": torch.zeros(1)}, "of numbers": {"x": 1}}
    elif isinstance(value, torch.Tensor):
        found = _arrays(value)
    elif isinstance(value, list):
        found = _lists(value)
    elif isinstance(value, str):
        found = {"a number": 1, "bytes": b"x", "a list": [value], "twice": value * 2, **TEXTS}
    else:
        found = {"text": str(value), "bytes": b"1", "a list": [value], "true": True}
        found |= NUMBERS | WHOLE | {"negated": -value - 1, "one more": value + 1}
    return {"missing": MISSING, **found}


def _lists(value):
    size = max(1, len(value))
    found = {"no list": 1, "a text": "x", "duplicated": value * 2, "empty": []}
    if value and not isinstance(value[0], str):
        found["negated"] = [-one - 1 for one in value]
    texts = TEXTS if not value or isinstance(value[0], str) else {"texts": "x"}
    each = NUMBERS | WHOLE | texts | {"bytes": b"x", "true": True}
    found |= {f"all {name}": [one] * size for name, one in each.items()}
    return found if value else found | {"another": ["x"]}


def _arrays(value):
    honest = value.numpy()
    changed = {
        "empty": honest.ravel()[:0],
        "duplicated": np.concatenate([np.atleast_1d(honest)] * 2),
        "of another axis": honest[None],
        "of halves": honest.astype(np.float16),
        "negated": -honest - 1,
    }
    with np.errstate(over="ignore"):
        for name, number in NUMBERS.items():
            changed[f"all {name}"] = np.full_like(honest, number)
            if honest.size > 1:
                changed[f"one {name}"] = honest.copy()
                changed[f"one {name}"].flat[0] = number
    return {name: torch.from_numpy(np.asarray(array)) for name, array in changed.items()}
