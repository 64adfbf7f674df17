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
from engram.tables.survival.partial import Sums, total
from engram.wire.wire import floats_record, read_floats

_NEVER: Final = -1e30  # log-likelihood, in a sum, of coefficients at which it cannot be computed
_ROUNDING: Final = 1e-8  # of an information's least eigenvalue, relative to its largest


def sums_record(sites: Sequence[Sums], dim: int, *, third: bool) -> Params:
    """Serializes k sites' sums, one array per field, the first axis of which is the site."""
    k = len(sites)
    cubes: Params = {}
    if third:
        cubes = floats_record(third=np.reshape([one.third for one in sites], (k, dim, dim, dim)))
    return cubes | floats_record(
        loglik=np.array([one.loglik for one in sites]),
        score=np.reshape([one.score for one in sites], (k, dim)),
        information=np.reshape([one.information for one in sites], (k, dim, dim)),
        events=np.array([one.events for one in sites]),
    )


def read_sums(record: Params, count: int, dim: int, *, third: bool) -> list[Sums]:
    """Reads ``count`` sites' sums from an untrusted sender; their numbers may be anything."""
    loglik, events = (read_floats(record, name, (count,)).tolist() for name in ("loglik", "events"))
    score = read_floats(record, "score", (count, dim))
    information = read_floats(record, "information", (count, dim, dim))
    cubes = read_floats(record, "third", (count, dim, dim, dim)) if third else [None] * count
    parts = zip(loglik, score, information, events, cubes, strict=True)
    return [Sums(*part) for part in parts]


def vector_of(sites: Sequence[Sums]) -> Array:
    """Returns the numbers of sites' total in one vector, to be masked and added to others'."""
    loglik, score, information, events, third = total(sites)
    loglik = max(loglik, _NEVER)  # no infinity is added to what is masked
    parts = [[loglik, events], score, information.ravel()] + (
        [] if third is None else [third.ravel()]
    )
    return np.concatenate(parts)


def sums_of(vector: Array, dim: int) -> Sums:
    """Returns the sums that a vector of ``vector_of`` stands for."""
    (loglik, events), score, information, third = np.split(vector, np.cumsum([2, dim, dim**2]))
    cube = third.reshape(dim, dim, dim) if len(third) else None
    return Sums(float(loglik), score, information.reshape(dim, dim), float(events), cube)


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
