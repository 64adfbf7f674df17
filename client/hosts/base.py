"""What hosts clients: one protocol, which every family of methods has its own implementation of."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from flwr.app import Message, RecordDict

from client.memory import MemoryStore
from client.requests import Request
from client.training.trainer import Engine
from federation.experiment import Experiment
from federation.noise import Noise, secret_noise

__all__ = ["HOSTS", "Engine", "Host", "Opening", "host_of", "hosts"]


class Host(Protocol):
    """The clients of one node, or of many that share a process."""

    def describe(self, hosted: Sequence[int]) -> RecordDict:
        """Returns what these clients' data are, as ``federation.roster.describe_node`` has it."""

    def train(self, requests: Sequence[Request]) -> list[Message]:
        """Answers requests of one round, in their order. What cannot be met is an error reply."""

    def evaluate(self, requests: Sequence[Request]) -> list[Message]:
        """Answers requests to score clients, likewise."""


class Opening(NamedTuple):
    """What a host is made from.

    Attributes:
        experiment: The settings.
        store: Where clients' memories are kept.
        own: A data set that is one client's, and no other's; empty for the experiment's.
        client: Whose.
        hosted: The clients that are hosted; None for all. Others' rows may be left out.
        engine: ``vectorized`` trains a cohort at once, where the family can; ``sequential`` one
            client at a time, and says which one fails, and where.
        noise: Where the noise of local privacy comes from.
        named: Whether clients keep the names that the data give them, which the server is told.
    """

    experiment: Experiment
    store: MemoryStore
    own: str = ""
    client: int = 0
    hosted: Sequence[int] | None = None
    engine: Engine = "vectorized"
    noise: Noise = secret_noise
    named: bool = True


Open = Callable[[Opening], Host]

HOSTS: dict[str, Open] = {}
"""By family, what loads the data of its clients and hosts them."""


def hosts(plug_in: str) -> Callable[[Open], Open]:
    """Makes a function known as what opens the hosts of a family; to be used as a decorator."""

    def register(open_: Open) -> Open:
        HOSTS[plug_in] = open_
        return open_

    return register


def host_of(opening: Opening) -> Host:
    """Loads the data, and hosts their clients.

    Raises:
        DataError: Data cannot be read, or are too few.
        Refused: The settings do not fit the data or the machine.
    """
    return HOSTS[opening.experiment.own.plug_in](opening)
