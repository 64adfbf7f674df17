"""CFL. Sattler, Müller, Samek. IEEE Transactions on Neural Networks and Learning Systems 2020."""

from typing import Annotated

import numpy as np
import torch
from annotated_types import Interval
from scipy.cluster.hierarchy import linkage, to_tree
from scipy.spatial.distance import squareform

from engram.core.method import Client, Context, FromEach, Method, Phase, Served, Server
from engram.core.settings import Eta, OnServer, Strength, method
from engram.core.slots import kinds_of, mean_of, pick


@method("cfl", source="Sattler et al., TNNLS 2020, Alg. 1 and 2")
class Cfl:
    """FedAvg that parts clients in two once their updates disagree."""

    eta: Eta = 0.1
    eps1: Annotated[
        Strength, OnServer, "norm of a cluster's mean update below which it may be parted"
    ] = 0.4
    eps2: Annotated[
        Strength, OnServer, "norm of some update above which a cluster may be parted"
    ] = 1.6
    clusters: Annotated[int, Interval(ge=1, le=1000), OnServer, "clusters at most; 1: fedavg"] = 8

    def build(self, context: Context) -> Method:
        """Builds Alg. 2; the clients S of cluster c send d_i = w_i - w_c after FedAvg's steps.

            if |mean_S d_i| < eps1 and max_S |d_i| > eps2, part S into A and B by Alg. 1:
                the least of max_{A x B} cos(d_i, d_j)
            w_A <- w_c + mean_A d_i,    w_B <- w_c + mean_B d_i

        Means are weighted by rows, norms and cosines are of shared parameters without running
        statistics. The paper's gamma_max, which asks for a least distance of the parts, is left
        out. Alg. 2 asks all clients in each round: here clients of c that are not in the round
        stay with the larger part, and there are as many clusters as ``clusters`` at most, so that
        the server keeps as many models.
        """
        network, gradient = context.network, context.objective.gradient
        shared = pick(network.initial, network.shared)
        measured = sorted(network.shared & network.learned)

        def send(server, clients):
            at = server["cluster"][list(clients)]
            return {}, {"model": {n: leaf[at] for n, leaf in server["models"].items()}}

        def merge(server, updates):
            models = {n: leaf.clone() for n, leaf in server["models"].items()}
            cluster, count = server["cluster"].clone(), int(server["count"])
            for c in range(count):
                members = [u for u in updates if server["cluster"][u.client] == c]
                stay, leave = members, []
                if count < self.clusters and len(members) > 1:
                    stay, leave = parted(members, {n: models[n][c] for n in measured})
                for at, part in ((c, stay), (count, leave)):
                    if part:
                        for n, leaf in mean_of(part, "weight").slots["model"].items():
                            models[n][at] = leaf
                        cluster[[u.client for u in part]] = at
                count += bool(leave)
            return {"models": models, "cluster": cluster, "count": torch.tensor(count)}

        def parted(members, before):
            d = [
                np.concatenate(
                    [(u.slots["model"][n] - before[n]).double().numpy().ravel() for n in measured]
                )
                for u in members
            ]
            rows = np.array([u.weight for u in members])
            mean = np.linalg.norm(rows @ np.stack(d) / rows.sum())
            if mean < self.eps1 and max(map(np.linalg.norm, d)) > self.eps2:
                larger, smaller = sorted(bipartition(np.stack(d)), key=len, reverse=True)
                return [members[i] for i in larger], [members[i] for i in smaller]
            return members, []

        def direction(work, batches):
            return {"model": gradient(work["model"], batches[0])}, work

        start = {
            "models": {n: x.repeat(self.clusters, *[1] * x.ndim) for n, x in shared.items()},
            "cluster": torch.zeros(context.clients, dtype=torch.int64),
            "count": torch.tensor(1),
        }
        return Method(
            Server(start, send, FromEach(merge, "rows")),
            Client(
                begin=lambda received, kept, batch: received,
                phases=(Phase(direction, self.eta, affine=True, one_gradient_per_batch=True),),
                end=lambda received, work: ({"model": work["model"]}, {}),
                sends={"model"},
            ),
            serve=lambda received, kept, trained: Served((received["model"],), tuned=not trained),
            kinds=kinds_of(models="model", statistics="models cluster count"),
        )


def bipartition(updates):
    """Returns two lists of positions: the parts of Alg. 1 of updates (m, P), m > 1.

    Merging the most similar pairs until two parts are left is single linkage of cosine distances.
    """
    unit = updates / np.maximum(np.linalg.norm(updates, axis=1, keepdims=True), 1e-300)
    apart = 1 - unit @ unit.T
    np.fill_diagonal(apart, 0.0)
    tree = to_tree(linkage(squareform(apart, checks=False), "single"))
    return sorted(tree.left.pre_order()), sorted(tree.right.pre_order())
