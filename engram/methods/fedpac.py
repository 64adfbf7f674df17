"""FedPAC. Xu, Tong, Huang. ICLR 2023."""

from typing import Annotated

import numpy as np
import torch
from scipy.optimize import nnls

from engram.core.checks import must
from engram.core.class_statistics import (
    claims_of,
    class_statistics,
    distance_to_class_means,
    empty,
    updated,
)
from engram.core.method import Client, Context, FromEach, Method, Phase, Served, Server
from engram.core.settings import Eta, Share, Strength, method
from engram.core.slots import Tally, kinds_of, mean_of, or_common, pick, scatter
from engram.core.tree import add_scaled, clip, norm
from engram.guards.robust.weight_limit import weight_limit


@method("fedpac", source="Xu et al., ICLR 2023, Alg. 1", tasks=("classification",))
class FedPac:
    """A common body held to common prototypes, under a mix of all heads for each client."""

    eta: Eta = 0.1
    lambda_: Annotated[Strength, "weight of the distance to prototypes"] = 1.0
    head_share: Annotated[
        Share, "share of a client's steps in a round, the first ones, for the head"
    ] = 0.2

    def build(self, context: Context) -> Method:
        """Builds Alg. 1.

        A client trains the head that it was sent, then the body, and sends class statistics of the
        first steps and of the others; the server mixes heads for each client.

        The local loss adds ``lambda mean over rows of |z - c_y|^2 / width`` to L: z is a row's
        representation and c_y its class's prototype, the mean z of class y. Alg. 1 takes statistics
        in passes over all rows before and after, which would cost as much as two epochs; here they
        are of the rows that steps draw, each represented by the network before its step. A client
        that takes part has its head mixed anew with those of the same round, and keeps it until it
        takes part again; one that never did is sent the mean of the heads.

        Raises:
            ValueError: If the network has no representation, or its head is personal.
        """
        network = context.network
        network.require_body()
        network.require_representation()
        head = network.head - network.running
        body = frozenset(network.initial) - head
        if head & network.personal:
            raise ValueError(must("personal", "the last layer", "a part below it for fedpac"))
        none = empty(network, context.outputs)
        tally = Tally(none | {"square": network.zeros()})

        def loss(w, known, batch):
            outputs, z = network.represent(w, batch, None)
            far = distance_to_class_means(z, batch[1], known)
            seen = class_statistics(z, batch[1], context.outputs)
            seen |= {"square": z.square().sum(1).mean()}
            return context.objective.criterion(outputs, batch) + self.lambda_ * far, seen

        def trains(names, slot, fraction=1.0):
            gradient = context.objective.differentiate(loss, names)

            def direction(work, batches):
                d, seen = gradient(work["model"], work["prototypes"], batches[0])
                return {"model": d}, work | {slot: tally.add(work[slot], seen)}

            return Phase(direction, self.eta, fraction=fraction, one_gradient_per_batch=True)

        def begin(received, kept, batch):
            model = received["body"] | received["head"]
            return received | {"model": model, "before": tally.start, "after": tally.start}

        def end(received, work):
            seen = {slot: tally.mean(work[slot]) for slot in ("before", "after")}
            return {"body": pick(work["model"], body), "head": pick(work["model"], head)} | seen, {}

        def send(server, clients):
            own = or_common(server["heads"], server["head"], server["known"], clients)
            return {slot: server[slot] for slot in ("body", "prototypes")}, {"head": own}

        def merge(server, updates):
            cohort = [u.client for u in updates]
            common, own = send(server, cohort)
            origins = [
                pick(common["body"], learned) | {n: leaf[i] for n, leaf in own["head"].items()}
                for i in range(len(cohort))
            ]
            updates = shortened(updates, origins)
            mean, weights = mean_of(updates, "weight").slots, head_weights(updates)
            weights = torch.from_numpy(weights).float()
            heads = {n: torch.stack([u.slots["head"][n] for u in updates]) for n in sorted(head)}
            mixed = {n: torch.tensordot(weights, leaf, dims=1) for n, leaf in heads.items()}
            return {
                "body": mean["body"],
                "head": mean["head"],
                "heads": scatter(server["heads"], cohort, mixed),
                "known": server["known"].index_fill(0, torch.tensor(cohort), 1.0),
                "prototypes": updated(server["prototypes"], mean["after"]),
            }

        own = pick(network.initial, head)
        start = {
            "body": pick(network.initial, body),
            "head": own,
            "heads": {n: x.repeat(context.clients, *[1] * x.ndim) for n, x in own.items()},
            "known": torch.zeros(context.clients),
            "prototypes": none,
        }
        learned = network.learned - head

        def serve(received, kept, trained):
            return Served((received["body"] | received["head"],), tuned=not trained)

        return Method(
            Server(start, send, FromEach(merge, "rows")),
            Client(
                begin,
                phases=(trains(head, "before", self.head_share), trains(learned, "after")),
                end=end,
                sends={"body", "head", "before", "after"},
            ),
            serve,
            kinds=kinds_of(
                models="model body head", statistics="heads known prototypes before after"
            ),
            claims=claims_of("before", "after")
            | dict.fromkeys(("before/square", "after/square"), "amount"),
        )


