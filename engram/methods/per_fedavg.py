"""Per-FedAvg. Fallah, Mokhtari, Ozdaglar. NeurIPS 2020."""

from typing import Annotated

from annotated_types import Ge

from engram.core.method import Context, Method
from engram.core.settings import Search, Step, method
from engram.methods.local_moml import Hessian, LocalMoml


@method(
    "per-fedavg",
    source="Fallah et al., NeurIPS 2020; Wang et al., JMLR 2023, Sec. 5.1",
    compared=True,
)
class PerFedAvg:
    """Meta-learning without memory: LocalMOML with beta = 1."""

    alpha: Annotated[float, Ge(0), Search(1e-3, 1, log=True), "adaptation step size"] = 0.01
    eta: Annotated[Step, "step size of the common model"] = 0.05
    hessian: Hessian = "first-order"

    def build(self, context: Context) -> Method:
        """Builds LocalMOML without memory. With one local step it is MAML."""
        return LocalMoml(self.alpha, 1.0, self.eta, self.hessian).build(context)
