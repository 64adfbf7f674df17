"""pFedHN: a hypernetwork on the server, which makes each client's network of its embedding.

Shamsian, Navon, Fetaya, Chechik. Personalized Federated Learning using Hypernetworks. ICML 2021.
Below, Alg. 1 is that paper's. A client trains what it is sent by plain local steps, and knows
nothing of the hypernetwork: what is exchanged is no larger than its network.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Generator, Tensor
from torch.func import vjp

from engram.aggregates import Aggregate, Update
from engram.checks import require
from engram.federated.tailored import KNOWN, meet, nobody, or_common
from engram.tree import add_scaled, marked, part
from engram.types import Params

__all__ = ["generate", "pfedhn_server"]

_EMBEDDINGS: Final = "embeddings"  # in the state: (N, k)
# Marks, in the state, of the hypernetwork's arrays: its hidden layers' weights and biases, by their
# numbers, and for each array of a client's network a linear map from the last of them, and a start.
_WEIGHTS, _BIASES, _MAPS, _STARTS = "weights/", "biases/", "maps/", "starts/"


def generate(hyper: Params, embeddings: Tensor) -> Params:
    """Returns the networks theta = h(v; phi) of embeddings v.

    Args:
        hyper: phi, as the server's state holds it.
        embeddings: Shape (c, k).

    Returns:
        The networks' arrays, each with a leading axis of c.
    """
    z, weights, biases = embeddings, part(hyper, _WEIGHTS), part(hyper, _BIASES)
    for number in map(str, range(len(weights))):
        z = torch.relu(z @ weights[number].T + biases[number])
    maps, starts = part(hyper, _MAPS), part(hyper, _STARTS)
    # In one order, lest a resumed run add up their gradients in another, with another rounding.
    return {
        name: (z @ maps[name].T).view(-1, *starts[name].shape) + starts[name]
        for name in sorted(maps)
    }


def pfedhn_server(
    *, clients: int, eta: float, embedding: int, hidden: int, layers: int, generator: Generator
) -> Aggregate:
    """Builds the server's part (Alg. 1), of the clients S that replied.

        d_i = y_i - h(v_i; phi),    phi <- phi + eta mean_S (grad_phi h(v_i; phi))^T d_i,
        v_i <- v_i + eta (grad_v h(v_i; phi))^T d_i

    Alg. 1 asks one client a round; of several the mean is taken for phi, while each embedding moves
    as if its client alone had been asked. The hypernetwork begins as the initial network whatever
    the embedding: its linear maps begin at 0. A client that has not taken part yet is sent the
    network of the mean embedding of those that have, which is the common model, too, since an
    embedding without any training means nothing; its first change counts as one of h(v_i).

    Args:
        clients: N, of the whole federation; >= 1.
        eta: Step size of phi and v; > 0. About 1 / (1 + hidden) moves a network by a whole change.
        embedding: k, numbers in an embedding; >= 1.
        hidden: Units of each hidden layer; >= 1.
        layers: Number of hidden layers; >= 0, where 0 makes networks linear in the embedding.
        generator: Draws embeddings and hidden layers.

    Raises:
        ValueError: If a value is out of range.
    """
    for name, value in (("num-clients", clients), ("embedding", embedding), ("hidden", hidden)):
        require(value >= 1, name, value, "at least 1")
    require(eta > 0, "server-eta", eta, "positive")
    require(layers >= 0, "layers", layers, "at least 0")

    def init(model: Params) -> Params:
        state, drawing = nobody(clients), generator.clone_state()
        state[_EMBEDDINGS] = torch.randn(clients, embedding, generator=drawing)
        width = embedding
        for number in map(str, range(layers)):
            drawn = torch.randn(hidden, width, generator=drawing)
            state[_WEIGHTS + number] = drawn * (2 / width) ** 0.5  # He et al., ICCV 2015
            state[_BIASES + number] = torch.zeros(hidden)
            width = hidden
        maps = {name: torch.zeros(leaf.numel(), width) for name, leaf in model.items()}
        return state | marked(maps, _MAPS) | marked(model, _STARTS)

    def merge(model: Params, state: Params, updates: Sequence[Update]) -> tuple[Params, Params]:
        cohort, known = meet(state, updates)
        hyper, v = _hyper(state), state[_EMBEDDINGS]
        made, pull, *_ = vjp(generate, hyper, v[cohort])
        sent, count = or_common(made, model, state, cohort), len(cohort)
        returned = {name: torch.stack([u.params[name] for u in updates]) for name in made}
        change = add_scaled(returned, -1.0, sent)
        by_phi, by_v = pull({name: leaf / count for name, leaf in change.items()})
        v = v.index_add(0, torch.tensor(cohort), by_v, alpha=eta * count)
        state = state | known | add_scaled(hyper, eta, by_phi) | {_EMBEDDINGS: v}
        mean = v[state[KNOWN] > 0].mean(0, keepdim=True)
        return {name: leaf[0] for name, leaf in generate(_hyper(state), mean).items()}, state

    def tailored(model: Params, state: Params, asked: Sequence[int]) -> Params:
        made = generate(_hyper(state), state[_EMBEDDINGS][list(asked)])
        return or_common(made, model, state, asked)

    return Aggregate(init=init, merge=merge, weighting="clients", additive=False, tailored=tailored)


def _hyper(state: Params) -> Params:
    marks = (_WEIGHTS, _BIASES, _MAPS, _STARTS)
    return {name: leaf for name, leaf in state.items() if name.startswith(marks)}
