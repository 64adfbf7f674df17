"""FedLC. Zhang, Li, Li, Xu, Wu, Ding, Wu. ICML 2022."""

from typing import Annotated

import torch
from annotated_types import Ge

from engram.core.class_statistics import indicators
from engram.core.method import Context, Method, Phase
from engram.core.settings import Search, method
from engram.core.slots import keep_all, kinds_of
from engram.methods.fedavg import FedAvg


@method("fedlc", source="Zhang et al., ICML 2022", tasks=("classification",))
class FedLc(FedAvg):
    """FedAvg with logits calibrated by each client's class frequencies."""

    tau: Annotated[
        float, Ge(0), Search(0.01, 1, log=True), "size of the margins between classes; 0: fedavg"
    ] = 0.25

    def build(self, context: Context) -> Method:
        """Builds the method, for a client with a share p_c of rows of class c.

            w <- w - eta grad mean over rows of -log(e^(o_y - m_y) / sum_c e^(o_c - m_c))
            m_c = tau p_c^(-1/4)

        o are w's outputs: a row of a rare class has to win by a larger margin, and classes without
        rows are not compared. The paper has numbers of rows n_c in place of shares, which stay as
        they are however often a client takes part: for clients of n rows its tau is this one times
        ``n^(1/4)``. Its sum leaves out y; over all classes, as in published code, tau = 0 is
        cross-entropy. Shares are of the rows that the client's steps have drawn until then, in all
        rounds.

        Raises:
            ValueError: If the network has no representation.
        """
        network = context.network
        network.require_representation()

        def calibrated(w, counts, batch):
            outputs, _ = network.represent(w, batch, None)
            # A class without rows has a margin that no output overcomes, but no infinite one.
            shares = (counts / counts.sum()).clamp(min=torch.finfo(counts.dtype).tiny)
            return context.objective.criterion(outputs - self.tau * shares**-0.25, batch), ()

        gradient = context.objective.differentiate(calibrated)

        def direction(work, batches):
            counts = work["counts"] + indicators(batches[0][1], context.outputs).sum(0)
            d, _ = gradient(work["model"], counts, batches[0])
            return {"model": d}, work | {"counts": counts}

        base = super().build(context)
        return base._replace(
            client=base.client._replace(
                begin=keep_all,
                phases=(Phase(direction, self.eta, one_gradient_per_batch=True),),
                end=lambda received, work: ({"model": work["model"]}, {"counts": work["counts"]}),
                start={"counts": torch.zeros(context.outputs)},
            ),
            kinds=kinds_of(models="model", statistics="counts"),
        )
