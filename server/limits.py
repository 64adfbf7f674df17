"""Limits of a node's reply."""

from typing import NamedTuple


class Limits(NamedTuple):
    """Limits of a node's reply."""

    # Parts: records, their arrays, and the arrays' chunks. A reply of ``engram node`` has only a
    # few, whatever the model.
    records: int = 1000
    mebibytes: int = 1024  # MiB of all of them together

    @property
    def bytes(self) -> int:
        """``mebibytes`` in bytes."""
        return self.mebibytes * 2**20
