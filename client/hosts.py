"""What hosts clients: a trainer of networks, or tables; ``client.handlers`` answers for each."""

from client.memory import MemoryStore
from client.meta_ban import UserSites
from client.molar_bandit import BanditSites
from client.tables import TableSites
from client.trainer import Trainer
from federation.data.arrivals import drawn_arrivals, is_table, table_arrivals
from federation.data.environments import SIMULATED
from federation.data.tables import own_table, table_data
from federation.experiment import Experiment

__all__ = ["Host", "table_host"]
Host = Trainer | TableSites | BanditSites | UserSites


def table_host(
    experiment: Experiment, store: MemoryStore, *, own: str = "", client: int = 0
) -> TableSites | BanditSites | UserSites:
    """Loads tables, and hosts their clients.

    Args:
        experiment: The settings.
        store: Where clients' memories are kept.
        own: A table that is one client's, and no other's; empty for the experiment's.
        client: Whose.

    Raises:
        DataError: If a table cannot be read.
    """
    if experiment.algorithm == "meta-ban" and not own and not is_table(experiment):
        return UserSites(experiment, drawn_arrivals(experiment), store)
    bandit = experiment.algorithm == "molar-bandit"
    if bandit and not own and experiment.dataset == SIMULATED:
        return BanditSites(experiment, None, store)
    data = own_table(experiment, own, client) if own else table_data(experiment)
    if experiment.algorithm == "meta-ban":
        return UserSites(experiment, table_arrivals(experiment, data), store)
    return (BanditSites if bandit else TableSites)(experiment, data, store)
