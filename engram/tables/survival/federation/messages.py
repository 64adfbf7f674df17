"""Messages with sites' sums and the server's answer: sums over subjects, never subjects.

Functions that read raise ``KeyError`` if an array is missing, ``TypeError`` if it is not what it is
declared to be, and ``ValueError`` if it has another shape or dtype, or impossible numbers.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from engram.core.arrays import Array
from engram.core.types import Params
from engram.scoring.score_columns import LARGEST
from engram.tables.survival.partial import Sums
from engram.wire.wire import floats_record, read_floats

_ROUNDING: Final = 1e-8  # of an information's least eigenvalue, relative to its largest


def sums_size(dim: int, *, third: bool) -> int:
    """Returns the numbers of a site's sums: value, events, score, information, and third ones."""
    return 2 + dim + dim**2 + dim**3 * third


def sums_record(sites: Sequence[Sums], dim: int, *, third: bool) -> Params:
    """Serializes k sites' sums, a row of numbers each."""
    rows = list[Array]()
    for loglik, score, information, events, cube in sites:
        more = np.zeros(0) if cube is None or not third else cube.ravel()
        rows.append(np.concatenate([[loglik, events], score, information.ravel(), more]))
    return floats_record(sums=np.reshape(rows, (len(sites), sums_size(dim, third=third))))


def read_sums(record: Params, count: int, dim: int, *, third: bool) -> list[Sums]:
    """Reads ``count`` sites' sums from an untrusted sender; their numbers may be anything."""
    found = list[Sums]()
    for row in read_floats(record, "sums", (count, sums_size(dim, third=third))):
        (loglik, events), score, information, cube = np.split(row, np.cumsum([2, dim, dim**2]))
        cubes = cube.reshape(dim, dim, dim) if third else None
        information = information.reshape(dim, dim)
        found.append(Sums(float(loglik), score, information, float(events), cubes))
    return found


def read_own(record: Params, count: int, dim: int) -> Array:
    """Reads sites' marks of those apart, and own coefficients, errors and limits, (k, d, 5)."""
    return read_floats(record, "own", (count, dim, 5))


def impossible_sums(site: Sums, rows: int) -> str | None:
    """Checks a site's sums: the first fault in words, or None."""
    parts = [np.abs(part) for part in site if part is not None]
    if not all((part <= LARGEST).all() for part in parts):  # NaN is not, either
        return f"some of its sums are NaN, or beyond {LARGEST:.3g}"
    if not 0 < site.events <= rows:
        return f"it claims {site.events:g} events of {rows} rows"
    values = np.linalg.eigvalsh(site.information)
    lopsided = not np.allclose(site.information, site.information.T, rtol=_ROUNDING)
    if lopsided or values.min(initial=0) < -_ROUNDING * values.max(initial=0):
        return "its information is none of a likelihood"
    return None
