"""A tensor that is written in place, and of which all versions still read as they were."""

from typing import Any, Self

from torch import Tensor

__all__ = ["Persistent"]


class Persistent:
    """One version of a tensor.

    A policy's state is never changed, and yet 2000 users' networks should not be copied whenever
    one of them learns. So the newest version holds the numbers, and each older one what the next
    has overwritten (Baker, "Shallow binding makes functional arrays fast", 1991). To write to the
    newest version costs what is written; to read another one, the changes between the two.

    What ``read`` returns is to be used before anything else is written or read, and not to be
    changed.
    """

    __slots__ = ("_data", "_index", "_newer")

    def __init__(self, data: Tensor) -> None:
        """Starts from a tensor, which nobody else may hold."""
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
        """Copies and pickles are of this version alone."""
        return type(self), (self.read().clone(),)
