"""kNN-Per. Marfoq, Neglia, Kameni, Vidal. ICML 2022. Equations are of that paper."""

from typing import Annotated

from annotated_types import Ge, Gt

from engram.core.method import Context, Method, Neighbors, Served
from engram.core.settings import Mixed, Search, method
from engram.methods.fedavg import FedAvg


@method("knn-per", source="Marfoq et al., ICML 2022, eq. 6 to 9", tasks=("classification",))
class KnnPer(FedAvg):
    """FedAvg, mixed with a vote of the client's own rows that are nearest."""

    lambda_: Annotated[Mixed, "weight of the client's nearest rows; 0: the common model"] = 0.5
    k: Annotated[int, Ge(1), Search(1, 50, log=True), "rows that vote"] = 10
    scale: Annotated[
        float,
        Gt(0),
        Search(0.1, 10, log=True),
        "distance at which a row's vote weighs 1/e of one at no distance",
    ] = 1.0

    def build(self, context: Context) -> Method:
        """Builds FedAvg's training; a client is served by the mixture (9) of its model and votes.

        Raises:
            ValueError: If the network has no representation.
        """
        network, votes = context.network, Neighbors(self.lambda_, self.k, self.scale)
        network.require_representation()
        return (
            super()
            .build(context)
            ._replace(
                serve=lambda received, kept, trained: Served((received["model"],), neighbors=votes)
            )
        )
