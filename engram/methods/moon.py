"""MOON. Li, He, Song. CVPR 2021."""

from typing import Annotated

from annotated_types import Ge, Gt
from torch.nn.functional import cosine_similarity, softplus

from engram.core.method import Context, Method, Phase
from engram.core.settings import Search, method
from engram.core.slots import kinds_of
from engram.methods.fedavg import FedAvg


@method("moon", source="Li, He & Song, CVPR 2021, Alg. 1")
class Moon(FedAvg):
    """FedAvg with a contrastive loss towards the global model's representations."""

    mu: Annotated[
        float, Ge(0), Search(0.1, 10, log=True), "weight of the contrastive loss; 0: fedavg"
    ] = 1.0
    tau: Annotated[float, Gt(0), Search(0.1, 1, log=True), "temperature of similarities"] = 0.5

    def build(self, context: Context) -> Method:
        """Builds Alg. 1, of the model w_t received and u, the client's after its former round.

            w <- w - eta grad (L(w) + mu mean over rows of
                -log(e^(s_w / tau) / (e^(s_w / tau) + e^(s_u / tau))))

        s_w and s_u are the cosines of a row's representations by w and by w_t, or by u. u starts
        as the initial model. The paper adds layers below the last one, whose outputs it compares:
        here a representation is the last layer's input, of the network as it is given.

        Raises:
            ValueError: If the network has no representation.
        """
        network = context.network
        network.require_representation()

        def loss(w, near, far, batch):
            outputs, z = network.represent(w, batch, None)
            gap = cosine_similarity(z, far) - cosine_similarity(z, near)
            contrast = softplus(gap / self.tau).mean()
            return context.objective.criterion(outputs, batch) + self.mu * contrast, ()

        gradient = context.objective.differentiate(loss)

        def direction(work, batches):
            (batch,) = batches
            near, far = (network.represent(work[s], batch, None)[1] for s in ("start", "former"))
            return {"model": gradient(work["model"], near, far, batch)[0]}, work

        base = super().build(context)
        return base._replace(
            client=base.client._replace(
                begin=lambda received, kept, batch: received | kept | {"start": received["model"]},
                phases=(Phase(direction, self.eta, one_gradient_per_batch=True),),
                end=lambda received, work: ({"model": work["model"]}, {"former": work["model"]}),
                start={"former": network.initial},
            ),
            kinds=kinds_of(models="model start former"),
        )
