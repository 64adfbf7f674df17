"""pFedHN. Shamsian, Navon, Fetaya, Chechik. ICML 2021."""

from typing import Annotated

import torch
from annotated_types import Gt, Interval
from torch.func import vjp

from engram.core.method import Client, Context, FromEach, Method, Phase, Served, Server
from engram.core.settings import Eta, OnServer, Search, method
from engram.core.slots import kinds_of, mean_of, or_common, pick, scatter
from engram.core.tree import add_scaled


@method("pfedhn", source="Shamsian et al., ICML 2021, Alg. 1")
class PFedHn:
    """A hypernetwork on the server makes each client's network of an embedding."""

    eta: Eta = 0.1
    server_eta: Annotated[
        float,
        Gt(0),
        Search(1e-3, 0.3, log=True),
        OnServer,
        "step size of the hypernetwork and of the embeddings",
    ] = 0.03
    embedding: Annotated[
        int, Interval(ge=1, le=2**16), Search(2, 64, log=True), "numbers in a client's embedding"
    ] = 8
    layer_width: Annotated[
        int, Interval(ge=1, le=2**16), "units of each hidden layer on the server"
    ] = 100
    layers: Annotated[
        int, Interval(ge=0, le=64), "hidden layers on the server; 0: a linear map"
    ] = 3

    def build(self, context: Context) -> Method:
        """Builds Alg. 1, of the clients S that replied; h is the hypernetwork of parameters phi.

            d_i = y_i - h(v_i; phi),    phi <- phi + server_eta mean_S (dh/dphi)^T d_i
            v_i <- v_i + server_eta (dh/dv_i)^T d_i

        Alg. 1 asks one client a round; of several the mean is taken for phi, while each embedding
        moves as if its client alone had been asked. A client trains the network that it is sent by
        plain steps and knows nothing of h. One that never took part is sent the network of the mean
        embedding of those that have, since an embedding without any training means nothing; its
        first change counts as one of h(v_i). About ``server_eta = 1 / (1 + layer_width)`` moves a
        network by a whole change. Running statistics are averaged.
        """
        gradient, network = context.objective.gradient, context.network
        initial = pick(network.initial, network.shared & network.learned)
        shapes = {n: initial[n].shape for n in sorted(initial)}
        hyper, drawn = _initial_hypernetwork(self, context, initial)

        def make(phi, v):
            for i in range(self.layers):
                v = torch.relu(v @ phi["hidden"][f"weight{i}"].T + phi["hidden"][f"bias{i}"])
            maps, bias = phi["maps"], phi["bias"]
            return {n: (v @ maps[n].T).view(-1, *s) + bias[n] for n, s in shapes.items()}

        def phi_of(server):
            return {slot: server[slot] for slot in hyper}

        def send(server, clients):
            made = make(phi_of(server), server["embeddings"]["v"][list(clients)])
            known = server["known"][list(clients)]
            own = or_common(made, server["model"], known, range(len(clients)))
            return {"statistics": server["statistics"]}, {"model": own}

        def merge(server, updates):
            cohort, phi = [u.client for u in updates], phi_of(server)
            v, sent = server["embeddings"]["v"], send(server, cohort)[1]["model"]
            _, pull, *_ = vjp(make, phi, v[cohort])
            back = {n: torch.stack([u.slots["model"][n] for u in updates]) for n in sent}
            change = add_scaled(back, -1.0, sent)
            by_phi, by_v = pull({n: leaf / len(cohort) for n, leaf in change.items()})
            moved = {slot: add_scaled(phi[slot], self.server_eta, by_phi[slot]) for slot in phi}
            mine = {"v": torch.add(v[cohort], by_v, alpha=self.server_eta * len(cohort))}
            embeddings = scatter(server["embeddings"], cohort, mine)
            known = server["known"].index_fill(0, torch.tensor(cohort), 1.0)
            middle = embeddings["v"][known > 0].mean(0, keepdim=True)
            plain = [u._replace(slots={"statistics": u.slots["statistics"]}) for u in updates]
            return {
                **moved,
                **mean_of(plain, "weight").slots,
                "model": {n: leaf[0] for n, leaf in make(moved, middle).items()},
                "embeddings": embeddings,
                "known": known,
            }

        def begin(received, kept, batch):
            return {"model": received["model"] | received["statistics"]}

        def direction(work, batches):
            return {"model": gradient(work["model"], batches[0])}, work

        def end(received, work):
            sent = {"model": network.learned, "statistics": network.running}
            return {slot: pick(work["model"], names) for slot, names in sent.items()}, {}

        def serve(received, kept, trained):
            model = received["model"] | received["statistics"]
            return Served((model,), tuned=not trained)

        start = {
            **hyper,
            "model": pick(network.initial, network.learned),
            "statistics": pick(network.initial, network.running),
            "embeddings": {"v": drawn},
            "known": torch.zeros(context.clients),
        }
        return Method(
            Server(start, send, FromEach(merge)),
            Client(
                begin,
                phases=(Phase(direction, self.eta, affine=True, one_gradient_per_batch=True),),
                end=end,
                sends={"model", "statistics"},
            ),
            serve,
            kinds=kinds_of(
                models="model statistics", statistics="hidden maps bias embeddings known"
            ),
        )


def _initial_hypernetwork(settings, context, initial):
    """Returns one that makes the initial network whatever the embedding, and embeddings.

    The linear maps begin at 0; hidden layers as in He et al., ICCV 2015.
    """
    generator, width = context.generator(), settings.embedding
    embeddings = torch.randn(context.clients, width, generator=generator)
    hidden = {}
    for i in range(settings.layers):
        drawn = torch.randn(settings.layer_width, width, generator=generator)
        hidden[f"weight{i}"] = drawn * (2 / width) ** 0.5
        hidden[f"bias{i}"] = torch.zeros(settings.layer_width)
        width = settings.layer_width
    maps = {n: torch.zeros(leaf.numel(), width) for n, leaf in initial.items()}
    return {"hidden": hidden, "maps": maps, "bias": initial}, embeddings
