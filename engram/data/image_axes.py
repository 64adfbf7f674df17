"""Inputs of users as networks take them: in the shape that they have, but for images.

A row is changed by its own type and shape, and by settings: so every node does to its rows what one
process does to those of all clients.
"""

from functools import lru_cache
from logging import getLogger
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from engram.core.machine import check_rows
from engram.data.lazy import Place
from engram.networks.registry import CHARACTERS, TEXTS, TORCHVISION, maker
from engram.settings.errors import DataError

_log = getLogger("flwr.engram")

PART = "parts of rows"
"""The use of each row, (n,): 0 learning, 1 testing, 2 validation, -1 one of the first two, drawn.

Where no row is for validation, some of those to learn from are drawn for it.
"""

TESTS = ("test", "val", "valid", "validation")
"""Names of parts besides train: the first that is there is for testing, others validate."""

CUT = "rows before test rows"
"""Number of training rows, where test rows that came apart follow them."""

CLASSES = "classes of y"
"""The classes that ``y`` may have, in their order: its values, or what its numbers are called."""

_Array = npt.NDArray[Any]
_CHANNELS = (1, 3)
_GREY = "uint8"
_LARGEST = np.finfo(np.float32).max
_STEPS = 64  # of float32, between a column's least and largest value


class Shaping(NamedTuple):
    """Settings by which rows of a single input are shaped.

    Attributes:
        images: The setting: which rows are images, and where their channels are.
        all_images: Whether all rows are images: the network takes no others, or files are such.
        whole_numbers: Whether whole numbers, other than grey levels, stay so.
        exact: Whether columns of arrays stay float64, since they are standardized later.
        exact_tables: Likewise of tables.
    """

    images: Literal["auto", "none", "grey", "channels-last", "alpha"] = "auto"
    all_images: bool = False
    whole_numbers: bool = False
    exact: bool = False
    exact_tables: bool = False

    @classmethod
    def of(cls, model: str, images: Any) -> Self:
        """Reads the setting ``images`` for a network of this name."""
        takes_images = model in ("cnn", "resnet") or model.startswith(TORCHVISION)
        whole = model in (*CHARACTERS, *TEXTS) or maker(model) is not None
        return cls(images, takes_images, whole)

    def rows(self, place: Place, x: _Array, *, several: bool = False) -> _Array:
        """Returns rows (n, ...) of one type as a network takes them.

        Grey levels stay uint8, whole numbers become int64 where they stay whole, columns that are
        to be ``exact`` float64, and all else float32. A row of images becomes (channels, height,
        width).

        ``several`` is whether there are other inputs besides: then none is an image.

        Raises:
            DataError: If they are no numbers, or neither images nor what else they may be.
        """
        grey, least = x.dtype == _GREY, 1 if several or self.whole_numbers else 2
        if x.dtype.kind not in "buif" or x.ndim < least or 0 in x.shape[1:]:
            raise place.fault("numbers, in rows", f"{x.dtype} of shape {x.shape}")
        if several and self.images not in ("auto", "none"):
            raise DataError(f"images must be auto or none for several inputs, got {self.images}")
        if grey and x.ndim == 2:
            say_once(f"{place.path}: {place.name} is uint8, grey levels of 255: numbers need int64")
        if not grey and x.dtype.kind in "iu" and (several or self.whole_numbers):
            return np.ascontiguousarray(x, dtype=np.int64)
        if not grey:
            columns = x.ndim == 2 and not several and x.dtype != np.float32
            dtype = np.dtype("float64" if columns and self.exact else "float32")
            if x.dtype != dtype:
                check_rows(f"{place.path} in {dtype}", dtype.itemsize * x.size)
            if columns and not self.exact and not place.drawn:
                _say_lost(place, x)
            x = x.astype(dtype, copy=False)
            if not (finite := (x >= -_LARGEST) & (x <= _LARGEST)).all():
                raise place.fault("finite", place.first(x.astype(np.float32), ~finite))
        return np.ascontiguousarray(x if several else self._image(place, x))

    def _image(self, place: Place, x: _Array) -> _Array:
        """Returns images with their channels first, and other rows as they are."""
        axes = {"grey": 3, "channels-last": 4, "alpha": 4}.get(self.images, x.ndim)
        if x.ndim != axes:
            raise place.fault(f"of {axes} axes for images={self.images}", f"shape {x.shape}")
        auto = self.images == "auto" and (self.all_images or x.dtype == _GREY)
        if self.images == "grey" or (auto and x.ndim == 3):
            return x[:, None]
        if self.images in ("channels-last", "alpha"):
            return np.moveaxis(x, 3, 1)
        if not auto or x.ndim != 4:
            return x
        first, last = (x.shape[axis] in _CHANNELS for axis in (1, 3))
        wanted = "images with 1 or 3 channels, first or last"
        if first and last:
            ways = "set images=channels-last, or images=none if they are first"
            raise place.fault(wanted, f"shape {x.shape}, where both may be: {ways}")
        if not (first or last) and self.all_images:
            ways = "set images=none if rows are (channels, height, width), or images=channels-last"
            ways += " if they are (height, width, channels)"
            raise place.fault(wanted, f"shape {x.shape}: {ways}")
        return np.moveaxis(x, 3, 1) if last else x


def lost_columns(values: _Array) -> list[int]:
    """Columns of rows (n, d) with differences that float32 hardly keeps."""
    if not len(values):
        return []
    low, high = (end(axis=0).astype(np.float64) for end in (values.min, values.max))
    with np.errstate(over="ignore", invalid="ignore"):
        step = np.spacing(np.maximum(abs(low), abs(high)).astype(np.float32))
        close = np.flatnonzero((low < high) & (high - low < _STEPS * step))
        return [
            k for k in close.tolist() if (values[:, k].astype(np.float32) != values[:, k]).any()
        ]


def _say_lost(place: Place, x: _Array) -> None:
    for k in lost_columns(x)[:1]:
        say_once(
            f"{place.path}: column {k} of {place.name} has values from {x[:, k].min()} to "
            f"{x[:, k].max()}, whose differences float32 does not keep: set standardize=federation"
        )


@lru_cache(maxsize=64)  # data are read several times in a run
def say_once(text: str) -> None:
    """Warns, unless it has been said."""
    _log.warning("%s", text)
