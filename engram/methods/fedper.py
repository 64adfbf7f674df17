"""FedPer. Arivazhagan, Aggarwal, Singh, Choudhary. 2019 (arXiv:1912.00818)."""

from engram.core.settings import method
from engram.methods.fedavg import FedAvg


@method("fedper", source="Arivazhagan et al., 2019, Alg. 1 and 2", personal="head")
class FedPer(FedAvg):
    """FedAvg of all layers but the last one, which each client keeps."""
