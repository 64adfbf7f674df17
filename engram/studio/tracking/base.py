"""Protocol of trackers, and the facts of a run that it sends them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class About(NamedTuple):
    """A run, as a tracker knows it.

    Attributes:
        key: A name that no other run has, and that a resumed run keeps.
        name: The name of its folder.
        group: The folder of its comparison; "" if it is none of one.
        folder: Its folder.
        settings: Its settings by key.
    """

    key: str
    name: str
    group: str
    folder: Path
    settings: Mapping[str, Any]


class Ending(NamedTuple):
    """Findings of a finished run.

    Attributes:
        server_round: The last round.
        results: Numbers by name.
        clients: Each client's value, by metric: for a histogram.
        files: Files to be kept with the run.
    """

    server_round: int
    results: Mapping[str, float]
    clients: Mapping[str, Sequence[float]]
    files: Sequence[Path]


class Tracker(Protocol):
    """One run at a tracker. It is made of an ``About``, and of the last round that it was told."""

    @property
    def known(self) -> int:
        """The last round that it has, as far as the tracker itself can tell; -1 for none."""

    def tell(self, server_round: int, values: Mapping[str, float]) -> None:
        """Adds a round's numbers."""

    def flush(self) -> None:
        """Hands over numbers that are still held back."""

    def finish(self, end: Ending) -> None:
        """Adds the results, after the last round."""

    def close(self) -> None:
        """Ends it; another process may go on."""
