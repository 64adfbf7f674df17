"""LG-FedAvg. Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency. 2020."""

from engram.core.settings import method
from engram.methods.fedavg import FedAvg


@method("lg-fedavg", source="Liang et al., 2020, Alg. 1", personal="body")
class LgFedAvg(FedAvg):
    """FedAvg of the last layer; each client keeps the others."""
