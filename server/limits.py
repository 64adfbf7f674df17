"""The bounds of a node's reply."""

from typing import NamedTuple


class Limits(NamedTuple):
    """What a node's reply may have."""

    # Parts: records, their arrays, and the arrays' chunks. One of ``engram node`` has a few,
    # whatever the model.
    records: int = 1000
    mebibytes: int = 1024  # MiB of all of them together

    @property
    def bytes(self) -> int:
        """As ``mebibytes``."""
        return self.mebibytes * 2**20
