"""The clients that train in a round, and the models from which they start.

Rounds in which all clients of a cohort start from the same model have one wave. On a simulated
clock, clients that come too late are left out; in a buffered run a round merges what clients of
several waves have made of older models.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch

from engram.core.method import Slots
from engram.core.slots import flat, unflat
from engram.core.types import Params
from engram.scoring.metrics import Metric
from engram.settings.errors import RunStopped
from engram.settings.experiment import Experiment
from engram.strategies.running.base import Row
from engram.strategies.running.clock import (
    Flight,
    Flights,
    drawn_paces,
    in_time,
    landings,
    traced_paces,
)
from engram.strategies.running.rounds import Draw, Rounds, Together, Wave
from engram.strategies.running.screening import TrainReplies
from engram.wire.messages import Question, Reply
from engram.wire.roster import Roster
from engram.wire.tensors import tensors_from_bytes, tensors_to_bytes

Ends = Callable[[int, float], float]
"""``(client, second) -> second`` at which a client that is asked then answers."""


class Sent(NamedTuple):
    """Questions to the nodes of a wave."""

    wave: Wave
    loss: Metric | None  # the metric of the training losses that they ask for; None for none
    asked: list[tuple[Question, list[int]]]  # with the clients that each asks

    def only(self, fits: Callable[[Question], bool]) -> Self:
        """Returns some of the questions, and their clients as the wave."""
        asked = [(question, clients) for question, clients in self.asked if fits(question)]
        clients = sorted(client for _, some in asked for client in some)
        return self._replace(wave=self.wave._replace(clients=clients), asked=asked)


class AtWork(Together):
    """Buffered asynchronous rounds of nodes, in real time.

    A client that has answered is asked again, or another in its place, when the next round begins.
    """

    waits = True

    def next(self, server_round: int, slots: Slots, draw: Draw) -> list[Wave]:
        """Returns the clients to ask beside those in ``working``."""
        free = self._wanted - len(self.working)
        clients = draw(server_round, free, self.working) if free > 0 else []
        return [Wave(server_round, slots, clients)]


class Timed(Together):
    """Synchronous rounds on a simulated clock; the second is the state."""

    def __init__(self, experiment: Experiment, ends: Ends) -> None:
        super().__init__(experiment.clients_per_round)
        self._experiment, self._ends = experiment, ends
        self.state = {"now": torch.zeros((), dtype=torch.float64)}

    def next(self, server_round: int, slots: Slots, draw: Draw) -> list[Wave]:
        """Returns the clients of a round that answer in time.

        Raises:
            RunStopped: Nobody does.
        """
        e, now = self._experiment, float(self.state["now"])
        cohort = draw(server_round, e.asked(self._wanted), ())
        ends = {client: self._ends(client, now) for client in cohort}
        clients, now = in_time(ends, now=now, wanted=self._wanted, deadline=e.deadline)
        if cohort and not clients:
            raise RunStopped(
                f"round {server_round}: none of {len(cohort)} clients answers within deadline = "
                f"{e.deadline:g} simulated seconds"
            )
        self.state = {"now": torch.tensor(now, dtype=torch.float64)}
        self.late = sorted({*cohort} - {*clients})
        self.row = {"simulated-seconds": now}
        return [Wave(server_round, slots, clients)]


class Buffered(Together):
    """Buffered asynchronous rounds on a simulated clock (Nguyen et al., AISTATS 2022, Alg. 1).

    A client is trained when its answer is due, on the slots that it was sent. So the state has
    these, and who is at work.
    """

    def __init__(self, experiment: Experiment, ends: Ends, like: Slots) -> None:
        super().__init__(experiment.clients_per_round)
        self._buffer, self._ends, self._like = experiment.buffer_size, ends, like
        self._flights, self._slots = Flights(), dict[int, Slots]()

    @property
    def state(self) -> Params:
        """The second, the clients at work, and the slots that they work on."""
        (now, waves, aloft), every = self._flights, self._slots
        held = {f"{v}/{path}": x for v, slots in every.items() for path, x in flat(slots).items()}
        packed = np.frombuffer(bytearray(tensors_to_bytes(held) if held else b""), dtype=np.uint8)
        return {
            "now": torch.tensor([now, waves], dtype=torch.float64),
            "aloft": torch.tensor([x for f in aloft for x in f], dtype=torch.float64),
            "slots": torch.from_numpy(packed),
        }

    @state.setter
    def state(self, state: Params) -> None:
        if not state:
            return
        now, waves = state["now"].tolist()
        rows = state["aloft"].reshape(-1, 3).tolist()
        aloft = tuple(Flight(int(client), int(version), lands) for client, version, lands in rows)
        self._flights = Flights(now, int(waves), aloft)
        packed, every = state["slots"].numpy().tobytes(), dict[int, Params]()
        for name, leaf in (tensors_from_bytes(packed) if packed else {}).items():
            version, _, path = name.partition("/")
            every.setdefault(int(version), {})[path] = leaf
        self._slots = {version: unflat(x, self._like) for version, x in every.items()}

    def next(self, server_round: int, slots: Slots, draw: Draw) -> list[Wave]:
        """Returns the clients that fill the buffer by their answers, by their initial slots."""
        version = server_round - 1
        self._slots[version] = slots
        landed, self._flights = landings(
            self._flights,
            version,
            at_work=self._wanted,
            wanted=self._buffer,
            draw=draw,
            ends=self._ends,
        )
        stale = [version - flight.version for flight in landed]
        self.row = {"simulated-seconds": self._flights.now, **_staleness(stale)}
        by: dict[int, list[int]] = {}
        for flight in sorted(landed, key=lambda flight: (flight.version, flight.client)):
            by.setdefault(flight.version, []).append(flight.client)
        waves = [Wave(v + 1, self._slots[v], clients) for v, clients in by.items()]
        needed = {flight.version for flight in self._flights.aloft}
        self._slots = {v: held for v, held in self._slots.items() if v in needed}
        return waves


def answered_of(
    server_round: int, sent: list[Sent], came: Mapping[Question, Reply]
) -> tuple[list[Sent], list[Sent], Row]:
    """Returns questions that have an answer in a round, the others, and the round's staleness."""
    due = [one.only(came.__contains__) for one in sent]
    later = [one.only(lambda question: question not in came) for one in sent]
    used = [one.only(lambda question: not came[question].error) for one in due]
    stale = [server_round - one.wave.server_round for one in used for _ in one.wave.clients]
    due, later = ([one for one in some if one.asked] for some in (due, later))
    return due, later, _staleness(stale)


