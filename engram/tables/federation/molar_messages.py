"""Messages with sites' estimates and the server's answer: statistics of rows, never rows.

Functions that read raise ``KeyError`` if an array is missing, ``TypeError`` if it is not what it is
declared to be, and ``ValueError`` if it has another shape or dtype, or impossible numbers.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from engram.core.arrays import Array
from engram.core.types import Params
from engram.scoring.score_columns import LARGEST
from engram.tables.exchange import Answer, Equations, Told
from engram.tables.families import FamilyName
from engram.tables.shrinkage import Shared
from engram.tables.site import SiteEstimate
from engram.tables.tables import Scaling
from engram.wire.wire import floats_record, read_floats

SITES: Final = "sites"
SHARED: Final = "shared"


class SharedEstimate(NamedTuple):
    """The shared estimate that a server sends back."""

    shared: Shared  # the shared coefficients, and the number of rows they are estimated from
    half_width: Array  # half-widths of their intervals, shape (d,); infinite without an interval


def site_record(sites: Sequence[SiteEstimate], dim: int) -> Params:
    """Serializes k estimates, one array per field: two of shape (k, d), three of shape (k,)."""
    return floats_record(
        coef=np.array([site.coef for site in sites]).reshape(len(sites), dim),
        scale=np.array([site.scale for site in sites]).reshape(len(sites), dim),
        size=np.array([site.size for site in sites], dtype=np.float64),
        sigma=np.array([site.sigma for site in sites], dtype=np.float64),
        freedom=np.array([site.freedom for site in sites], dtype=np.float64),
    )


def read_sites(record: Params, count: int, dim: int) -> list[SiteEstimate]:
    """Reads ``count`` estimates from an untrusted sender; their numbers may be anything."""
    coef, scale = (read_floats(record, name, (count, dim)) for name in ("coef", "scale"))
    each = [read_floats(record, name, (count,)).tolist() for name in ("size", "sigma", "freedom")]
    return [SiteEstimate(*part) for part in zip(coef, scale, *each, strict=True)]


def impossible(
    site: SiteEstimate, rows: int, *, family: FamilyName = "linear", at_most: bool = False
) -> str | None:
    """Checks an estimate of a site: the first fault in words, or None.

    Numbers are of float32's range, so that no square of one overflows where estimates are merged.

    Only linear models estimate the size of their noise. ``rows`` are those that the site reported;
    with ``at_most`` the estimate may use fewer.
    """
    enough = 0 < site.size <= rows and (at_most or site.size == rows)
    own_noise = family == "linear" or site.sigma in (1.0, np.inf)
    noise = site.sigma == np.inf or 0 <= site.sigma <= LARGEST
    faults = {
        "some coefficients are NaN or infinite": not np.isfinite(site.coef).all(),
        f"some coefficients are beyond {LARGEST:.3g}": (np.abs(site.coef) > LARGEST).any(),
        # Infinity means that a coefficient is not identified.
        "some standard errors are NaN, 0 or negative": not (site.scale > 0).all(),
        f"some standard errors are beyond {1 / LARGEST:.3g} and {LARGEST:.3g}": not (
            (site.scale == np.inf) | ((site.scale > 1 / LARGEST) & (site.scale < LARGEST))
        ).all(),
        f"its noise has the standard deviation {site.sigma}": not (noise and own_noise),
        f"its noise has {site.freedom} degrees of freedom": not site.freedom > 0,
        "it knows standard errors, and not its noise": bool(
            np.isinf(site.sigma) and np.isfinite(site.scale).any()
        ),
        f"it claims {site.size:g} rows of {rows}": not enough,
    }
    return next((reason for reason, there in faults.items() if there), None)


def shared_record(estimate: SharedEstimate) -> Params:
    """Serializes arrays ``coef`` and ``half-width`` (d,), and ``size`` (1,)."""
    shared, half = estimate
    return floats_record(coef=shared.coef, **{"half-width": half}, size=np.array([shared.size]))


def read_shared(record: Params, dim: int) -> SharedEstimate:
    """Reads a record of ``shared_record``."""
    coef, half = (read_floats(record, name, (dim,)) for name in ("coef", "half-width"))
    size = float(read_floats(record, "size", (1,))[0])
    if not (np.isfinite(coef).all() and (half >= 0).all() and 0 < size < np.inf):
        raise ValueError("coefficients, widths or sizes are NaN, negative or infinite")
    return SharedEstimate(Shared(coef, size), half)


def told_record(answer: Answer, estimate: SharedEstimate) -> Params:
    """Serializes an estimate as ``shared_record`` does, with the server's whole answer."""
    told = answer.told
    state = {"told": np.stack([*told[:5], *told.scaling]), "told-numbers": np.array(told[6:])}
    return {**shared_record(estimate), **floats_record(**state)}


