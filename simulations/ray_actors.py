"""Resident workers of a Ray cluster, which take chunks, and begin anew where they die."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from logging import getLogger
from typing import Any, Final, NamedTuple

from engram.client.ray_worker import RemoteWorker, in_pieces
from engram.settings.errors import Refused, one_line
from engram.simulations.ray_connect import join

_log = getLogger("flwr.engram")

_ROOM: Final = 30.0  # seconds in which workers of an earlier run must be gone
_PATIENCE: Final = 300.0  # seconds in which workers' processes must be there
_TRIES: Final = 3  # workers that may die one after the other as they begin
_BEGINS: Final = -1  # in place of a chunk's number: the worker reads the data
_STALE: Final = -2  # likewise: nobody waits for its chunk any more

_PIECE: Final = 80_000  # bytes; Ray sends arguments below 100 kB at once, and stores larger ones
_SHARED: Final = 2**21  # bytes from which what all chunks need is stored, for each machine once
_LARGE: Final = 2**23  # bytes from which others are stored: Ray sends 10 MiB of arguments at most

DIED: Final = "most likely for lack of memory: give `ray start` a smaller --num-cpus"
"""Likely cause of workers' deaths, and what to do."""


class Outcome(NamedTuple):
    """The outcome of a chunk."""

    number: int  # the chunk's
    packed: bytes | None = None  # of ``RemoteWorker.train``, in one piece; None if it raised
    lost: bool = False  # whether its worker died


class _Work(NamedTuple):
    """A worker at work, on a chunk or ``_BEGINS`` or ``_STALE``, and all that it returns."""

    worker: Any
    number: int
    returned: Any


class Crew:
    """The workers of one run.

    Args:
        address: As for ``join``.
        cores: Cores of a worker.
        gpu: Whether each has a GPU of its own; then there is a worker for each GPU.

    Attributes:
        size: Number of workers, one for each of the cluster's cores, or for so many of them.

    Raises:
        Refused: No cluster answers.
    """

    def __init__(self, address: str, *, cores: int, gpu: bool) -> None:
        join(address)
        import ray  # noqa: PLC0415 - slow to import, rarely wanted

        self._ray: Any = ray
        self._address = address
        self._needs = {"CPU": cores} | ({"GPU": 1} if gpu else {})
        self.size = self._places(self._ray.cluster_resources())
        # Ray's own restarts would lose what `begin` has prepared.
        options = {"num_cpus": cores, "num_gpus": int(gpu), "max_restarts": 0}
        self._new = self._ray.remote(**options)(RemoteWorker).remote
        self._idle: list[Any] = []
        self._busy: dict[Any, _Work] = {}  # by what is waited for
        self._begin: tuple[Any, ...] = ()
        self._back = 2  # pieces in which a reply comes: as many as the largest so far needs
        self._deaths = 0  # of workers as they began, one after the other

    def start(self, *begin: Any, run: Any) -> None:
        """Starts the workers, and waits for all that the cluster has room for.

        ``RemoteWorker.begin`` is given ``begin``, and then ``run``, which is pickled here, and sent
        to each machine once.

        Raises:
            Refused: There is no room, or a worker cannot take part.
        """
        self._begin = (*begin, self._ray.put(self._ray.cloudpickle.dumps(run)))
        where = f"the Ray cluster at {self._address}"
        until = time.monotonic() + _ROOM
        while not (places := self._places(self._ray.available_resources())):
            if time.monotonic() > until:
                raise Refused(f"{where} has no room for a worker: others use what it has")
            time.sleep(0.2)
        for _ in range(self.size):
            self._start()
        there = [work.worker.__ray_ready__.remote() for work in self._busy.values()]
        places = min(places, len(there))
        room, _ = self._ray.wait(there, num_returns=places, timeout=_PATIENCE)
        while len(self._idle) < len(room) and self._busy:
            if wrong := [why for _, why in self._come() if why]:
                raise Refused(f"{where} must have the same on each machine: {'; '.join(wrong)}")
        if not self._idle:
            raise Refused(f"the workers of {where} died, or did not begin, {DIED}")

    def _places(self, has: Mapping[str, float]) -> int:
        return int(min(has.get(name, 0) // count for name, count in self._needs.items()))

    def _start(self) -> None:
        worker = self._new()
        ref = worker.begin.remote(*self._begin)
        self._busy[ref] = _Work(worker, _BEGINS, ref)

    @property
    def has_room(self) -> bool:
        """Whether a worker waits for a chunk."""
        return bool(self._idle)

    @property
    def at_work(self) -> bool:
        """Whether a worker has a chunk that is waited for."""
        return any(work.number >= 0 for work in self._busy.values())

    def put(self, data: bytes, most: int = _SHARED) -> list[Any]:
        """Makes bytes arguments of workers: pieces, or of more than ``most`` one that is stored."""
        return [self._ray.put(data)] if len(data) > most else in_pieces(data, _pieces(data))

    def give(self, number: int, same: Sequence[Any], own: bytes) -> None:
        """Gives a chunk to a worker that waits for one.

        All chunks of the round need ``same``, as ``put`` returns it; this one needs ``own``.
        """
        worker, mine = self._idle.pop(), self.put(own, _LARGE)
        train = worker.train.options(num_returns=self._back)
        refs = train.remote(self._back, len(mine), *mine, *same)
        self._busy[refs[0]] = _Work(worker, number, refs)

    def outcomes(self) -> Iterator[Outcome]:
        """Waits for workers, and yields the outcomes of their chunks."""
        for outcome, wrong in self._come():
            if wrong:
                _log.warning("a worker cannot take part: %s", wrong)
            if outcome is not None:
                yield outcome

    def forget(self) -> None:
        """Waits for no chunk any more; workers take others when they are done."""
        self._busy = {
            ref: work._replace(number=_STALE) if work.number >= 0 else work
            for ref, work in self._busy.items()
        }

    def close(self) -> None:
        """Ends the workers; the connection with the cluster stays."""
        for worker in [*self._idle, *(work.worker for work in self._busy.values())]:
            self._end(worker)
        self._idle, self._busy = [], {}

    def _come(self) -> Iterator[tuple[Outcome | None, str]]:
        """Waits for workers; yields outcomes, and reasons against workers."""
        from ray.exceptions import RayError, RayTaskError  # noqa: PLC0415 - slow to import, rarely wanted

        for ref in self._ray.wait([*self._busy], num_returns=1)[0]:
            worker, number, returned = self._busy.pop(ref)
            waited = number >= 0
            try:
                found = self._ray.get(returned)
            except RayTaskError as error:
                self._idle.append(worker)
                if waited:
                    why = one_line(str(error.cause) or repr(error.cause))
                    _log.warning("a worker raised an error, and its clients train here: %s", why)
                    yield Outcome(number), ""
            except RayError:
                self._end(worker)
                self._deaths += number == _BEGINS
                if self._deaths < _TRIES:
                    self._start()
                if waited:
                    _log.warning("a worker died, and others train its clients again")
                    yield Outcome(number, lost=True), ""
            else:
                if number == _BEGINS and found:
                    self._end(worker)
                    yield None, found
                    continue
                self._deaths = 0
                self._idle.append(worker)
                if waited:
                    whole = b"".join(found)
                    if len(whole) <= _LARGE:
                        self._back = max(self._back, _pieces(whole))
                    yield Outcome(number, whole), ""

    def _end(self, worker: Any) -> None:
        with suppress(Exception):  # whatever Ray raises of one that is dead, or of a lost cluster
            self._ray.kill(worker)


def _pieces(data: bytes) -> int:
    return len(data) // _PIECE + 1