def _staleness(rounds: Sequence[int]) -> Row:
    return {"staleness": sum(rounds) / len(rounds)} if rounds else {}


def pacing_of(rounds: Rounds, roster: Roster, size: int | None = None) -> Together:
    """Returns the scheduler of an experiment.

    ``size`` are the bytes that a client receives and sends, where messages are compressed.

    Raises:
        Refused: The file of ``clock`` is impossible.
    """
    e = rounds.settings
    if not e.clock:
        way = AtWork if e.buffer_size else Together
        return way(e.clients_per_round)
    clients = len(roster.nodes)
    paces = (
        traced_paces(Path(e.clock), clients, roster.names)
        if (drawn := e.drawn_clock) is None
        else drawn_paces(drawn, e.seed, clients)
    )
    both = rounds.shapes.traffic if size is None else size

    def ends(client: int, start: float) -> float:
        return paces[client].ends(start, rounds.steps(roster.examples[client]), both)

    if e.buffer_size:
        return Buffered(e, ends, rounds.merge.method.server.start)
    return Timed(e, ends)


def joined(each: Sequence[TrainReplies]) -> TrainReplies:
    """Joins the replies of waves."""
    accepted = [reply for replies in each for reply in replies.accepted]
    rejected = [reply for replies in each for reply in replies.rejected]
    silent = [clients for replies in each for clients in replies.silent]
    return TrainReplies(accepted, rejected, silent)
