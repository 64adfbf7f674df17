"""FedRep. Collins, Hassani, Mokhtari, Shakkottai. ICML 2021."""

from typing import Annotated

from engram.core.method import Context, FromMean, Method, Phase
from engram.core.settings import Share, method
from engram.core.slots import replace
from engram.methods.fedavg import FedAvg


@method("fedrep", source="Collins et al., ICML 2021, Alg. 1", personal="head")
class FedRep(FedAvg):
    """A client trains its own last layer, which it keeps, and then the layers below."""

    personal_share: Annotated[
        Share, "share of a client's steps in a round, the first ones, for the head"
    ] = 0.8

    def build(self, context: Context) -> Method:
        """Builds Alg. 1: a client first trains its personal parameters, then the shared ones.

        Raises:
            ValueError: If there is nothing to train in one of the two phases.
        """
        network, gradient = context.network, context.objective.gradient
        own, shared = network.personal & network.learned, network.shared & network.learned
        if not (own and shared):
            lacks = "personal" if not own else "shared"
            raise ValueError(
                f"this method trains personal parameters and then shared ones: the network has no "
                f"{lacks} ones, by the settings personal and share"
            )

        def trains(names, fraction=1.0):
            def direction(work, batches):
                return {"model": gradient(work["model"], batches[0], names)}, work

            return Phase(
                direction, self.eta, fraction=fraction, affine=True, one_gradient_per_batch=True
            )

        base = super().build(context)
        return base._replace(
            server=base.server._replace(merge=FromMean(replace)),
            client=base.client._replace(phases=(trains(own, self.personal_share), trains(shared))),
        )
