"""A tensor written in place whose earlier versions can still be read."""

from typing import Any, Self

from torch import Tensor


class Persistent:
    """One version of a tensor.

    A policy's state is never changed, and yet 2000 users' networks should not be copied whenever
    one of them learns. So the newest version holds the numbers, and each older version holds what
    the next one has overwritten (Baker, "Shallow binding makes functional arrays fast", 1991).
    Writing to the newest version costs as much as is written; reading another version costs the
    changes between the two.

    Use the result of ``read`` before anything else is written or read, and do not change it.
    """

    __slots__ = ("_data", "_index", "_newer")

    def __init__(self, data: Tensor) -> None:
        """Takes over a tensor, which nobody else may hold."""
        self._data = data  # all numbers, or what `_newer` has overwritten at `_index`
        self._index: Any = None
        self._newer: Self | None = None

    def read(self) -> Tensor:
        """Returns the numbers of this version."""
        newer = []
        version = self
        while version._newer is not None:
            newer.append(version)
            version = version._newer
        for older in reversed(newer):
            version._exchange(older)
            version = older
        return self._data

    def write(self, index: Any, values: Tensor) -> Self:
        """Returns the version in which ``data[index]`` is ``values``."""
        data = self.read()
        overwritten = data[index].clone()
        data[index] = values
        new = type(self)(data)
        self._data, self._index, self._newer = overwritten, index, new
        return new

    def _exchange(self, older: Self) -> None:
        """Makes the next older version the one that holds the numbers, in place of this one."""
        data, index = self._data, older._index
        own = data[index].clone()
        data[index] = older._data
        older._data, older._index, older._newer = data, None, None
        self._data, self._index, self._newer = own, index, older

    def __reduce__(self) -> tuple[type[Self], tuple[Tensor]]:
        """Copies and pickles hold this version alone."""
        return type(self), (self.read().clone(),)
