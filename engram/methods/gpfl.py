"""GPFL. Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan. ICCV 2023."""

from typing import Annotated

import torch
from torch.nn.functional import layer_norm, normalize

from engram.core.class_statistics import indicators
from engram.core.method import Client, Context, FromMean, Method, Phase, Served, Server
from engram.core.settings import Eta, Penalty, method
from engram.core.slots import kinds_of, replace, sends


@method("gpfl", source="Zhang et al., ICCV 2023", tasks=("classification",), personal="head")
class Gpfl:
    """Common embeddings of classes guide a common body, and gate it by a client's classes."""

    eta: Eta = 0.1
    lambda_: Annotated[Penalty, "weight of the distance to embeddings of classes"] = 0.01
    mu: Annotated[
        Penalty, "weight of the squares of the embeddings and of the gates' parameters"
    ] = 0.1

    def build(self, context: Context) -> Method:
        """Builds the method, of embeddings e_c of the classes, for a client's own head.

            gamma(v) = norm(relu(A v + a)),    beta(v) = norm(relu(B v + b))
            z(v) = relu((1 + gamma(v)) * z + beta(v)),    g = mean of e_c,    p = sum_c s_c e_c
            L = mean over rows of -log softmax_y(head(z(p))) - log softmax_y(cos(z(g), e_c))
                + lambda |z(g) - e_y|
            w <- w - eta grad (L + mu / 2 (|e|^2 + |the gates' parameters|^2))

        z is a row's representation by the body, s_c the share of class c among the client's rows,
        norm is layer normalization, and w all of this: the body, the embeddings and the gates'
        parameters are averaged by rows, and the head stays. g, p and e_y, but not e_c in the
        cosines, are of the embeddings as received, and rest during a round. A client is served by
        its head on z(p), of the newest p; one that has not trained, by z(g).

        The shares are of the rows that the client's steps have drawn until then, in all rounds;
        the authors' code counts its rows before the first. There g and p are 0 in the first round,
        and then of the client's embeddings before it receives new ones; and the distance is a norm
        over all rows of a batch, which grows with their number.

        Raises:
            ValueError: If the network has no representation, or nothing below its head.
        """
        network, classes = context.network, context.outputs
        network.require_body()
        network.require_representation()

        def loss(w, frozen, shares, batch):
            e, known = w["embeddings"]["e"], frozen["e"]
            rows = indicators(batch[1], classes)
            outputs, z = network.represent(w["model"], batch, gate(w["valve"], shares @ known))
            scale, shift = gate(w["valve"], known.mean(0))
            common = (scale * z + shift).relu()
            cosines = normalize(common) @ normalize(e).T
            angle = -(rows * cosines.log_softmax(1)).sum(1).mean()
            away = (common - rows @ known).norm(dim=1).mean()
            squares = e.square().sum() + sum(x.square().sum() for x in w["valve"].values())
            value = context.objective.criterion(outputs, batch) + angle
            return value + self.lambda_ * away + self.mu / 2 * squares, ()

        gradient = context.objective.differentiate(loss)

        def direction(work, batches):
            counts = work["counts"] + indicators(batches[0][1], classes).sum(0)
            w = {slot: work[slot] for slot in _TRAINED}
            d, _ = gradient(w, work["frozen"], counts / counts.sum(), batches[0])
            return d, work | {"counts": counts}

        def serve(received, kept, trained):
            counts = kept["counts"] if trained else torch.ones_like(kept["counts"])
            p = (counts / counts.sum()) @ received["embeddings"]["e"]
            return Served((received["model"],), shift=gate(received["valve"], p), tuned=not trained)

        generator = context.generator()
        start = {
            "model": network.initial,
            "embeddings": {"e": torch.randn(classes, network.width, generator=generator)},
            "valve": _initial_valve(network.width, generator),
        }
        return Method(
            Server(start, sends(*_TRAINED), FromMean(replace, "rows")),
            Client(
                begin=lambda received, kept, batch: (
                    received | kept | {"frozen": received["embeddings"]}
                ),
                phases=(Phase(direction, self.eta, one_gradient_per_batch=True),),
                end=lambda received, work: (
                    {slot: work[slot] for slot in _TRAINED},
                    {"counts": work["counts"]},
                ),
                sends={*_TRAINED},
                start={"counts": torch.zeros(classes)},
            ),
            serve,
            kinds=kinds_of(models="model embeddings valve frozen", statistics="counts"),
        )


_TRAINED = ("model", "embeddings", "valve")
_HALVES = ("gamma", "beta")


def gate(valve, v):
    """Returns the gate of an input v, as ``Served.shift`` has it: 1 + gamma(v), and beta(v)."""

    def half(name):
        hidden = (valve[f"{name}.weight"] @ v + valve[f"{name}.bias"]).relu()
        return layer_norm(hidden, hidden.shape, valve[f"{name}.gain"], valve[f"{name}.offset"])

    gamma, beta = map(half, _HALVES)
    return torch.stack([1 + gamma, beta])


def _initial_valve(width, generator):
    """Returns the gates' parameters as torch starts such layers: uniform on +-1/sqrt(width)."""

    def uniform(*shape):
        return (2 * torch.rand(*shape, generator=generator) - 1) * width**-0.5

    weights = {f"{name}.weight": uniform(width, width) for name in _HALVES}
    biases = {f"{name}.bias": uniform(width) for name in _HALVES}
    gains = {f"{name}.gain": torch.ones(width) for name in _HALVES}
    return weights | biases | gains | {f"{name}.offset": torch.zeros(width) for name in _HALVES}
