"""Batches that come again, for methods that take several gradients of each."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from engram.settings.errors import Refused

if TYPE_CHECKING:
    from engram.flower.session import Session


class Batches:
    """A loader's batches, which come again as often as a method asks, those of a step together."""

    def __init__(self, session: "Session", loader: Iterable[Any]) -> None:
        self._session, self._loader = session, loader

    def __len__(self) -> int:
        return len(self._loader) * max(1, self._session.traits.again)  # type: ignore[arg-type] # or a TypeError

    def __getattr__(self, name: str) -> Any:
        """Returns the loader's attribute: loops look at ``dataset``, ``batch_size`` and others."""
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        session, window, before = self._session, list[Any](), self._session.gradients
        session.batching = True
        try:
            for batch in self._loader:
                yield batch
                window.append(batch)
                if session.gradients == before:
                    continue  # the next batch is of the same step
                while session.again:
                    before = session.gradients
                    yield from window
                    if session.gradients != before + 1:
                        words = "session.batches must be iterated one step at a time"
                        how = "call optimizer.step(closure) in a loop that fetches batches ahead"
                        raise Refused(f"{words}: {how}")
                window, before = [], session.gradients
        finally:
            session.batching = False
