"""The protocol of hosts of clients, which each family of methods implements."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from engram.client.memory import MemoryStore
from engram.client.requests import Request
from engram.cohort.trainer.trainer import Engine
from engram.data.readers.parquet_cache import unless_refused
from engram.data.schema.columns import Kind
from engram.data.source import Source
from engram.guards.noise import Noise, secret_noise
from engram.guards.places import Sum
from engram.settings.base import Families
from engram.settings.experiment import Experiment
from engram.wire.messages import Content, Reply


class Host(Protocol):
    """The clients of one node, or of many that share a process."""

    def describe(self, hosted: Sequence[int]) -> Content:
        """Describes these clients' data by ``engram.wire.roster.describe_node``."""

    def train(self, requests: Sequence[Request]) -> list[Reply]:
        """Answers requests of one round, in their order; an impossible one gets an error reply."""

    def evaluate(self, requests: Sequence[Request]) -> list[Reply]:
        """Answers requests to score clients, as ``train`` does."""


@runtime_checkable
class Summed(Host, Protocol):
    """A host whose replies to train can be masked, so that a server learns their sum alone."""

    experiment: Experiment

    def masked(self, request: Request, reply: Reply, total: Sum) -> Content:
        """Returns a reply's content as a part of a sum, with the mask and noise of that."""


@runtime_checkable
class Exchanging(Protocol):
    """A host that answers further questions about a round."""

    def exchange(self, requests: Sequence[Request]) -> list[Reply]:
        """Answers requests, as ``Host.train`` does."""


class Opening(NamedTuple):
    """The arguments from which a host is built."""

    experiment: Experiment
    store: MemoryStore  # where clients' memories are kept
    # The data set of a node with a single client; empty for the experiment's.
    own: Source = Source("")
    client: int = 0  # the client that ``own`` belongs to
    # The clients that are hosted; None for all. Others' rows may be left out.
    hosted: Sequence[int] | None = None
    # ``vectorized`` trains a cohort at once, where the family can; ``sequential`` one client at a
    # time, and says which one fails, and where.
    engine: Engine = "vectorized"
    noise: Noise = secret_noise  # source of the noise of local privacy
    named: bool = True  # whether the server learns the clients' names in the data
    # Whether under local privacy an answer has nothing of a client's data that has no noise: not
    # even that its training diverged.
    covers: bool = False
    # Called with the kind of the data before a network is made; it may refuse.
    admit: Callable[[Kind], None] = lambda kind: None
    least_drawn: int = 0  # fewest different rows of which a client's update is made
    least_scored: int = 1  # fewest test rows behind a table's scores


Open = Callable[[Opening], Host]

HOSTS: Families[Open] = Families("host")
"""By family, the function that loads its clients' data and returns their host."""

hosts = HOSTS.register


def host_of(opening: Opening) -> Host:
    """Loads the data, and returns their clients' host.

    Raises:
        DataError: Data cannot be read, or are too few.
        Refused: The settings do not fit the data or the machine.
    """
    e = opening.experiment
    with unless_refused(opening.own or e.source, Path(e.data_dir)):
        return HOSTS[e.own.plug_in](opening)