def read_told(record: Params, dim: int) -> Told:
    """Reads a record of ``told_record``."""
    arrays = read_floats(record, "told", (7, dim))
    numbers = read_floats(record, "told-numbers", (3,))
    center, variance, middle, error, limit, *scaling = arrays
    told = Told(center, variance, middle, error, limit, Scaling(*scaling), *numbers.tolist())
    finite = np.concatenate([center, variance, middle, error, told.scaling.center, numbers[:1]])
    least = np.concatenate([variance, error, limit, numbers])
    above = np.append(told.scaling.scale, numbers[:2])
    if not (np.isfinite(finite).all() and (least >= 0).all() and (above > 0).all()):
        raise ValueError("variances, errors, scales or noise are NaN, negative or infinite")
    return told


def equations_record(sites: Sequence[Equations], dim: int) -> Params:
    """Serializes k sites' triangles, and their marks and weights below: shape (k, d + 2, d + 1)."""
    each = [np.vstack([site.triangle, np.append(site.apart, site.weight)]) for site in sites]
    return floats_record(equations=np.array(each).reshape(len(sites), dim + 2, dim + 1))


def read_equations(record: Params, count: int, dim: int) -> list[Equations]:
    """Reads ``count`` sites' equations from an untrusted sender; their numbers may be anything."""
    each = read_floats(record, "equations", (count, dim + 2, dim + 1))
    return [Equations(part[:-1], float(part[-1, -1]), part[-1, :-1] > 0) for part in each]


def impossible_equations(site: Equations, rows: float, *, intercept: bool) -> str | None:
    """Checks a site's equations: the first fault in words, or None.

    ``rows`` are those that the site reported, infinite where they do not count alike; with
    ``intercept`` the last column must be of ones.
    """
    r = site.triangle
    if not (np.abs(r) <= LARGEST).all():  # NaN is not, either
        return f"some of its sums are NaN, or beyond {LARGEST:.3g}"
    within = 1 / LARGEST < site.weight <= LARGEST
    if not within or (rows < np.inf and not np.isclose(site.weight, rows)):
        return f"it claims {site.weight:g} rows of {rows:g}"
    odd = intercept and not np.isclose(r[:, -2] @ r[:, -2], site.weight)
    return "its column of ones has others" if odd else None


def parameters_record(shared: Sequence[Shared | None], dim: int) -> Params:
    """Serializes shared coefficients of P parameters, of which some may be unknown.

    Arrays ``coef`` (P, d), and ``size`` (P,), which is 0 for unknown ones.
    """
    return floats_record(
        coef=np.array([np.zeros(dim) if one is None else one.coef for one in shared]),
        size=np.array([0.0 if one is None else one.size for one in shared]),
    )


def read_parameters(record: Params, count: int) -> list[Shared | None]:
    """Reads a record of ``parameters_record``."""
    shape = record["coef"].shape
    dim = shape[1] if len(shape) == 2 else 0
    coefs, sizes = read_floats(record, "coef", (count, dim)), read_floats(record, "size", (count,))
    if not (np.isfinite(coefs).all() and np.isfinite(sizes).all()):
        raise ValueError("coefficients or sizes are NaN or infinite")
    parts = zip(coefs, sizes.tolist(), strict=True)
    return [Shared(coef, size) if size > 0 else None for coef, size in parts]
