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
from engram.tables.federation.molar_messages import SharedEstimate, shared_record
from engram.tables.shrinkage import Shared
from engram.tables.survival.newton import Ascent
from engram.tables.survival.partial import Sums
from engram.wire.wire import floats_record, read_floats

_ROUNDING: Final = 1e-8  # of an information's least eigenvalue, relative to its largest


def sums_size(dim: int, *, third: bool) -> int:
    """The length of sums for d columns."""
    return 2 + dim + dim**2 + dim**3 * third


def _packed(sums: Sums) -> Array:
    parts = [sums.score, sums.information] + ([] if sums.third is None else [sums.third])
    return np.concatenate([[sums.loglik, sums.events], *(part.ravel() for part in parts)])


def _unpacked(numbers: Array, dim: int) -> Sums:
    loglik, events = numbers[:2].tolist()
    score, information, third = np.split(numbers[2:], [dim, dim + dim**2])
    cube = third.reshape(dim, dim, dim) if third.size else None
    return Sums(loglik, score, information.reshape(dim, dim), events, cube)


def sums_record(sites: Sequence[Sums], size: int) -> Params:
    """Serializes k sites' sums, each of so many numbers: shape (k, size)."""
    return floats_record(sums=np.array([_packed(one) for one in sites]).reshape(len(sites), size))


def read_sums(record: Params, count: int, dim: int, *, third: bool) -> list[Sums]:
    """Reads ``count`` sites' sums from an untrusted sender; their numbers may be anything."""
    each = read_floats(record, "sums", (count, sums_size(dim, third=third)))
    return [_unpacked(numbers, dim) for numbers in each]


def impossible_sums(site: Sums, rows: int) -> str | None:
    """Checks a site's sums: the first fault in words, or None."""
    if not (np.abs(_packed(site)) <= LARGEST).all():  # NaN is not, either
        return f"some of its sums are NaN, or beyond {LARGEST:.3g}"
    if not 0 < site.events <= rows:
        return f"it claims {site.events:g} events of {rows} rows"
    values = np.linalg.eigvalsh(site.information)
    lopsided = not np.allclose(site.information, site.information.T, rtol=_ROUNDING)
    if lopsided or values.min(initial=0) < -_ROUNDING * values.max(initial=0):
        return "its information is none of a likelihood"
    return None


def ascent_record(state: Ascent, half_width: Array) -> Params:
    """Serializes the state between exchanges, and half-widths of intervals, shape (d,)."""
    shared = Shared(state.coef, state.sums.events)
    return shared_record(SharedEstimate(shared, half_width)) | floats_record(
        best=state.best,
        step=state.step,
        sums=_packed(state.sums),
        first=_packed(state.first),
        numbers=np.array([float(state.done), state.exchanges]),
    )


def read_ascent(record: Params, dim: int, *, third: bool) -> Ascent:
    """Reads a record of ``ascent_record``."""
    size = sums_size(dim, third=third)
    coef, best, step = (read_floats(record, name, (dim,)) for name in ("coef", "best", "step"))
    sums, first = (_unpacked(read_floats(record, n, (size,)), dim) for n in ("sums", "first"))
    done, exchanges = read_floats(record, "numbers", (2,)).tolist()
    return Ascent(coef, done > 0, best, sums, first, step, int(exchanges))