def head_weights(updates):
    """Returns the weights (m, m) of all heads in each client's mixture.

    Those of client i minimize what a mixture is expected to lose on its rows, over the simplex: its
    variance, and its bias where the rows of others look different,

        sum_j a_j^2 V_j + |sum_j a_j (M_i - M_j)|^2

    V is the variance of z within classes by the number of rows, M (classes, width) the mean z of
    classes times the class's share of the rows. A client with too few steps to train its head has
    told nothing, and keeps its head. Departing from the paper, 1 / V is at most four times that of
    the median client, since a client says itself how precise it is.
    """
    seen = [u.slots["before"] for u in updates]
    told = np.flatnonzero([float(s["shares"].sum()) > 0 for s in seen])
    weights = np.eye(len(updates))
    if not len(told):
        return weights
    shares = np.array([float(seen[i]["shares"].double().sum()) for i in told])
    flat = np.stack([seen[i]["sums"].double().numpy().ravel() for i in told]) / shares[:, None]
    squares = np.array([float(seen[i]["square"]) for i in told]) / shares
    rows = np.array([updates[i].rows for i in told])
    variances = np.maximum(squares - np.square(flat).sum(1), 0.0) / rows
    with np.errstate(divide="ignore"):  # nobody is much more precise than the median client
        variances = np.maximum(variances, 1 / weight_limit(1 / variances, _MOST))
    for i, mine in zip(told, flat, strict=True):
        away = flat - mine
        values, vectors = np.linalg.eigh(away @ away.T + np.diag(variances))
        roots = np.sqrt(np.maximum(values, 1e-12 * values.max() or 1.0))[:, None] * vectors.T
        # |A x|^2 + (1 - sum x)^2 over x >= 0 has its least in the direction of the weights: for
        # x = s a, where a adds up to 1, it is q / (1 + q) at the best s, with q = |A a|^2.
        x, _ = nnls(np.vstack([roots, np.ones(len(flat))]), np.append(np.zeros(len(flat)), 1.0))
        weights[i, told] = x / x.sum()
    return weights


def shortened(updates, origins):
    """Returns the updates at most three median distances from ``origins``.

    A client may weigh more in another's head than it does in a mean, and the common body is trained
    under that head. So ``max-norm``, which lets one go several times as far as is usual, is too
    much here. Running statistics are left as they are, and out of ``origins``.
    """
    models = [pick(u.slots["body"] | u.slots["head"], origins[0].keys()) for u in updates]
    changes = [add_scaled(w, -1.0, v) for w, v in zip(models, origins, strict=True)]
    limit = float(weight_limit([float(norm(change)) for change in changes], _FAR))
    near = [clip(w, v, limit) for w, v in zip(models, origins, strict=True)]
    return [
        u._replace(slots=u.slots | {s: u.slots[s] | pick(w, u.slots[s].keys()) for s in _PARTS})
        for u, w in zip(updates, near, strict=True)
    ]


_PARTS = ("body", "head")
_MOST = 4.0  # precision of a client, in precisions of the median client
_FAR = 3.0  # change of a client's model, in changes of the median client's
