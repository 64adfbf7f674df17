"""Floco. Grinwald, Wiesner, Nakajima. NeurIPS 2024."""

from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le

from engram.core.checks import must
from engram.core.method import Client, Context, FromEach, Method, Phase, Served, Server
from engram.core.settings import Eta, OnServer, Search, Several, method
from engram.core.slots import kinds_of, mean_of, pick


@method("floco", source="Grinwald et al., NeurIPS 2024, Alg. 1")
class Floco:
    """A simplex of common heads on one body, in a part of which each client trains."""

    eta: Eta = 0.1
    vertices: Annotated[Several, Search(2, 10), "heads that span the simplex; 1: fedavg"] = 5
    tau: Annotated[int, Ge(1), OnServer, "round in which clients get parts of the simplex"] = 10
    rho: Annotated[
        float,
        Gt(0),
        Le(2),
        Search(0.05, 2, log=True),
        OnServer,
        "radius of a client's part, by the sum of absolute differences of mixture weights",
    ] = 0.1

    def build(self, context: Context) -> Method:
        """Builds Alg. 1, of a body and heads h_1 to h_M, which a client i mixes by weights a.

            a ~ uniform in the simplex; from round tau on, in its part {a: |a - p_i|_1 <= rho}
            body <- body - eta grad_body L,    h_m <- h_m - eta a_m grad_h L    at h = sum a_m h_m

        In round tau it projects the clients' changes of the heads
        to their first M principal components, and these to the simplex: that is p_i. A client whose
        first round comes later is projected by the same components. It is served by p_i, before by
        the simplex's center.

        A client's functions draw no random numbers: a is from the recurrence R_d (Roberts
        2018), which fills the simplex evenly, too. After tau, a is ``p_i + rho / 2 (a' - p_i)``
        with a' in the simplex, which lies in the paper's part and, other than draws around p_i in
        all directions, in the simplex. The authors' code has one common bias, and all clients train
        once more to be projected; here heads have biases, and those of round tau are projected.

        Raises:
            ValueError: If the network has nothing below its head, or its head is personal.
        """
        network, gradient = context.network, context.objective.gradient
        network.require_body()
        head = network.head - network.running
        if head & network.personal:
            raise ValueError(must("personal", "the last layer", "a part below it for floco"))
        body = frozenset(network.initial) - head
        names = [f"head{m}" for m in range(self.vertices)]
        starts = [pick(w, head) for w in network.draws(self.vertices)]
        stride = torch.tensor(recurrence(self.vertices))
        length = self.vertices * sum(x.numel() for x in starts[0].values())

        def mixture(received, weights):
            heads = [received[name] for name in names]
            mixed = {n: sum(weights[m] * h[n] for m, h in enumerate(heads)) for n in sorted(head)}
            return received["body"] | mixed

        def begin(received, kept, batch):
            return received | kept | {"model": mixture(received, received["center"])}

        def direction(work, batches):
            point = torch.remainder(work["point"] + stride.to(work["point"]), 1.0)
            drawn = -point.clamp(1e-6, 1 - 1e-6).log()  # exponential; their shares are uniform
            center = work["center"]
            weights = torch.lerp(center, drawn / drawn.sum(), work["spread"])
            now = pick(work["model"], body)
            g = gradient(mixture(work | {"body": now}, weights), batches[0])
            by_head = pick(g, head)
            moved = {
                name: {n: weights[m] * x for n, x in by_head.items()}
                for m, name in enumerate(names)
            }
            return {"model": pick(g, body), **moved}, work | {"point": point}

        def end(received, work):
            heads = {name: work[name] for name in names}
            return {"body": pick(work["model"], body), **heads}, {"point": work["point"]}

        def send(server, clients):
            common = {slot: server[slot] for slot in ("body", *names)}
            return common, {slot: server[slot][list(clients)] for slot in ("center", "spread")}

        def merge(server, updates):
            after = server | mean_of(updates, "weight").slots | {"round": server["round"] + 1}
            new = [u for u in updates if server["spread"][u.client] == 1]
            if after["round"] < self.tau or not new:
                return after
            changes = torch.stack(
                [
                    torch.cat(
                        [
                            (u.slots[m][n] - server[m][n]).flatten()
                            for m in names
                            for n in sorted(head)
                        ]
                    )
                    for u in new
                ]
            )
            plane = (
                server["plane"] if server["plane"]["size"] > 0 else fitted(changes, self.vertices)
            )
            at = torch.tensor([u.client for u in new])
            centers = projected(changes, plane)
            return after | {
                "plane": plane,
                "center": server["center"].index_copy(0, at, centers),
                "spread": server["spread"].index_fill(0, at, self.rho / 2),
            }

        def serve(received, kept, trained):
            return Served((mixture(received, received["center"]),), tuned=not trained)

        start = {
            "body": pick(network.initial, body),
            **dict(zip(names, starts, strict=True)),
            "round": torch.tensor(0),
            "center": torch.full((context.clients, self.vertices), 1 / self.vertices),
            "spread": torch.ones(context.clients),
            "plane": {
                "mean": torch.zeros(length),
                "axes": torch.zeros(self.vertices, length),
                "size": torch.zeros(()),
            },
        }
        return Method(
            Server(start, send, FromEach(merge, "rows")),
            Client(
                begin,
                phases=(Phase(direction, self.eta, one_gradient_per_batch=True),),
                end=end,
                sends={"body", *names},
                start={"point": torch.full((self.vertices,), 0.5)},
            ),
            serve,
            kinds=kinds_of(
                models=f"model body {' '.join(names)}", statistics="round center spread plane point"
            ),
        )


