"""The protocol of hosts of clients, which each family of methods implements."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from flwr.app import Message, RecordDict

from engram.client.memory import MemoryStore
from engram.client.requests import Request
from engram.cohort.trainer.trainer import Engine
from engram.data.readers.parquet_cache import unless_refused
from engram.data.schema.columns import Kind
from engram.data.source import Source
from engram.guards.noise import Noise, secret_noise
from engram.settings.base import Families
from engram.settings.experiment import Experiment

__all__ = ["HOSTS", "Engine", "Exchanging", "Host", "Opening", "host_of", "hosts"]


class Host(Protocol):
    """The clients of one node, or of many that share a process."""

    def describe(self, hosted: Sequence[int]) -> RecordDict:
        """Describes these clients' data by ``engram.wire.roster.describe_node``."""

    def train(self, requests: Sequence[Request]) -> list[Message]:
        """Answers requests of one round, in their order; an impossible one gets an error reply."""

    def evaluate(self, requests: Sequence[Request]) -> list[Message]:
        """Answers requests to score clients, as ``train`` does."""


@runtime_checkable
class Exchanging(Protocol):
    """A host that answers further questions about a round."""

    def exchange(self, requests: Sequence[Request]) -> list[Message]:
        """Answers requests, as ``Host.train`` does."""


class Opening(NamedTuple):
    """The arguments from which a host is built.

    Attributes:
        experiment: The settings.
        store: Where clients' memories are kept.
        own: The data set of a node with a single client; empty for the experiment's.
        client: The client that ``own`` belongs to.
        hosted: The clients that are hosted; None for all. Others' rows may be left out.
        engine: ``vectorized`` trains a cohort at once, where the family can; ``sequential`` one
            client at a time, and says which one fails, and where.
        noise: Source of the noise of local privacy.
        named: Whether the server learns the clients' names in the data.
        covers: Whether under local privacy an answer has nothing of a client's data that has no
            noise: not even that its training diverged.
        admit: Called with the kind of the data before a network is made; it may refuse.
        least_drawn: Fewest different rows of which a client's update is made.
        least_scored: Fewest test rows behind a table's scores.
    """

    experiment: Experiment
    store: MemoryStore
    own: Source = Source("")
    client: int = 0
    hosted: Sequence[int] | None = None
    engine: Engine = "vectorized"
    noise: Noise = secret_noise
    named: bool = True
    covers: bool = False
    admit: Callable[[Kind], None] = lambda kind: None
    least_drawn: int = 0
    least_scored: int = 1


Open = Callable[[Opening], Host]

HOSTS: Families[Open] = Families("host")
"""By family, the function that loads its clients' data and returns their host."""


def hosts(plug_in: str) -> Callable[[Open], Open]:
    """Registers the decorated function as the one that opens a family's hosts."""

    def register(open_: Open) -> Open:
        HOSTS[plug_in] = open_
        return open_

    return register


def host_of(opening: Opening) -> Host:
    """Loads the data, and returns their clients' host.

    Raises:
        DataError: Data cannot be read, or are too few.
        Refused: The settings do not fit the data or the machine.
    """
    e = opening.experiment
    with unless_refused(opening.own or e.source, Path(e.data_dir)):
        return HOSTS[e.own.plug_in](opening)
