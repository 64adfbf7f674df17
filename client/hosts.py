"""What hosts clients: a trainer of networks, or tables; ``client.handlers`` answers for each."""

from logging import getLogger

from client.bandits import BanditSites
from client.memory import MemoryStore
from client.tables import TableSites
from client.trainer import Trainer
from federation.data.tables import own_table, table_data
from federation.data.worlds import SIMULATED
from federation.errors import DataError
from federation.experiment import Experiment

__all__ = ["Host", "table_host"]

_log = getLogger("flwr.engram")

Host = Trainer | TableSites | BanditSites


def table_host(
    experiment: Experiment, store: MemoryStore, *, own: str = "", client: int = 0
) -> TableSites | BanditSites:
    """Loads tables, and hosts their clients.

    Args:
        experiment: The settings.
        store: Where clients' memories are kept.
        own: A table that is one client's, and no other's; empty for the experiment's.
        client: Whose.

    Raises:
        DataError: A table cannot be read.
    """
    bandit = experiment.algorithm == "molar-bandit"
    if bandit and not own and experiment.dataset == SIMULATED:
        return BanditSites(experiment, None, store)
    try:
        data = own_table(experiment, own, client) if own else table_data(experiment)
    except DataError as error:
        if not own:
            raise
        # What is wrong with a row may say what is in it, and this goes to the coordinator.
        _log.error("%s", error)
        reason = f"client {client}'s own table cannot be used: its node's log says why"
        raise DataError(reason) from error
    return (BanditSites if bandit else TableSites)(experiment, data, store)
