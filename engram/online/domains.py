"""Sets of decisions: a ball, a box or a simplex, with projections onto them."""

from typing import NamedTuple, Self

import numpy as np

from engram.core.arrays import Array
from engram.core.checks import require
from engram.online.steps import BALL, BOX, SIMPLEX, pull


class Domain(NamedTuple):
    """A convex, compact set of vectors of shape (d,); made by ``ball``, ``box`` and ``simplex``.

    Attributes:
        kind: ``BALL``, ``BOX`` or ``SIMPLEX``.
        anchor: The ball's center, or the lower limits of a box or simplex, shape (d,).
        top: The box's upper limits; infinite for a simplex, meaningless for a ball.
        size: The ball's radius, or the sum of a simplex's coordinates.
    """

    kind: int
    anchor: Array
    top: Array
    size: float

    @property
    def dim(self) -> int:
        """Dimension d of decisions."""
        return len(self.anchor)

    @property
    def center(self) -> Array:
        """The center."""
        if self.kind == BOX:
            return (self.anchor + self.top) / 2
        return self.anchor + (0.0 if self.kind == BALL else self._excess / self.dim)

    @property
    def diameter(self) -> float:
        """The largest Euclidean distance D of two points."""
        if self.kind == BALL:
            return 2 * self.size
        if self.kind == BOX:
            return float(np.linalg.norm(self.top - self.anchor))
        return float(np.sqrt(2) * self._excess)

    @property
    def _excess(self) -> float:
        return float(self.size - self.anchor.sum())

    def project(self, y: Array) -> Array:
        """Returns the point nearest to ``y``."""
        nearest = np.array(y, dtype=np.float64)
        pull(*self, nearest)
        return nearest

    @np.errstate(over="ignore", invalid="ignore")
    def distance(self, x: Array) -> float:
        """Returns the distance of ``x`` from the domain; NaN or infinity if ``x`` is not finite."""
        return float(np.linalg.norm(self.project(x) - x))

    def contains(self, x: Array, tolerance: float = 1e-9) -> bool:
        """Whether ``x`` is in the domain, up to ``tolerance`` times its diameter."""
        return self.distance(x) <= tolerance * self.diameter

    def relative(self, origin: Array, unit: float) -> Self:
        """Returns the domain in the coordinates (x - origin) / unit."""
        anchor, top = (self.anchor - origin) / unit, (self.top - origin) / unit
        shift = float(origin.sum()) if self.kind == SIMPLEX else 0.0
        return self._replace(anchor=anchor, top=top, size=(self.size - shift) / unit)


def ball(dim: int, radius: float, center: Array | None = None) -> Domain:
    """Returns {x : |x - center| <= radius}.

    ``center`` is by default the origin.

    Raises:
        ValueError: If an argument is out of range.
    """
    require(dim >= 1, "dim", dim, "at least 1")
    require(0 < radius < np.inf, "radius", radius, "finite and positive")
    anchor = np.zeros(dim) if center is None else _vector(center, "center", dim)
    return _sized(Domain(BALL, anchor, anchor, float(radius)))


def box(low: Array, high: Array) -> Domain:
    """Returns {x : low <= x <= high}.

    Raises:
        ValueError: If an argument is out of range.
    """
    low = _vector(low, "low", np.size(low))
    high = _vector(high, "high", len(low))
    with np.errstate(over="ignore"):  # which is refused below
        widths = high - low
    require(bool((widths >= 0).all()), "high - low", float(widths.min()), "at least 0 everywhere")
    require(bool((widths > 0).any()), "high - low", 0.0, "above 0 in a coordinate, or D is 0")
    return _sized(Domain(BOX, low, high, 0.0))


def simplex(dim: int) -> Domain:
    """Returns {x : x >= 0, sum x = 1}.

    Raises:
        ValueError: If ``dim`` is below 2.
    """
    require(dim >= 2, "dim", dim, "at least 2, or the domain is a point")
    return Domain(SIMPLEX, np.zeros(dim), np.full(dim, np.inf), 1.0)


def _sized(domain: Domain) -> Domain:
    with np.errstate(over="ignore"):
        diameter = domain.diameter
    require(0 < diameter < np.inf, "the domain's diameter", diameter, "finite and positive")
    return domain


def _vector(value: Array, name: str, dim: int) -> Array:
    vector = np.array(value, dtype=np.float64)
    require(vector.shape == (dim,) and dim >= 1, f"{name}'s shape", vector.shape, f"({dim},)")
    require(bool(np.isfinite(vector).all()), name, float(np.abs(vector).max()), "finite")
    return vector
