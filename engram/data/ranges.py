"""Where the inputs lie that a model has learned from, so that others are noticed.

Rows in other units, such as pixels of 0 to 255 where a model has seen 0 to 1, are valid numbers,
and its predictions of them mean nothing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_leaves

from engram.core.arrays import Bools
from engram.data.federated import Split
from engram.data.lazy import RowNumbers
from engram.data.schema.columns import Schema
from engram.networks.base import Inputs

SIZE: Final = "root mean square"
"""Name of the figure of a row that is no list of columns, such as an image."""

_SHARE: Final = 0.1  # of the rows on either side that may be anywhere
_FEWEST: Final = 10  # rows: with fewer, the ends of a range would be single rows' values
_WIDER: Final = 3  # times a range's width that is still near
_TIMES: Final = 10  # the factor by which a number is of another order
_SEVERAL: Final = 5  # rows whose median tells the order of a column
_MOST: Final = 10_000  # rows that are looked at
_NUMBERS: Final = 2**24  # likewise

_Array = npt.NDArray[np.float64]


class Range(NamedTuple):
    """Where an input lies in eight of ten rows, rounded outward to a few digits.

    Attributes:
        name: What the input is called.
        low: A tenth of the rows is below.
        high: A tenth of the rows is above.
    """

    name: str
    low: float
    high: float

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Reads the JSON of ``_asdict``."""
        return cls(str(found["name"]), float(found["low"]), float(found["high"]))


def some_of(split: Split, rows: RowNumbers) -> Inputs:
    """Returns inputs of rows as models see them: of many, evenly spaced ones."""
    most = max(_FEWEST, min(_MOST, _NUMBERS // max(1, split.numbers)))
    step = -(-len(rows) // most) or 1
    device = split.y.device
    return split.take(torch.from_numpy(rows[::step]).to(device))[0]


def inputs_in(x: Inputs, schema: Schema | None) -> dict[str, _Array]:
    """Values of each input of numbers, by its name, without missing ones."""
    return {name: values[np.isfinite(values)] for name, values in _by_name(x, schema).items()}


def _by_name(x: Inputs, schema: Schema | None) -> dict[str, _Array]:
    """Returns ``inputs_in`` with NaN for missing values."""
    found: dict[str, _Array] = {}
    leaves = tree_leaves(x)
    for number, leaf in enumerate(leaves):
        if leaf.dtype == torch.int64:  # tokens
            continue
        values = leaf.detach().cpu().double().numpy()
        prefix = f"x{number} " if len(leaves) > 1 else ""
        if values.ndim != 2:
            size = np.sqrt(np.square(values).mean(axis=tuple(range(1, values.ndim))))
            found[prefix + SIZE] = size
        elif schema is not None:
            found |= _of_table(values, schema)
        else:
            found |= {f"{prefix}column {k}": column for k, column in enumerate(values.T)}
    return found


def _of_table(values: _Array, schema: Schema) -> dict[str, _Array]:
    flagged = schema.missing == "indicator"
    numeric, names = np.flatnonzero(schema.numeric), schema.inputs
    gone = {k: values[:, k + 1] == 1 if flagged else False for k in numeric}
    return {names[k]: np.where(gone[k], np.nan, values[:, k]) for k in numeric}


def ranges_of(inputs: Mapping[str, _Array]) -> list[Range]:
    """Ranges of inputs that vary, if there are rows enough."""
    found = []
    for name, values in inputs.items():
        if len(values) >= _FEWEST:
            low, high = np.quantile(values, [_SHARE, 1 - _SHARE]).tolist()
            if high > low:
                found.append(Range(name, *_rounded(low, high)))
    return found


def _rounded(low: float, high: float) -> tuple[float, float]:
    """Rounds the ends of a range outward, to two digits of its width."""
    digits = 1 - math.floor(math.log10(high - low))
    unit = 10.0**-digits
    ends = math.floor(low / unit) * unit, math.ceil(high / unit) * unit
    return round(ends[0], digits), round(ends[1], digits)


def far_away(ranges: Sequence[Range], inputs: Mapping[str, _Array]) -> list[str]:
    """Inputs far from their ranges, in words: "height: 171 against 1.5 to 1.9".

    It is their median that is looked at. It is far from a range if it is more than three times the
    range's width away; or, of numbers of one sign, a tenth or ten times what they were. Rows that
    are no lists of columns are compared by their size, which light and shade change: for them only
    the latter counts.
    """
    found = []
    for name, low, high in ranges:
        values = inputs.get(name)
        if values is None or not len(values):
            continue
        median = float(np.median(values))
        least, most = _near(low, high, name.endswith(SIZE), len(values))
        if not least <= median <= most:
            found.append(f"{name}: {median:.3g} against {low:g} to {high:g}")
    return found


def outside(ranges: Sequence[Range], x: Inputs, schema: Schema | None) -> dict[str, Bools]:
    """Rows far from their ranges, by input: all of them, if their median is."""
    inputs, found = _by_name(x, schema), dict[str, Bools]()
    for each in ranges:
        values = inputs.get(each.name, np.empty(0))
        least, most = _near(each.low, each.high, each.name.endswith(SIZE), 1)
        far = bool(far_away([each], {each.name: values[np.isfinite(values)]}))
        if (rows := ((values < least) | (values > most) | far) & np.isfinite(values)).any():
            found[each.name] = rows
    return found


def _near(low: float, high: float, size: bool, rows: int) -> tuple[float, float]:
    if size:
        return low / _TIMES, high * _TIMES
    least, most = low - _WIDER * (high - low), high + _WIDER * (high - low)
    if rows >= _SEVERAL and low > 0:
        least = max(least, low / _TIMES)
    if rows >= _SEVERAL and high < 0:
        most = min(most, high / _TIMES)
    return least, most