def recurrence(dimensions):
    """Returns the strides of R_d: 1 / phi^k for k = 1 to d, where phi^(d + 1) = phi + 1."""
    phi = 2.0
    for _ in range(100):
        phi = (1 + phi) ** (1 / (dimensions + 1))
    return [phi**-k for k in range(1, dimensions + 1)]


def fitted(changes, count):
    """Returns principal components of changes (m, D), and the size of the simplex in their plane.

    Clients are projected to the simplex of points that add up to that size. Among 64 sizes up to
    1, it is the one by which their points repel each other least: Riesz' energy, the sum over pairs
    of 1 / distance^2.
    """
    mean = changes.mean(0)
    _, values, axes = torch.linalg.svd((changes - mean).double(), full_matrices=False)
    told = values > 1e-5 * values.max()  # others are directions of rounding
    axes = (axes * told[:, None])[:count].to(changes)
    largest = axes.abs().argmax(1, keepdim=True)
    axes = axes * axes.gather(1, largest).sign()  # as whose signs are free
    axes = torch.cat([axes, axes.new_zeros(count - len(axes), axes.shape[1])])

    def energy(size):
        points = projected(changes, {"mean": mean, "axes": axes, "size": size})
        return torch.pdist(points.double()).clamp(min=1e-4).pow(-2).sum()

    sizes = torch.arange(1, 65) / 64
    energies = torch.stack([energy(size) for size in sizes])
    best = (energies <= energies.min() * (1 + 1e-6)).nonzero()[0, 0]  # of equal ones, the first
    return {"mean": mean, "axes": axes, "size": sizes[best]}


def projected(changes, plane):
    """Returns mixture weights (m, M), the nearest in the simplex to the changes (m, D)."""
    points, size = (changes - plane["mean"]) @ plane["axes"].T, plane["size"]
    ordered = points.sort(dim=1, descending=True).values
    above = (ordered.cumsum(1) - size) / torch.arange(1, points.shape[1] + 1)
    last = (ordered > above).sum(1, keepdim=True) - 1
    return (points - above.gather(1, last)).clamp(min=0) / size
